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
from dataclasses import asdict, dataclass
from typing import IO, TYPE_CHECKING, Any, List

from ..report.codec import decode
from . import store as stores
from . import store_files as files
from .errors import NodeError, of_system_error
from .store import Store, StoredPack, parse_pack
from .store_access import open_file, require_safe
from .store_journal import append_journal
from .store_lock import locked, require_caller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # How many bytes came, and from which node; or how many were sent, and who did not get them.
    Transfer = dict[str, str | int | None]

CHUNK = 1 << 20
SEND_BYTES = 16 << 20
# Another node may start to serve a little later than we ask it.
CONNECT_S = 20.0
CONNECT_POLL_S = 0.2
# No byte arrives for this time: the other side hangs.
SILENCE_S = 30.0
TRIES = 3


@dataclass(frozen=True)
class _Peer:
    """A node that serves an image. node: as messages name it. addresses: to be tried in turn."""

    node: str
    addresses: List[str]
    port: int


def receive(path: str, pack: Mapping[str, object], run: Mapping[str, str], offset: int) -> Transfer:
    """Append what follows on standard input to the part of an image, from `offset` on, and verify
    the image once it is whole.

    The caller sends nothing where the whole image has arrived already. Raises NodeError (cut-off,
    wrong-bytes, disk-full).
    """
    store, packed = Store(path, run), parse_pack(pack)
    with locked(store, packed.name, run):
        size = offset + _append(store, packed, offset, sys.stdin.buffer)
        if size < packed.size:
            raise NodeError("cut-off", f"{size} of {packed.size} bytes have arrived")
        _commit(store, packed, run)
    return {"received": size - offset, "source": "caller"}


def fetch(
    path: str,
    pack: Mapping[str, object],
    run: Mapping[str, str],
    server: Mapping[str, object],
    token: str,
) -> Transfer:
    """Fetch the rest of an image from a node that serves it, and verify it.

    server: `node`, as messages name it; `addresses`, to be tried in turn; `port`. Raises NodeError
    (peer-unreachable, peer-failed, wrong-bytes, disk-full).
    """
    store, packed = Store(path, run), parse_pack(pack)
    peer: _Peer = decode(_Peer, server, "the server")
    with locked(store, packed.name, run):
        start = offset = min(stores.received_bytes(store, packed), packed.size)
        problem = "no more bytes"
        for _ in range(TRIES):
            try:
                # Fetch until all is there or the connection ends.
                connection = _connect(peer, offset, packed, token)
                try:
                    # An HTTP/1.0 response takes the socket over from its connection.
                    with connection.getresponse() as response:
                        if response.status != 206:
                            message = f"{peer.node} responded {response.status} {response.reason}"
                            raise NodeError("peer-failed", message)
                        _append(store, packed, offset, response)
                finally:
                    connection.close()
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
        _commit(store, packed, run)
    return {"received": packed.size - start, "source": peer.node}


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
        require_caller()
        time.sleep(CONNECT_POLL_S)


def _append(
    store: Store, pack: StoredPack, offset: int, source: IO[bytes] | http.client.HTTPResponse
) -> int:
    """Write what comes to the part of an image, from `offset` on; returns how many bytes came. A part
    that does not fit on the disk is removed: it would keep the disk full."""
    part = store.part(pack)
    descriptor = open_file(store, part, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_size < offset:
            raise NodeError("cut-off", f"{part} is shorter than {offset} bytes")
        os.ftruncate(descriptor, offset)
        os.lseek(descriptor, offset, os.SEEK_SET)
        copied, length = 0, max(0, pack.size - offset)
        while chunk := source.read(min(CHUNK, length - copied)):
            files.write_all(descriptor, memoryview(chunk))
            copied += len(chunk)
            require_caller()
        os.fsync(descriptor)
        return copied
    except (ConnectionError, socket.timeout):
        raise
    except OSError as error:
        error.filename = error.filename or part
        failure = of_system_error(error)
        if failure.reason in ("disk-full", "no-inodes"):
            os.unlink(part)
        raise failure from error
    finally:
        os.close(descriptor)


def verify(path: str, pack: Mapping[str, object], run: Mapping[str, str]) -> Transfer:
    """Verify an image that is here already: one that has arrived wholly, or one in `images/` that
    was copied there by other means. Raises NodeError (not-here, wrong-bytes)."""
    store, packed = Store(path, run), parse_pack(pack)
    with locked(store, packed.name, run):
        if stores.received_bytes(store, packed) == packed.size:
            _commit(store, packed, run)
        else:
            image = store.image(packed)
            if not os.path.exists(image):
                raise NodeError("not-here", f"there is no {image}")
            if os.stat(image).st_size != packed.size or file_sha256(image) != packed.sha256:
                raise NodeError("wrong-bytes", f"{image} holds other bytes")
            _record_verified(store, packed, image)
            append_journal(store, "verified", run, name=packed.name, key=packed.key)
    return {"received": 0, "source": None}


def _record_verified(store: Store, pack: StoredPack, image: str) -> None:
    files.write_json(store.description(pack.key), asdict(pack))
    record = stores.verified_record(os.stat(image), pack.sha256)
    files.write_json(store.verified(pack.key), record)


def _commit(store: Store, pack: StoredPack, run: Mapping[str, str]) -> None:
    """Verify a part that has arrived wholly and move it to `images/`.

    The rename comes last: an image without a record that names it was not verified. Wrong bytes are
    removed, so that the next transfer begins anew.
    """
    part, image = store.part(pack), store.image(pack)
    digest = file_sha256(part)
    if digest != pack.sha256:
        os.unlink(part)
        raise NodeError(
            "wrong-bytes",
            f"{part} arrived with sha256 {digest[:16]} instead of {pack.sha256[:16]}",
        )
    os.close(open_file(store, part, os.O_RDONLY))  # another program may have brought it
    _record_verified(store, pack, part)
    os.replace(part, image)
    for suffix in stores.SUFFIXES.values():  # the same environment in another format
        if not image.endswith(suffix):
            files.remove_file(store.join("images", pack.key + suffix))
    files.sync_directory(os.path.dirname(image))
    append_journal(store, "verified", run, name=pack.name, key=pack.key)


def file_sha256(path: str) -> str:
    """The hash of a file as the disk has it: what is in memory only is written and dropped first."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            require_caller()
    return digest.hexdigest()


def serve(
    path: str,
    pack: Mapping[str, object],
    port: int,
    tokens: Sequence[str],
    idle_s: float,
    run: Mapping[str, str],
) -> Transfer:
    """Serve a verified image to other nodes, once to the holder of each token.

    Ends when all have it, when nobody has read anything for `idle_s`, or when the caller is gone.
    Returns the number of bytes that were sent. Raises NodeError (unsafe-store, not-verified,
    port-in-use).
    """
    store, packed = Store(path, run), parse_pack(pack)
    require_safe(store)
    if not stores.is_verified(store, packed):
        raise NodeError("not-verified", f"{store.image(packed)} was not verified")
    try:
        server = _Server(port, store.image(packed), tokens)
    except OSError as error:
        raise NodeError("port-in-use", f"port {port}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        while server.open_tokens and time.monotonic() - server.last_read < idle_s:
            require_caller()
            time.sleep(CONNECT_POLL_S)
    finally:
        server.shutdown()
        server.server_close()
    return {"sent": server.sent, "not_served": len(server.open_tokens)}


def exchange(role: str, **arguments: Any) -> Transfer:
    """Serve or fetch: in one round of a shipment some nodes do this and others that."""
    action = serve if role == "serve" else fetch
    return action(**arguments)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Responds to `GET /KEY` with a token, from the offset of its Range on."""

    server: _Server
    timeout = SILENCE_S

    def do_GET(self) -> None:
        token = self.server.token_of(self.headers.get("Authorization", ""))
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if token is None or match is None:
            self.send_error(403)
            return
        offset = int(match[1])
        with open(self.server.image, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {offset}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - offset))
            self.end_headers()
            while offset < size:
                count = self.connection.sendfile(file, offset, SEND_BYTES)
                offset += count
                self.server.add(count)
        self.server.open_tokens.discard(token)

    def log_message(self, *arguments: object) -> None:
        """Standard error is for errors."""


class _Server(http.server.ThreadingHTTPServer):
    """Serves one image. Listens on IPv6 and IPv4 where the machine has both.

    open_tokens: of those who still wait for the image. last_read: when somebody last read of it.
    """

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, port: int, image: str, tokens: Sequence[str]) -> None:
        self.image, self.open_tokens = image, set(tokens)
        self.sent, self.last_read = 0, time.monotonic()
        self._lock = threading.Lock()
        super().__init__(("", port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer would also look up the machine's own name, which can take long.
        socketserver.TCPServer.server_bind(self)

    def token_of(self, header: str) -> str | None:
        for token in tuple(self.open_tokens):
            if hmac.compare_digest(header.encode(), f"Bearer {token}".encode()):
                return token
        return None

    def add(self, count: int) -> None:
        with self._lock:
            self.sent += count
            self.last_read = time.monotonic()
