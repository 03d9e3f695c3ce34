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
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any

from . import store as stores
from . import store_files as files
from .errors import NodeError, of_system_error
from .store import Store, StoredPack, parse_pack
from .store_access import open_file, require_safe
from .store_journal import append_journal
from .store_lock import locked, require_caller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CHUNK = 1 << 20
SEND_BYTES = 16 << 20
# Another node may start to serve a little later than we ask it.
CONNECT_S = 20.0
CONNECT_POLL_S = 0.2
# No byte arrives for this time: the other side hangs.
SILENCE_S = 30.0


def receive(
    path: str, pack: Mapping[str, object], run: Mapping[str, str], offset: int
) -> dict[str, int]:
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
    return {"size": packed.size}


def fetch(
    path: str,
    pack: Mapping[str, object],
    run: Mapping[str, str],
    node: str,
    addresses: Sequence[str],
    port: int,
    token: str,
) -> dict[str, int]:
    """Fetch the rest of an image from a node that serves it, and verify it.

    node: as messages name it. addresses: of it, to be tried in turn. Raises NodeError
    (peer-unreachable, peer-failed, wrong-bytes, disk-full).
    """
    store, packed = Store(path, run), parse_pack(pack)
    with locked(store, packed.name, run):
        offset = min(stores.received_bytes(store, packed), packed.size)
        headers = {"Authorization": f"Bearer {token}", "Range": f"bytes={offset}-"}
        connection = _connect(node, addresses, port, f"/{packed.key}", headers)
        try:
            # An HTTP/1.0 response takes the socket over from its connection.
            with connection.getresponse() as response:
                if response.status != 206:
                    message = f"{node} responded {response.status} {response.reason}"
                    raise NodeError("peer-failed", message)
                offset += _append(store, packed, offset, response)
            problem = "no more bytes"
        except (http.client.HTTPException, socket.timeout, ConnectionError) as error:
            problem = str(error)
        finally:
            connection.close()
        if offset < packed.size:
            offset = stores.received_bytes(store, packed)
            message = f"{node} broke off after {offset} of {packed.size} bytes: {problem}"
            raise NodeError("peer-failed", message)
        _commit(store, packed, run)
    return {"size": packed.size}


def _connect(
    node: str, addresses: Sequence[str], port: int, path: str, headers: dict[str, str]
) -> http.client.HTTPConnection:
    """A connection on which the request was sent."""
    end = time.monotonic() + CONNECT_S
    problem = ""
    while True:
        for address in addresses:
            connection = http.client.HTTPConnection(address, port, timeout=SILENCE_S)
            try:
                connection.request("GET", path, headers=headers)
                return connection
            except OSError as error:
                connection.close()
                problem = f"{address}:{port}: {error.strerror or error}"
        if time.monotonic() > end:
            raise NodeError("peer-unreachable", f"{node} at {problem}")
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
    files.write_json(store.description(pack.key), asdict(pack))
    record = stores.verified_record(os.stat(part), pack.sha256)
    files.write_json(store.verified(pack.key), record)
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
) -> dict[str, int]:
    """Serve a verified image to other nodes, once to the holder of each token.

    Ends when all have it, when nobody has read anything for `idle_s`, or when the caller is gone.
    Raises NodeError (unsafe-store, not-verified, port-in-use).
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
    return {"size": packed.size}


def exchange(role: str, **arguments: Any) -> dict[str, int]:
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
                offset += self.connection.sendfile(file, offset, SEND_BYTES)
                self.server.last_read = time.monotonic()
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
        self.last_read = time.monotonic()
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
