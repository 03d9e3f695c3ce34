"""An HTTP server of a folder that injects faults on request, as a broken mirror would."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

# A number is an HTTP status. truncate: half of the file, then the connection ends. wrong: other bytes of the same length. stall: half,
# then silence. drop: no answer at all. slow: a tenth at a time. trickle: a byte at a time. no-head: HEAD is not allowed. no-range: the
# whole file whatever is asked.
Fault = (
    int | Literal["truncate", "wrong", "stall", "drop", "slow", "trickle", "no-head", "no-range"]
)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.folder = folder
        self.faults: list[tuple[str, Fault, int]] = []
        self.log: list[str] = []
        self.ranges: list[str] = []
        self.authorization: str | None = None  # the header that every request must have
        self.over = threading.Event()
        self._counting = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def fault(self, part: str, kind: Fault, times: int = 10**6) -> None:
        """What becomes of requests for a path that holds `part`, so many times."""
        self.faults.append((part, kind, times))

    def clear(self) -> None:
        self.faults.clear()
        self.log.clear()
        self.ranges.clear()

    def take(self, path: str) -> Fault | None:
        with self._counting:
            self.log.append(path)
            for number, (part, kind, left) in enumerate(self.faults):
                if part in path and left:
                    self.faults[number] = (part, kind, left - 1)
                    return kind
            return None

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave are what is tested."""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    thread = threading.Thread(
        target=functools.partial(socketserver.BaseServer.serve_forever, server, 0.02), daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def is_refused(self) -> bool:
        expected = self.server.authorization
        if expected is None or self.headers.get("Authorization") == expected:
            return False
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Basic")
        self.send_header("Content-Length", "0")
        self.end_headers()
        return True

    def do_HEAD(self) -> None:
        if self.is_refused():
            return
        kind = self.server.take(f"HEAD {self.path}")
        if kind == "no-head":
            self.send_error(405)
        elif isinstance(kind, int):
            self.send_error(kind)
        elif kind == "drop":
            self.close_connection = True
        else:
            super().do_HEAD()

    def do_GET(self) -> None:
        if self.is_refused():
            return
        kind = self.server.take(self.path)
        path = Path(self.directory, unquote(urlsplit(self.path).path).lstrip("/"))
        if isinstance(kind, int):
            self.send_error(kind)
        elif kind == "drop":
            self.close_connection = True
        elif path.is_dir() and self.path.endswith("/"):
            self._send(path / "index.html", kind)
        elif not path.is_file():
            self.send_error(404)
        else:
            self._send(path, kind)

    def _send(self, path: Path, kind: Fault | None) -> None:
        content = path.read_bytes()
        requested_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if requested_range and kind != "no-range":
            self.server.ranges.append(requested_range[0])
            begin, end = (
                int(requested_range[1]),
                min(int(requested_range[2] or len(content)) + 1, len(content)),
            )
            if begin >= len(content):
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
            content = content[begin:end]
        else:
            self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if kind in ("truncate", "stall"):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if kind == "stall":
                self.server.over.wait()
            self.close_connection = True
        elif kind in ("slow", "trickle"):
            step = max(1, len(content) // 10) if kind == "slow" else 1
            for begin in range(0, len(content), step):
                if self.server.over.is_set():
                    break
                self.wfile.write(content[begin : begin + step])
                self.wfile.flush()
                self.server.over.wait(0.05)
        else:
            self.wfile.write(b"x" * len(content) if kind == "wrong" else content)
        return None

    def log_message(self, format: str, *args: object) -> None: ...
