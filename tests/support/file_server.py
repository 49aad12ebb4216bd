"""A small, unreliable hub on 127.0.0.1: the resolve endpoint of one repository."""

import gzip
import hashlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

REPOSITORY = "someone/a-dataset"


@dataclass
class Hub:
    """The content of the server and its faults, with all requests."""

    files: dict[str, bytes] = field(default_factory=dict)
    repository: str = f"datasets/{REPOSITORY}"
    # One mood for each answer that carries a file; the last one stays. Moods: good, truncate (half
    # of the requested part, then the end), corrupt, stall (half, then silence), ignore
    # (a range), html (a web page in its place), loop (a redirection to itself), reset (half, then
    # a broken connection), gzip (compressed, though not asked for), short and long (a wrong length
    # of the body), endless (a body without an end; in chunks, or "huge" with a length that it
    # does not reach), drip (in pieces), moved (another part than the range), changed (other content
    # from now on), or a status such as 404; "503 9000" asks to come back after 9,000 seconds.
    moods: list[str] = field(default_factory=lambda: ["good"])
    # What it states that a file holds, where that is not so.
    sizes: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)

    def next_mood(self) -> str:
        return self.moods.pop(0) if len(self.moods) > 1 else self.moods[0]

    @property
    def ranges(self) -> list[str | None]:
        """Return the Range header of every GET of a file so far."""
        gets = [request for request in self.requests if request[0] == "GET"]
        return [requested for _, path, requested, _ in gets if "/resolve/" in path]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"served": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's)
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        hub = self.served
        requested_range = self.headers.get("Range")
        account = self.headers.get("Authorization")
        hub.requests.append((self.command, self.path, requested_range, account))
        prefix = f"/{hub.repository}/resolve/main/"
        path = urlsplit(self.path).path
        content = hub.files.get(path.removeprefix(prefix)) if path.startswith(prefix) else None
        mood = "404" if content is None else hub.next_mood() if with_body else "good"
        if mood[0].isdigit():
            status, *after = mood.split()
            self.send_response(int(status))
            if after:
                self.send_header("Retry-After", after[0])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if mood in ("html", "loop"):
            page = b"<html>Log in to this network</html>"
            self.send_response(302 if mood == "loop" else 200)
            if mood == "loop":
                self.send_header("Location", self.path)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        if mood == "changed":
            content = content[::-1]
            hub.files[path.removeprefix(prefix)] = content
        start = 0
        if requested_range and mood != "ignore":
            start = int(requested_range.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start and mood == "moved":
            start += 1
        if mood == "gzip":
            content, start = gzip.compress(content[start:]), 0
            self.send_header("Content-Encoding", "gzip")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        self.send_header("ETag", etag)
        self.send_header("X-Linked-Etag", etag)
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Accept-Ranges", "bytes")
        size = len(content) - start
        if not with_body:
            size = hub.sizes.get(path.removeprefix(prefix), size)
        size += {"short": -5, "long": 5, "huge": 10**18}.get(mood, 0)
        if mood == "endless chunks":
            self.send_header("Transfer-Encoding", "chunked")
        elif mood != "endless":
            self.send_header("Content-Length", str(size))
        self.end_headers()
        if mood.startswith("endless"):
            self._send_without_end(b"10000\r\n%s\r\n" if "chunks" in mood else b"%s")
            return
        if with_body:
            self._send_body(content[start:], mood)

    def _send_without_end(self, template: bytes) -> None:
        self.close_connection = True
        with suppress(OSError):  # the client has gone
            for _ in range(1000):
                self.wfile.write(template % bytes(2**16))

    def _send_body(self, body: bytes, mood: str) -> None:
        half = len(body) // 2
        if mood == "corrupt":
            body = body[:half] + bytes([body[half] ^ 0xFF]) + body[half + 1 :]
        with suppress(OSError):  # the client may have gone
            for piece in _split(body, 5 if mood == "drip" else 1):
                self.wfile.write(piece[:half] if mood in ("truncate", "stall", "reset") else piece)
                self.wfile.flush()
                if mood == "drip":
                    time.sleep(0.1)
            if mood == "stall":
                self.served.ended.wait(30)
        if mood == "reset":  # the kernel sends RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        if mood in ("truncate", "stall", "reset", "short", "long", "huge"):
            self.close_connection = True


def _split(body: bytes, number: int) -> list[bytes]:
    size = -(-len(body) // number)
    return [body[start : start + size] for start in range(0, len(body), size)]
