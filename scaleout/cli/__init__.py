"""The command line: `scaleout VERB ...`, one file a verb. The only part of scaleout that prints.

Errors that are about the input end in one message on standard error and exit code 2. What a verb needs is imported
when it runs, so that `scaleout --help` answers at once.
"""

import gc
import os
import sys
import warnings

import click

from scaleout.cli.astra import astra
from scaleout.cli.buckets import buckets
from scaleout.cli.collective import collective
from scaleout.cli.list import list_names
from scaleout.cli.measure import measure
from scaleout.cli.operator import operator
from scaleout.cli.reproduce import reproduce
from scaleout.cli.run import run
from scaleout.cli.search import search
from scaleout.cli.show import show
from scaleout.cli.strategies import strategies
from scaleout.cli.trace import trace
from scaleout.cli.track import track
from scaleout.cli.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="scaleout")
def scaleout() -> None:
    """How long does a training or inference step take on this cluster, where does the time go, and what if?

    Start with: scaleout run dlrm-128
    """


for verb in (
    run, search, collective, buckets, operator, trace, astra, list_names, show, validate, measure, reproduce,
    track, strategies,
):  # fmt: skip
    scaleout.add_command(verb)


def main() -> None:
    """Run the command line and turn the user's errors into one message and exit code 2."""
    from scaleout.errors import ScaleoutError

    warnings.showwarning = _say  # what users are told of old names, as one line
    gc.set_threshold(50_000, 20, 20)  # graphs are a million small tuples without cycles, and soon gone: look less often
    try:
        scaleout.main(standalone_mode=False)
        sys.stdout.flush()
    except ScaleoutError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the interpreter's last flush fail
        sys.exit(0)
    except OSError as error:
        what = f"{error.filename}: cannot be read or written" if error.filename else "cannot write the output"
        click.echo(f"error: {what} ({error.strerror})", err=True)
        sys.exit(2)


def _say(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as one line."""
    click.echo(f"warning: {message}", err=True)
