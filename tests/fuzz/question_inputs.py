"""Requests to `scaleout view` of an output, changed: headers, token, body; and the output itself."""

import io
import threading
from functools import cache
from pathlib import Path
from threading import Timer

from judge import Case
from mutations import Grammar, as_json, file_of, other_bytes, other_text, tree
from output_inputs import answered

from scaleout.api.views import open_output
from scaleout.cli.serving import Server, _Handler
from scaleout.cli.view import _Questions
from scaleout.config.documents import decode_json
from scaleout.errors import ConfigError
from scaleout.report.pages.view import parts_of

_BODIES = {
    "simulate": [{"job": 0, "changes": {}}, {"job": 1, "changes": {"schedule": 2, "network model": 1}},
                 {"job": 0, "changes": {"bandwidth.0": 3, "latency.0": 1, "set.global_batch": 1}}],
    "timeline": [{"of": 0, "window": [0.0, 1e-4], "processes": ["baseline"]},
                 {"of": 0, "window": None, "processes": []}],
    "controls": [{"job": 0}, {"job": 1}],
}  # fmt: skip
"""What the page's scripts ask."""
_TOKEN, _PORT = b"TOKEN", b"PORT"
"""What stands for those of the server, which are others each time."""
_LONGEST_S = 1.0
"""Of a simulation, after which it is given up, as by a newer question."""


@cache
def _grammar(what):
    return Grammar([tree(each) for each in _BODIES[what]])


def questions(random):
    """A request, and the output that it asks of."""
    what = random.choice(sorted(_BODIES))
    body = as_json(random.choice(_grammar(what).seeds)).encode()
    if random.random() < 0.6:
        body = file_of(random, _grammar(what), as_json)
    lines = [
        f"POST /{what} HTTP/1.1", f"Host: 127.0.0.1:{_PORT.decode()}", f"X-Token: {_TOKEN.decode()}",
        "Content-Type: application/json", f"Content-Length: {len(body)}",
    ]  # fmt: skip
    if random.random() < 0.15:
        lines, body = [f"GET /?token={_TOKEN.decode()} HTTP/1.1", lines[1]], b""
    if random.random() < 0.15:
        at = random.randrange(len(lines))
        lines[at] = other_text(random, lines[at])
    head = "\r\n".join(lines).encode("utf-8", "surrogatepass")
    head = other_bytes(random, head) if random.random() < 0.05 else head
    documents, events = answered()
    seed = random.choice(documents.seeds)
    summary = file_of(random, documents, as_json) if random.random() < 0.3 else as_json(seed).encode()
    return Case("question", {"request": head + b"\r\n\r\n" + body, "summary.json": summary, "timeline.json": events})


class _Connection:
    """A socket that holds a request, and keeps what is answered."""

    def __init__(self, request):
        self.request, self.answer = io.BytesIO(request), b""

    def makefile(self, mode, buffering):
        return self.request

    def sendall(self, data):
        self.answer += bytes(data)

    def settimeout(self, seconds):
        pass


@cache
def _server():
    return Server(0, None, {})


def read_question(case):
    """Have an output that is opened answer a request, as the server of `view` does."""
    asked, server, fell = _Questions(open_output(Path())), _server(), []
    server.page, server.asks = (
        lambda nonce: str(parts_of(asked._output.page)),
        asked.asks,
    )  # without the scripts of Vega
    request = case.files["request"].replace(_TOKEN, server.token.encode())
    connection = _Connection(request.replace(_PORT, str(server.server_port).encode()))
    before, threading.excepthook = threading.excepthook, fell.append
    late = Timer(_LONGEST_S, asked._give_up)
    late.start()
    try:
        _Handler(connection, ("127.0.0.1", 1), server)
        with asked._busy:  # what was given up has ended
            pass
    finally:
        late.cancel()
        threading.excepthook = before
    for each in fell:
        raise each.exc_value
    head, _, body = connection.answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ConfigError(head.partition(b"\r\n")[0].decode("latin-1"))
    if b"application/json" in head:
        for line in body.splitlines():
            told = decode_json(line.decode(), most_bytes=10**9)
            if isinstance(told, dict) and "error" in told:
                raise ConfigError(told["error"])
