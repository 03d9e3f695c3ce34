"""The user's own keys and agent of OpenSSH."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from provision.core import process
from provision.core.errors import IntegrityError
from provision_runtime.node import signatures
from provision_runtime.node.errors import NodeError

COMMAND_TIMEOUT_S = 10.0
# Somebody types a passphrase, or touches a token.
SIGN_TIMEOUT_S = 120.0


def private_keys(folder: Path) -> list[Path]:
    """The keys in a user's .ssh that ssh tries by itself (`id_*`)."""
    files = [path for path in sorted(folder.glob("id_*")) if path.is_file()]
    return [path for path in files if path.suffix != ".pub"]


def public_key(key: Path) -> Path:
    return key.with_name(f"{key.name}.pub")


@cache
def locked_keys(folder: Path) -> tuple[Path, ...]:
    """The keys of a user's .ssh that ssh cannot use without asking: they have a passphrase, and no
    agent has them."""
    held = process.run(["ssh-add", "-L"], timeout_s=COMMAND_TIMEOUT_S, check=False).stdout
    keys = []
    for key in private_keys(folder):
        public = public_key(key)
        tokens = public.read_text(encoding="utf-8").split() if public.is_file() else []
        is_held = len(tokens) > 1 and tokens[1] in held
        is_private = not key.stat().st_mode & 0o077  # else ssh-keygen does not read it
        if is_private and not is_held:
            command = ["ssh-keygen", "-y", "-P", "", "-f", str(key)]
            if process.run(command, timeout_s=COMMAND_TIMEOUT_S, check=False).returncode != 0:
                keys.append(key)
    return tuple(keys)


def verify_signature(content: bytes, signature: bytes, signers: Path, namespace: str) -> str:
    """Who of the allowed signers signed the content: the principal that the file names.

    Raises IntegrityError if none did.
    """
    if not signers.is_file():
        raise IntegrityError(f"There is no {signers}, which says who may sign.")
    try:
        return signatures.verify_signature(content, signature, str(signers), namespace)
    except NodeError as error:
        raise IntegrityError(f"The signature does not count: {error.message}.") from error


def sign(content: str, key: Path, namespace: str) -> str:
    """The signature of a text by a key, which may ask for its passphrase. Raises ToolFailed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "content"
        path.write_text(content, encoding="utf-8")
        command = ["ssh-keygen", "-Y", "sign", "-q", "-n", namespace, "-f", str(key), str(path)]
        process.run(command, timeout_s=SIGN_TIMEOUT_S)
        return path.with_name("content.sig").read_text(encoding="utf-8")
