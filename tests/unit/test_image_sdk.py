"""An engine that goes away in the middle of an answer: one of this test's, which says as much as an engine does before it is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from provision.errors import Unreachable
from provision.pipeline.image import sdk


class Engine(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        content = b'{"ApiVersion": "1.41"}' if self.path.endswith("/version") else b"OK"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        said = b'{"stream": "Loading layer"}\r\n'
        self.wfile.write(b"%x\r\n%s\r\n100\r\nhalf of" % (len(said), said))
        self.close_connection = True

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[sdk.Client]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
    client, reason = sdk.engine()
    assert client is not None, reason
    yield client
    client.close()
    server.shutdown()
    server.server_close()


def test_an_engine_that_goes_away_while_it_answers_is_named(engine: sdk.Client) -> None:
    with pytest.raises(Unreachable, match="could not load the image"), sdk.speaking("load the image"):
        engine.images.load(b"layers")
