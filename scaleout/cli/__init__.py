"""The command line: `scaleout VERB ...`, one file a verb. The only part of scaleout that prints.

Errors that are about the input end in one message on standard error and exit code 2. What a verb needs is imported
when it runs, so that `scaleout --help` answers at once.
"""

import gc
import os
import sys
import warnings
from importlib import import_module

import click

VERBS = {
    "run": "run:run",
    "search": "search:search",
    "collective": "collective:collective",
    "buckets": "buckets:buckets",
    "operator": "operator:operator",
    "trace": "trace:trace",
    "astra": "astra:astra",
    "list": "list:list_names",
    "show": "show:show",
    "validate": "validate:validate",
    "measure": "measure:measure",
    "reproduce": "reproduce:reproduce",
    "track": "track:track",
    "strategies": "strategies:strategies",
}
"""Verb to its file under `scaleout.cli` and the command in it."""


class Verbs(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in alphabetical order."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a verb's command; None if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"scaleout.cli.{module}"), name)
        return command


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="scaleout")
def scaleout() -> None:
    """Predict how long a training or inference step takes on a cluster, where the time goes, and what would change it.

    Start with: scaleout run dlrm-128
    """


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
