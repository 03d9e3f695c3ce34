"""An image on its way to this node: received over the caller's connection or fetched from a node
that has it, then verified from the disk, and served to other nodes.

What has arrived stays in `staging/` when a transfer is cut off, and the next one goes on from
there. Nothing in `images/` was not verified.
"""

from __future__ import annotations

import hashlib
import hmac
import os
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

    from .results import Texts

CHUNK = 1 << 20
SEND_BYTES = 16 << 20
# Another node may start to serve a little later than we ask it.
CONNECT_S = 20.0
CONNECT_POLL_S = 0.2
# No byte arrives for this time: the other side hangs.
SILENCE_S = 30.0
# A node that serves asks for a line of at most so many bytes, and begins its response with ACCEPTED.
LONGEST_REQUEST, ACCEPTED = 128, b"accepted\n"


def receive(path: str, pack: Mapping[str, object], run: Texts, offset: int) -> dict[str, int]:
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
    run: Texts,
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
        problem = "no more bytes"
        try:
            with _connect(node, addresses, port) as connection:
                connection.sendall(f"{token} {offset}\n".encode())
                with connection.makefile("rb") as source:
                    if source.readline(len(ACCEPTED)) != ACCEPTED:
                        raise NodeError("peer-failed", f"{node} does not accept the request")
                    offset += _append(store, packed, offset, source)
        except (socket.timeout, ConnectionError) as error:
            problem = str(error)
        if offset < packed.size:
            offset = stores.received_bytes(store, packed)
            message = f"{node} broke off after {offset} of {packed.size} bytes: {problem}"
            raise NodeError("peer-failed", message)
        _commit(store, packed, run)
    return {"size": packed.size}


def _connect(node: str, addresses: Sequence[str], port: int) -> socket.socket:
    end = time.monotonic() + CONNECT_S
    problem = ""
    while True:
        for address in addresses:
            try:
                return socket.create_connection((address, port), timeout=SILENCE_S)
            except OSError as error:
                problem = f"{address}:{port}: {error.strerror or error}"
        if time.monotonic() > end:
            raise NodeError("peer-unreachable", f"{node} at {problem}")
        require_caller()
        time.sleep(CONNECT_POLL_S)


def _append(store: Store, pack: StoredPack, offset: int, source: IO[bytes]) -> int:
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


def _commit(store: Store, pack: StoredPack, run: Texts) -> None:
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
    run: Texts,
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


class _Handler(socketserver.StreamRequestHandler):
    """Responds to a line with a token and an offset: ACCEPTED, and the image from there on."""

    server: _Server
    timeout = SILENCE_S

    def handle(self) -> None:
        token, _, start = self.rfile.readline(LONGEST_REQUEST).partition(b" ")
        server = self.server
        is_known = any(hmac.compare_digest(item, token) for item in tuple(server.open_tokens))
        if not is_known or not start.strip().isdigit():
            return
        offset = int(start)
        with open(server.image, "rb") as file:
            self.connection.sendall(ACCEPTED)
            while count := self.connection.sendfile(file, offset, SEND_BYTES):
                offset += count
                server.last_read = time.monotonic()
        server.open_tokens.discard(token)


class _Server(socketserver.ThreadingTCPServer):
    """Serves one image. Listens on IPv6 and IPv4 where the machine has both.

    open_tokens: of those who still wait for the image. last_read: when somebody last read of it.
    """

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    allow_reuse_address = daemon_threads = True

    def __init__(self, port: int, image: str, tokens: Sequence[str]) -> None:
        self.image, self.open_tokens = image, {token.encode() for token in tokens}
        self.last_read = time.monotonic()
        super().__init__(("", port), _Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
