"""A store of objects for tests: moto's S3 behind a real HTTP server of this process, which can be told to fail, and what it was asked."""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.conftest import absence

for package in ("moto", "flask_cors", "s3fs"):
    if importlib.util.find_spec(package) is None:
        absence(
            "s3fs", f"{package} is not installed, which a store of objects on this machine needs"
        )

BUCKET = "bucket"
ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>{}</Message></Error>'
ACCESS_DENIED = ("403 Forbidden", "AccessDenied", "Access Denied")
INTERNAL_ERROR = ("500 Internal Server Error", "InternalError", "We encountered an internal error")
Start = Callable[..., Any]
App = Callable[[dict[str, Any], Start], Iterable[bytes]]


@dataclass
class S3:
    """request_lines: every request in order, as "PUT /bucket/key". fault: called with each before it is served, and, after it was, with it
    and "done"; what it returns instead of None is the answer: one of the errors above, or "drop" for none at all."""

    app: App
    request_lines: list[str] = field(default_factory=list)
    fault: Callable[[str], tuple[str, str, str] | str | None] = lambda _: None
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def options(self) -> dict[str, Any]:
        """What opens a root here; a request that fails is not tried again by botocore, only by s3fs."""
        return {
            "endpoint_url": f"http://127.0.0.1:{self.port}",
            "key": "test",
            "secret": "test",
            "client_kwargs": {"region_name": "us-east-1"},
            "config_kwargs": {"retries": {"max_attempts": 1}},
        }

    @functools.cached_property
    def client(self) -> Any:
        """A client that shares nothing with the code under test, and remembers no listing. Making
        one takes longer than what a test asks of it."""
        import s3fs

        return s3fs.S3FileSystem(**self.options, use_listings_cache=False, skip_instance_cache=True)

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        request_line = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        with self._lock:
            self.request_lines.append(request_line)
        outcome = self.fault(request_line)
        if isinstance(outcome, str):  # "drop"
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError  # which werkzeug takes for a client that has left
        if outcome is not None:
            status, code, message = outcome
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start(status, [("Content-Type", "application/xml")])
            return [] if request_line.startswith("HEAD") else [ERROR.format(code, message).encode()]
        answer = list(self.app(environ, start))
        self.fault(f"{request_line} done")
        return answer

    def of(self, method: str, within: str) -> list[str]:
        """The keys that were asked for by one method below a root, in order."""
        start = f"{method} /{within.partition('://')[2]}/"
        return [line[len(start) :] for line in self.request_lines if line.startswith(start)]


@contextmanager
def serve() -> Iterator[S3]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            """Nothing of it."""

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    store = S3(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, store, threaded=True, request_handler=Quiet)
    store.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{store.port}/{BUCKET}", method="PUT")
        ).close()
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def matching(
    pattern: str, answer: tuple[str, str, str] | str, first: int = 1
) -> Callable[[str], tuple[str, str, str] | str | None]:
    """A fault at requests that match, from the nth such on."""
    matches = 0

    def fault(request_line: str) -> tuple[str, str, str] | str | None:
        nonlocal matches
        if not re.search(pattern, request_line):
            return None
        matches += 1
        return answer if matches >= first else None

    return fault
