"""The command line: `scaleout VERB ...`. The only part of scaleout that prints.

Errors that are about the input end in one message on standard error and exit code 2. This file is what a process begins
with: it imports next to nothing, so that an interrupt, or want of memory, while the rest is imported ends as well in
one message.
"""

import os
import signal
import sys

_ENDING = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_NO_ROOM = ("failed to map segment", "annot allocate memory", "can't start new thread")
"""What the system, by a library that is loaded or begins a thread, says of memory that has run out."""


def main() -> None:
    """Run the command line. Where the process is asked to end, it ends as after Ctrl-C; see `_interrupt_on`."""
    asked = [signal.SIGINT]
    changed = _interrupt_on(_ENDING, asked)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # our matrices are small; a thread takes room for large ones
    try:
        from scaleout.cli.verbs import run_verb

        run_verb()
    except KeyboardInterrupt as interrupt:
        exec("")  # `python -m` ends by SIGINT if one came in the last text that was executed, as of a dataclass
        _end("; ".join(("interrupted", *map(str, interrupt.args))), 128 + asked[-1])
    except Exception as error:
        if any(isinstance(each, KeyboardInterrupt) for each in _origins(error)):  # as `__set_name__` makes of one
            _end("interrupted", 128 + asked[-1])
        if wants_memory(error):
            _end("error: there is not enough memory for this; give smaller sizes or fewer ranks", 2)
        if not isinstance(error, ImportError) or (error.name or "").startswith(__name__.partition(".")[0]):
            raise
        why = error.__cause__ or error  # such as two libraries whose versions do not fit, which pip does not know
        _end(f"error: a library cannot be loaded ({why}); install what it asks for, or scaleout anew", 2)
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def _interrupt_on(numbers: "list[signal.Signals]", asked: "list[signal.Signals]") -> "list[signal.Signals]":
    """Raise `KeyboardInterrupt` on the first of some signals, add it to those `asked`, and pass over all that follow.

    So what is unfinished is removed, and workers end. A signal that is ignored, as under nohup, stays so. Returns the
    signals whose handler changed; none outside the main thread, where there are no signals.
    """

    def interrupt(number: int, _: object) -> None:
        for each in changed:
            signal.signal(each, signal.SIG_IGN)  # a terminal that is closed says it twice
        asked.append(signal.Signals(number))
        raise KeyboardInterrupt

    changed = [each for each in numbers if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for number in changed:
            signal.signal(number, interrupt)
    except ValueError:
        changed.clear()
    return changed


def wants_memory(error: "BaseException | None") -> bool:
    """Return whether an exception, or one that it came of, is of memory that has run out."""
    return any(
        isinstance(each, MemoryError) or any(words in str(each) for words in _NO_ROOM) for each in _origins(error)
    )


def _origins(error: "BaseException | None") -> "list[BaseException]":
    """Return an exception, and those that it came of."""
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _end(message: str, code: int) -> None:
    try:
        if sys.stderr is not None:
            sys.stderr.write(f"{message}\n")
    except OSError:  # on a full disk; the exit code is all that can be said
        pass
    sys.exit(code)
