"""An image on its way to this node: received over the caller's connection or fetched from a node
that has it, then verified from the disk, and served to other nodes.

What has arrived stays in `staging/` when a transfer is cut off, and the next one goes on from
there. Nothing in `images/` was not verified.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import http.server
import os
import re
import socket
import socketserver
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import store as stores
from .errors import NodeError, of_system_error
from .store import Store, StoredPack, parse_pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHUNK = 1 << 20
SEND_BYTES = 16 << 20
# Another node may start to serve a little later than we ask it.
CONNECT_S = 20.0
CONNECT_POLL_S = 0.2
# No byte arrives for this time: the other side hangs.
SILENCE_S = 30.0
TRIES = 3
# What is read again or written is checked for a caller that is gone this often.
CALLER_CHECK_BYTES = 64 << 20


@dataclass(frozen=True)
class _Peer:
    """A node that serves an image. node: as messages name it. addresses: to be tried in turn."""

    node: str
    addresses: Sequence[str]
    port: int


def receive(
    path: str,
    pack: Mapping[str, Any],
    sidecar: Mapping[str, Any],
    run: Mapping[str, str],
    offset: int,
) -> dict[str, Any]:
    """Append what follows on standard input to the part of an image, from `offset` on, and verify
    the image once it is whole.

    The caller sends nothing where the whole image has arrived already. Raises NodeError (cut-off,
    wrong-bytes, disk-full).
    """
    store, packed = Store(path, run), parse_pack(pack)
    with stores.locked(store, packed.name, run):
        part = store.part(packed)
        with _open_part(store, part, offset) as file:
            received = _copy(sys.stdin.buffer, file, packed.size - offset, part)
        if offset + received < packed.size:
            raise NodeError("cut-off", f"{offset + received} of {packed.size} bytes have arrived")
        _commit(store, packed, sidecar, run)
    return {"received": received, "source": "caller"}


def fetch(
    path: str,
    pack: Mapping[str, Any],
    sidecar: Mapping[str, Any],
    run: Mapping[str, str],
    server: Mapping[str, Any],
    token: str,
) -> dict[str, Any]:
    """Fetch the rest of an image from a node that serves it, and verify it.

    server: `node`, as messages name it; `addresses`, to be tried in turn; `port`. Raises NodeError
    (peer-unreachable, peer-failed, wrong-bytes, disk-full).
    """
    store, packed = Store(path, run), parse_pack(pack)
    peer = _Peer(**server)
    with stores.locked(store, packed.name, run):
        start = offset = min(stores.received_bytes(store, packed), packed.size)
        problem = "no more bytes"
        for _ in range(TRIES):
            try:
                _fetch_rest(store, offset, packed, peer, token)
            except (http.client.HTTPException, socket.timeout, ConnectionError) as error:
                problem = str(error)
            offset = stores.received_bytes(store, packed)
            if offset == packed.size:
                break
        else:
            raise NodeError(
                "peer-failed",
                f"{peer.node} broke off after {offset} of {packed.size} bytes: {problem}",
            )
        _commit(store, packed, sidecar, run)
    return {"received": packed.size - start, "source": peer.node}


def _fetch_rest(store: Store, offset: int, pack: StoredPack, server: _Peer, token: str) -> None:
    """Fetch until all is there or the connection ends."""
    part = store.part(pack)
    connection = _connect(server, offset, pack, token)
    try:
        # An HTTP/1.0 response takes the socket over from its connection.
        with connection.getresponse() as response:
            if response.status != 206:
                raise NodeError(
                    "peer-failed", f"{server.node} answered {response.status} {response.reason}"
                )
            with _open_part(store, part, offset) as file:
                _copy(response, file, pack.size - offset, part)
    finally:
        connection.close()


def _connect(
    server: _Peer, offset: int, pack: StoredPack, token: str
) -> http.client.HTTPConnection:
    """A connection on which the request was sent."""
    end = time.monotonic() + CONNECT_S
    headers = {"Authorization": f"Bearer {token}", "Range": f"bytes={offset}-"}
    problem = ""
    while True:
        for address in server.addresses:
            connection = http.client.HTTPConnection(address, server.port, timeout=SILENCE_S)
            try:
                connection.request("GET", f"/{pack.key}", headers=headers)
                return connection
            except OSError as error:
                connection.close()
                problem = f"{address}:{server.port}: {error.strerror or error}"
        if time.monotonic() > end:
            raise NodeError("peer-unreachable", f"{server.node} at {problem}")
        stores.require_caller()
        time.sleep(CONNECT_POLL_S)


def _open_part(store: Store, part: str, offset: int) -> Any:
    """The part of an image, open for writing at `offset`; what lies behind is cut off."""
    descriptor = stores.open_file(store, part, os.O_RDWR | os.O_CREAT)
    file = os.fdopen(descriptor, "r+b", buffering=0)
    if os.fstat(descriptor).st_size < offset:
        file.close()
        raise NodeError("cut-off", f"{part} is shorter than {offset} bytes")
    file.truncate(offset)
    file.seek(offset)
    return file


def _copy(source: Any, file: Any, length: int, part: str) -> int:
    """Copy up to `length` bytes; returns how many came. A part that does not fit on the disk is
    removed: it would keep the disk full."""
    copied = 0
    buffer = memoryview(bytearray(CHUNK))
    try:
        while copied < length:
            count = source.readinto(buffer[: min(CHUNK, length - copied)])
            if not count:
                break
            written = 0
            while written < count:
                written += file.write(buffer[written:count])
            if (copied + count) // CALLER_CHECK_BYTES > copied // CALLER_CHECK_BYTES:
                stores.require_caller()
            copied += count
        os.fsync(file.fileno())
    except (ConnectionError, socket.timeout):
        raise
    except OSError as error:
        error.filename = error.filename or part
        failure = of_system_error(error)
        if failure.reason in ("disk-full", "no-inodes"):
            os.unlink(part)
        raise failure from error
    return copied


def verify(
    path: str, pack: Mapping[str, Any], sidecar: Mapping[str, Any], run: Mapping[str, str]
) -> dict[str, Any]:
    """Verify an image that is here already: one that has arrived wholly, or one in `images/` that
    was copied there by other means. Raises NodeError (not-here, wrong-bytes)."""
    store, packed = Store(path, run), parse_pack(pack)
    with stores.locked(store, packed.name, run):
        if stores.received_bytes(store, packed) == packed.size:
            _commit(store, packed, sidecar, run)
        else:
            _adopt(store, packed, sidecar, run)
    return {"received": 0, "source": None}


def _adopt(
    store: Store, pack: StoredPack, sidecar: Mapping[str, Any], run: Mapping[str, str]
) -> None:
    image = store.image(pack)
    try:
        status = os.stat(image)
    except FileNotFoundError as error:
        raise NodeError("not-here", f"there is no {image}") from error
    if status.st_size != pack.size or file_sha256(image) != pack.sha256:
        raise NodeError("wrong-bytes", f"{image} holds other bytes")
    stores.write_json(store.sidecar(pack.key), sidecar)
    stores.write_json(store.verified(pack.key), stores.verified_record(status, pack.sha256))
    stores.append_journal(store, "verified", run, name=pack.name, key=pack.key)


def _commit(
    store: Store, pack: StoredPack, sidecar: Mapping[str, Any], run: Mapping[str, str]
) -> None:
    """Verify a part that has arrived wholly and move it to `images/`.

    The rename comes last: an image without a record that names it was not verified. Wrong bytes are
    removed, so that the next transfer begins anew.
    """
    part = store.part(pack)
    digest = file_sha256(part)
    if digest != pack.sha256:
        os.unlink(part)
        raise NodeError(
            "wrong-bytes",
            f"{part} arrived with sha256 {digest[:16]} instead of {pack.sha256[:16]}",
        )
    os.close(stores.open_file(store, part, os.O_RDONLY))  # another program may have brought it
    stores.write_json(store.sidecar(pack.key), sidecar)
    record = stores.verified_record(os.stat(part), pack.sha256)
    stores.write_json(store.verified(pack.key), record)
    os.replace(part, store.image(pack))
    for suffix in stores.SUFFIXES.values():  # the same environment in another format
        other = os.path.join(store.path, "images", pack.key + suffix)
        if other != store.image(pack):
            stores.remove_file(other)
    stores.sync_directory(os.path.dirname(store.image(pack)))
    stores.append_journal(store, "verified", run, name=pack.name, key=pack.key)


def file_sha256(path: str) -> str:
    """The hash of a file as the disk has it: what is in memory only is written and dropped first."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    total = 0
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while True:
            count = file.readinto(buffer)
            if not count:
                return digest.hexdigest()
            digest.update(buffer[:count])
            if (total + count) // CALLER_CHECK_BYTES > total // CALLER_CHECK_BYTES:
                stores.require_caller()
            total += count


def exchange(role: str, **arguments: Any) -> dict[str, Any]:
    """Serve or fetch: in one round of a shipment some nodes do this and others that."""
    return serve(**arguments) if role == "serve" else fetch(**arguments)


def serve(
    path: str,
    pack: Mapping[str, Any],
    port: int,
    tokens: Sequence[str],
    idle_s: float,
    run: Mapping[str, str] = stores.NO_RULES,
) -> dict[str, Any]:
    """Serve a verified image to other nodes, once to the holder of each token.

    Ends when all have it, when nobody has read anything for `idle_s`, or when the caller is gone.
    Returns the number of bytes that were sent. Raises NodeError (unsafe-store, not-verified,
    port-in-use).
    """
    store, packed = Store(path, run), parse_pack(pack)
    stores.require_safe(store)
    if not stores.is_verified(store, packed):
        raise NodeError("not-verified", f"{store.image(packed)} was not verified")
    progress = _Progress(tokens)
    try:
        server = _Server(("", port), _request_handler(store.image(packed), progress))
    except OSError as error:
        raise NodeError("port-in-use", f"port {port}: {error.strerror}") from error
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        while progress.open_tokens and time.monotonic() - progress.last_read < idle_s:
            stores.require_caller()
            time.sleep(CONNECT_POLL_S)
    finally:
        server.shutdown()
        server.server_close()
    return {"sent": progress.sent, "not_served": len(progress.open_tokens)}


class _Progress:
    """Who still waits for the image, and when somebody last read of it."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.open_tokens = list(tokens)
        self.last_read = time.monotonic()
        self.sent = 0
        self._lock = threading.Lock()

    def token_of(self, header: str) -> str | None:
        for token in tuple(self.open_tokens):
            if hmac.compare_digest(header.encode(), f"Bearer {token}".encode()):
                return token
        return None

    def add(self, count: int) -> None:
        with self._lock:
            self.sent += count
            self.last_read = time.monotonic()

    def close(self, token: str) -> None:
        with self._lock:
            if token in self.open_tokens:
                self.open_tokens.remove(token)


class _Server(http.server.ThreadingHTTPServer):
    """Listens on IPv6 and IPv4 where the machine has both."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer would also look up the machine's own name, which can take long.
        socketserver.TCPServer.server_bind(self)


def _request_handler(image: str, progress: _Progress) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers `GET /KEY` with a token, from the offset of its Range on."""

        timeout = SILENCE_S

        def do_GET(self) -> None:
            token = progress.token_of(self.headers.get("Authorization", ""))
            match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            if token is None or match is None:
                self.send_error(403)
                return
            offset = int(match[1])
            with open(image, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {offset}-{size - 1}/{size}")
                self.send_header("Content-Length", str(size - offset))
                self.end_headers()
                while offset < size:
                    count = self.connection.sendfile(file, offset, SEND_BYTES)
                    offset += count
                    progress.add(count)
            progress.close(token)

        def log_message(self, *arguments: object) -> None:
            """Standard error is for errors."""

    return Handler
