"""Whose packs this node takes: those that somebody signed whom the store's `allowed_signers` names.

The file is that of ssh-keygen(1), ALLOWED SIGNERS. A store without one takes every pack of those who
may write to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from . import store as stores
from .commands import NOT_STARTED, last_line, which
from .errors import NodeError
from .store_files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .store import Store, StoredPack

SIGNERS, NAMESPACE = "allowed_signers", "provision-pack"
KEYGEN_S = 20.0


def require_signed(
    store: Store, pack: StoredPack, signed: Mapping[str, str] | None, run: Mapping[str, str]
) -> None:
    """Raise NodeError (not-signed, older-pack) if this store does not take a pack.

    signed: the statement of who signed it, and the signature. run: `allow_older` takes a pack that
    was signed before the active one.
    """
    signers = store.join(SIGNERS)
    if not os.path.lexists(signers):
        return
    if not signed:
        raise NodeError("not-signed", f"{pack.key} has no signature, and {signers} demands one")
    content, signature = signed["statement"].encode(), signed["signature"].encode()
    verify_signature(content, signature, signers, NAMESPACE)
    statement = json.loads(content)
    if statement.get("key") != pack.key or statement.get("sha256") != pack.sha256:
        raise NodeError("not-signed", f"the signature of {pack.key} is for another pack")
    active = stores.active_key(store, pack.name)
    before = read_json(_record(store, active)) if active else None
    if before is None or run.get("allow_older"):
        return
    signed_at, before_at = statement.get("signed_at"), json.loads(before["statement"])["signed_at"]
    if str(signed_at) < before_at:
        raise NodeError("older-pack", f"{pack.key} was signed {signed_at}, {active} {before_at}")


def record_signature(store: Store, key: str, signed: Mapping[str, str]) -> None:
    write_json(_record(store, key), signed)


def recorded_signature(store: Store, key: str) -> Mapping[str, str] | None:
    """What came with a pack that is here."""
    return read_json(_record(store, key))


def _record(store: Store, key: str) -> str:
    return store.join("images", f"{key}.signature")


def verify_signature(content: bytes, signature: bytes, signers: str, namespace: str) -> str:
    """Who of the allowed signers signed the content: the principal that the file names.

    Raises NodeError (not-signed) if none did.
    """
    with tempfile.NamedTemporaryFile(suffix=".sig") as file:
        file.write(signature)
        file.flush()
        options = ["-s", file.name, "-f", signers]
        status, output = _keygen(["find-principals", *options], b"")
        for name in output.splitlines() if status == 0 else ():
            status, output = _keygen(["verify", "-n", namespace, "-I", name, *options], content)
            if status == 0:
                return name
    raise NodeError("not-signed", f"no signer that {signers} allows signed these bytes ({output})")


def _keygen(arguments: list[str], content: bytes) -> tuple[int, str]:
    try:
        result = subprocess.run(
            [which("ssh-keygen") or "ssh-keygen", "-Y", *arguments],
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=KEYGEN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return NOT_STARTED, str(error)
    output = result.stdout
    return result.returncode, output.decode() if result.returncode == 0 else last_line(output)
