"""`scaleout view`: open an output in the browser, and ask what-ifs of it there."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import NAME_OR_FILE, PATH, Whole
from scaleout.cli.printing import say
from scaleout.cli.serving import ADDRESS, BadQuestion, Server
from scaleout.errors import ConfigError, ScaleoutError

if TYPE_CHECKING:
    from scaleout.api.views import Output

_KEPT = 4
"""Timelines of earlier answers that pages may still show."""
_TELL_S = 0.5
"""From one line of progress to the next."""
_IMPORTS_S = 0.02
"""From one look at whether a module is imported to the next."""


@click.command()
@click.argument("path", metavar="DIR|FILE", type=PATH)
@click.option(
    "--topology",
    type=NAME_OR_FILE,
    help="Network on which traces are simulated; by default their own.",
)
@click.option("--port", type=Whole(65535, least=0), default=0, help="Port of the page; by default a free one.")
@click.option("--no-browser", is_flag=True, help="Print the page's address, and open no browser.")
def view(path: Path, topology: str | None, port: int, no_browser: bool) -> None:
    """Open an output in the browser: timeline, tables, the network with its loads, and what-ifs.

    DIR is a folder of --output (run, search, diff, collective, ...), of a study, or of traces; FILE what --json prints,
    or a timeline. Bandwidths, latencies, batch and schedule can be changed there, and the job is simulated again.

    The page is served to this machine alone, until Ctrl-C. Examples: scaleout view results; scaleout view results
    --no-browser --port 8000.
    """
    from scaleout.api.views import open_output
    from scaleout.report.pages.vega import check_limits

    check_limits("read the files without a browser")
    questions = _Questions(open_output(path, topology=topology))
    try:
        server = Server(port, questions.page, questions.asks)
    except OSError as error:
        raise ConfigError(f"--port {port}: cannot be taken on {ADDRESS} ({error.strerror}); give another") from None
    say(f"{path} is at {server.url}")
    say("Ctrl-C ends")
    if not no_browser:
        import webbrowser

        webbrowser.open(server.url)
    with server:
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the page is closed, its files are as they were") from None


class _GivenUp(SystemExit):
    """Ends the thread that simulates a question, as Ctrl-C would the process: a newer one has come."""


class _Questions:
    """What the page's scripts ask of an output. One job is simulated at a time; a newer question gives it up."""

    def __init__(self, output: "Output") -> None:
        from threading import Lock

        self._output = output
        self._slices = {} if output.page.slices is None else {0: output.page.slices}  # of the file, and of answers
        self._busy, self._turn = Lock(), Lock()
        self._newest, self._running = 0, 0  # number of the newest question, and the thread that simulates, if any
        self.asks = {"simulate": self.simulate, "timeline": self.timeline, "controls": self.controls}

    def page(self, nonce: str) -> str:
        from scaleout.report.pages.view import page_of

        return page_of(self._output.page, nonce)

    def controls(self, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        job = self._job(body)
        yield [vars(each) for each in self._output.controls(job)]  # type: ignore[misc]

    def _job(self, body: Mapping[str, Any]) -> int:
        job = body.get("job")
        if not (isinstance(job, int) and 0 <= job < len(self._output.jobs)):
            raise BadQuestion
        return job

    def timeline(self, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        from scaleout.report.pages.view import timeline_of

        of, window, chosen = body.get("of"), body.get("window"), body.get("processes")
        if not (isinstance(of, int) and of in self._slices and isinstance(chosen, list)):
            raise BadQuestion
        if not (window is None or (_numbers(window) and len(window) == 2)):
            raise BadQuestion
        shown = None if window is None else (float(window[0]), float(window[1]))
        yield {**timeline_of(self._slices[of], shown, [str(each) for each in chosen]), "of": of}

    def _changes(self, body: Mapping[str, Any], job: int) -> dict[str, int]:
        """Return the place of each control's value, where a page offers it."""
        known = {each.name: len(each.values) for each in self._output.controls(job)}
        changes = body.get("changes")
        if not (isinstance(changes, dict) and all(isinstance(place, int) for place in changes.values())):
            raise BadQuestion
        if not all(0 <= place < known.get(name, 0) for name, place in changes.items()):
            raise BadQuestion
        return changes

    def simulate(self, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Simulate a job with changes in a thread of its own, and tell how far it is until it is done or given up."""
        from contextlib import suppress
        from queue import Empty, Queue
        from threading import Thread

        job = self._job(body)
        changes = self._changes(body, job)
        told = Queue[Mapping[str, Any]]()
        mine = self._give_up()

        def work() -> None:
            try:
                with suppress(_GivenUp), self._busy:
                    self._work(mine, job, changes, told)
            except Exception as error:
                if mine == self._newest:  # else given up within C, which takes `_GivenUp` for an error of its own
                    told.put(
                        {"error": f"this is a fault of scaleout ({error!r}); end `scaleout view` and open it again"}
                    )
                    raise
            finally:  # else the page would wait for ever
                told.put({})

        Thread(target=work, daemon=True).start()
        while mine == self._newest or not told.empty():
            try:
                line = told.get(timeout=_TELL_S)
            except Empty:
                line = {"alive": True}
            if not line:
                return
            yield line

    def _give_up(self) -> int:
        """End what is being simulated, and return the number of a new question.

        The exception is raised in the thread as Ctrl-C is in the main one: between two steps of Python, to which the
        compiled engine returns every few tens of milliseconds. A module that is being imported is waited for, as half
        of one would stay for all questions to come.
        """
        import ctypes
        from time import sleep

        with self._turn:
            self._newest += 1
            while self._running and _imports(self._running):
                sleep(_IMPORTS_S)
            if self._running:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._running), ctypes.py_object(_GivenUp))
            return self._newest

    def _work(self, mine: int, job: int, changes: Mapping[str, int], told: Any) -> None:
        from threading import get_ident

        try:
            self._running = get_ident()  # before it is asked whether a newer one has come, which asks for this next
            if mine == self._newest:
                told.put(self._answer(mine, job, changes, told))
        finally:
            self._running = 0

    def _answer(self, number: int, job: int, changes: Mapping[str, int], told: Any) -> Mapping[str, Any]:
        from dataclasses import replace
        from time import monotonic

        from scaleout.api.controls import network_of
        from scaleout.api.views import compared, loads_of, timeline_of_answer
        from scaleout.config.units import counted, format_seconds
        from scaleout.report.drawing import draw
        from scaleout.report.pages.view import answer_parts, timeline_of

        begun = monotonic()

        def tell(done: int, total: int, words: str) -> None:
            told.put({"words": f"simulating {words}, {done + 1} of {counted(total, 'schedule')}"})

        try:
            answer = self._output.again(job, changes, tell)
            topology = network_of(answer.inputs)
            page = replace(
                self._output.page, loads=loads_of(answer), network=draw(topology) if topology is not None else ()
            )
            slices = timeline_of_answer(answer)
            parts = answer_parts(answer.to_dict(), page, compared(self._output, answer))
            timeline = None if slices is None else {**timeline_of(slices), "of": number}
            if slices is not None:
                self._slices = {**{of: self._slices[of] for of in list(self._slices)[-_KEPT:]}, number: slices}
        except (ScaleoutError, MemoryError) as error:
            return {"error": str(error) or "there is not enough memory for this; choose smaller values"}
        done = f"simulated in {format_seconds(monotonic() - begun)}"
        return {"parts": parts, "timeline": timeline, "done": done}


def _imports(thread: int) -> bool:
    """Whether a thread is importing a module."""
    import sys

    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, int | float) for each in value)
