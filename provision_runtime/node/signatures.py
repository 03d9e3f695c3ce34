"""Whose packs this node takes: those that somebody signed whom the store's `allowed_signers` names.

The file is that of ssh-keygen(1), ALLOWED SIGNERS. Without one, in the store or in the lab's lab.yml, a
store takes every pack of those who may write to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import TYPE_CHECKING

from . import store as stores
from .commands import which
from .errors import NodeError
from .store_access import require_safe_path
from .store_files import read_json, write_json

if TYPE_CHECKING:
    from .results import Texts
    from .store import Store, StoredPack

SIGNERS, NAMESPACE = "allowed_signers", "provision-pack"
KEYGEN_S = 20.0


def require_signed(store: Store, pack: StoredPack, signed: Texts | None, run: Texts) -> None:
    """Raise NodeError (not-signed, older-pack, unsafe-store) if this store does not take a pack.

    signed: the statement of who signed it, and the signature. run: `signers` are those of the lab's
    lab.yml, which count where the store names none; `allow_older` takes a pack that was signed
    before the active one.
    """
    signers = store.join(SIGNERS)
    if os.path.lexists(signers):
        require_safe_path(store, signers)
        statement = _signed_statement(pack, signed, signers)
    elif run.get("signers"):
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(run["signers"])
            file.flush()
            try:
                statement = _signed_statement(pack, signed, file.name)
            except NodeError as error:
                message = error.message.replace(file.name, f"the lab's {SIGNERS}")
                raise NodeError(error.reason, message) from error
    else:
        return
    active = stores.active_key(store, pack.name)
    before = read_json(_record(store, active)) if active else None
    if before is None or run.get("allow_older"):
        return
    signed_at = statement.get("signed_at") or ""
    before_at = json.loads(before["statement"]).get("signed_at") or ""
    if str(signed_at) < str(before_at):
        raise NodeError("older-pack", f"{pack.key} was signed {signed_at}, {active} {before_at}")


def _signed_statement(pack: StoredPack, signed: Texts | None, signers: str) -> dict[str, object]:
    if not signed:
        raise NodeError("not-signed", f"{pack.key} has no signature, and {signers} demands one")
    content = signed["statement"].encode()
    verify_signature(content, signed["signature"].encode(), signers, NAMESPACE)
    statement: dict[str, object] = json.loads(content)
    if statement.get("key") != pack.key or statement.get("sha256") != pack.sha256:
        raise NodeError("not-signed", f"the signature of {pack.key} is for another pack")
    return statement


def record_signature(store: Store, key: str, signed: Texts) -> None:
    write_json(_record(store, key), signed)


def recorded_signature(store: Store, key: str) -> Texts | None:
    """What came with a pack that is here."""
    return read_json(_record(store, key))


def _record(store: Store, key: str) -> str:
    return store.join("images", f"{key}.signature")


def verify_signature(content: bytes, signature: bytes, signers: str, namespace: str) -> str:
    """Who of the allowed signers signed the content: the principal that the file names.

    Raises NodeError (not-signed) if none did.
    """
    if not os.path.isfile(signers):  # ssh-keygen would wait for a pipe
        raise NodeError("not-signed", f"{signers} is not a file")
    with tempfile.NamedTemporaryFile(suffix=".sig") as file:
        file.write(signature)
        file.flush()
        options = ["-s", file.name, "-f", signers]
        names, why = _keygen(["find-principals", *options], b"")
        for name in names:
            output, why = _keygen(["verify", "-n", namespace, "-I", name, *options], content)
            if output:
                return name
    raise NodeError("not-signed", f"no signer that {signers} allows signed these bytes ({why})")


def _keygen(arguments: list[str], content: bytes) -> tuple[list[str], str]:
    """The lines that it printed, none if it failed; and its first message, which names the cause:
    a key that has expired or may not sign this, a file that cannot be read."""
    try:
        result = subprocess.run(
            [which("ssh-keygen") or "ssh-keygen", "-Y", *arguments],
            input=content,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=KEYGEN_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    messages = (result.stderr + result.stdout).decode(errors="replace").strip()
    if result.returncode:
        # Nodes with one fault have one message: not the second at which each looked.
        return [], messages.partition("\n")[0].partition(": verify time")[0].strip()
    return result.stdout.decode(errors="replace").splitlines(), ""
