"""A page to a browser on this machine: who may ask, and what is answered. Knows HTTP, and nothing of what is asked.

The server is bound to the loopback address. Every request must carry the token of the address that is printed, which no
other user or page knows, and name this server as its host, so that no name of a foreign site that is bound to the
loopback address reaches it (DNS rebinding). Nothing is kept in the browser: no cookie, no cache.
"""

import hmac
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, islice
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qs

from scaleout.config.documents import decode_json, to_json

ADDRESS = "127.0.0.1"
_MOST_BODY_BYTES = 1 << 20
_MOST_CONNECTIONS = 32
"""At a time, each with a thread; a browser opens six. Where there are more, the oldest that has not asked yet ends."""
_ROOM_S = 1.0
"""How long a connection waits for the thread of one that has ended."""
_LENGTH = re.compile("[0-9]{1,9}")
_POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What the page may do; Vega compiles its expressions, which is what `unsafe-eval` allows."""

Ask = Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]]
"""From the body of a request to the lines of its answer; `BadQuestion` before the first if it asks for nothing."""


class BadQuestion(Exception):  # noqa: N818 - what it is
    """A question that no page of ours asks."""


class Server(ThreadingHTTPServer):
    """One page, and what its scripts may ask: path to function."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, port: int, page: Callable[[str], str], asks: Mapping[str, Ask]) -> None:
        self.page, self.asks = page, asks
        self.token = secrets.token_urlsafe(24)
        self.waiting: dict[Any, None] = {}  # sockets of which no whole request of the page has come, the oldest first
        self._room = BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((ADDRESS, port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{ADDRESS}:{self.server_port}/?token={self.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begin a thread for a connection; where there are too many, one that waits for a request ends, or this one."""
        if not self._room.acquire(blocking=False):
            for oldest in [*self.waiting][:1]:
                self.waiting.pop(oldest, None)
                with suppress(OSError):  # it has ended by itself
                    oldest.shutdown(socket.SHUT_RDWR)
            if not self._room.acquire(timeout=_ROOM_S):
                self.shutdown_request(request)
                return
        self.waiting[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no thread for it
            self._end(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, then make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def _end(self, request: Any) -> None:
        self.waiting.pop(request, None)
        self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a browser that has gone away; all else is a fault, and is printed."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "scaleout", ""
    timeout = 60

    def do_GET(self) -> None:
        """Give the page."""
        path, _, query = self.path.partition("?")
        if not self._may(parse_qs(query).get("token", [""])[0]):
            return
        self.server.waiting.pop(self.connection, None)
        if path != "/":
            self._give(404, "text/plain", b"no such page\n")
            return
        nonce = secrets.token_urlsafe(16)
        self._give(200, "text/html", self.server.page(nonce).encode(), policy=_POLICY.format(nonce=nonce))

    def do_POST(self) -> None:
        """Answer a question of the page's scripts, line by line as the answer is found."""
        if not self._may(self.headers.get("X-Token", "")):
            return
        ask = self.server.asks.get(self.path.partition("?")[0].strip("/"))
        length = self.headers.get("Content-Length", "")
        plain = self.headers.get_content_type() == "application/json"
        if ask is None or not plain or not _LENGTH.fullmatch(length) or int(length) > _MOST_BODY_BYTES:
            self._give(400, "text/plain", b"no such question\n")
            return
        try:
            body = decode_json(self.rfile.read(int(length)).decode())
        except ValueError:  # no JSON, or beyond a limit
            body = None
        self.server.waiting.pop(self.connection, None)
        try:
            lines = iter(ask(body if isinstance(body, dict) else {}))
            first = [*islice(lines, 1)]  # none of a question that is given up
        except BadQuestion:
            self._give(400, "text/plain", b"no such question\n")
            return
        self._head(200, "application/json")
        for line in chain(first, lines):
            self._line(line)

    def _line(self, line: Mapping[str, Any]) -> None:
        self.wfile.write(to_json(line).encode() + b"\n")
        self.wfile.flush()

    def _may(self, token: str) -> bool:
        """Whether the request is from the page; refuse it if not."""
        hosts = (f"{ADDRESS}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        origin = self.headers.get("Origin")
        known = self.headers.get("Host") in hosts and (origin is None or origin.removeprefix("http://") in hosts)
        if hmac.compare_digest(token.encode(), self.server.token.encode()) and known:
            return True
        self._give(403, "text/plain", b"not allowed: open the address that scaleout view printed\n")
        return False

    def _head(self, code: int, kind: str, *, policy: str = "default-src 'none'") -> None:
        self.send_response(code)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8", "Cache-Control": "no-store", "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()

    def _give(self, code: int, kind: str, body: bytes, *, policy: str = "default-src 'none'") -> None:
        self._head(code, kind, policy=policy)
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that http.server gives it
        """Say nothing of requests."""
