"""An HTTP proxy in front of a server that drops, delays, truncates, rejects, or is down."""

import http.client
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOPS = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True)
class Fault:
    """A fault of one request."""

    kind: str  # drop it; lose or truncate its answer; status instead; hang until released
    status: int = 0


# (method, path) to what goes wrong with the request; None: nothing.
Plan = Callable[[str, str], Fault | None]


def forward(method: str, path: str) -> None:
    """Plan no fault."""


class FaultyProxy:
    """Forwards requests to a server, unless a plan defines a fault."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._server: ThreadingHTTPServer | None = None
        self._port = 0
        self._released = threading.Event()
        self._lock = threading.Lock()
        self._plan: Plan = forward
        self.faults = 0
        self.requests: list[tuple[str, str]] = []  # that reached the server: method and path
        self.up()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def follow(self, plan: Plan = forward) -> None:
        self._plan = plan

    def up(self) -> None:
        """Listen, on the same port as before."""
        server = _Server(("127.0.0.1", self._port), self._handler())
        self._port = server.server_address[1]
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        """Stop, and release suspended requests."""
        self.release()
        self.down()

    def release(self) -> None:
        with self._lock:
            self._released.set()
            self._released = threading.Event()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"  # a connection a request: a fault hits one request

            def handle_one_request(self) -> None:
                with suppress(OSError):
                    super().handle_one_request()

            def do(self) -> None:
                proxy._handle(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        with self._lock:
            fault, released = self._plan(request.command, request.path), self._released
            kind = fault.kind if fault else "none"
            self.faults += fault is not None
            if kind in ("none", "lose", "truncate"):
                self.requests.append((request.command, request.path))
        if kind == "hang":
            released.wait()
        if kind in ("hang", "drop"):
            return
        if kind == "status":
            request.send_response(fault.status)
            request.send_header("Retry-After", "3600")
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        with closing(http.client.HTTPConnection(*self._upstream, timeout=60)) as connection:
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOPS}
            connection.request(request.command, request.path, body, headers)
            response = connection.getresponse()
            content = response.read()
        if kind == "lose":
            return
        request.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in _HOPS:
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content[: len(content) // 2] if kind == "truncate" else content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that has closed its connection."""


def every(number: int, faults: list[Fault], part: str = "") -> Plan:
    """Return a plan in which one request in ``number`` fails, in these ways in turn."""
    num_seen = [0]

    def plan(method: str, path: str) -> Fault | None:
        if part not in path:
            return None
        num_seen[0] += 1
        if num_seen[0] % number:
            return None
        return faults[(num_seen[0] // number - 1) % len(faults)]

    return plan
