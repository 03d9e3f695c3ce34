"""Signatures by keys in PEM files (ECDSA or RSA, over SHA-256), made and checked by the openssl command.

cosign's public keys are such files. Its private keys are in a format of its own, which only cosign reads.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from provision.core import process
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec

TIMEOUT_S = 30.0
# The variable that cosign reads a key's passphrase from.
PASSPHRASE = "COSIGN_PASSWORD"
MAKE_KEY = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes256 -out lab.key"
MAKE_PUBLIC_KEY = "openssl pkey -in lab.key -pubout -out lab.pub"


@frozen
class SigningKey:
    """A private key that openssl can use. public: its public key, in PEM."""

    path: Path
    passphrase: str
    public: str


def has_passphrase(key: Path) -> bool:
    return "ENCRYPTED" in key.read_text(encoding="utf-8", errors="replace")


def read_private_key(path: Path, passphrase: str) -> SigningKey:
    """Raises InvalidSpec if openssl cannot read the file with this passphrase, or cannot sign with
    the key."""
    advice = (
        f"Make one: {MAKE_KEY}; {MAKE_PUBLIC_KEY}. With cosign's own cosign.key, push without --sign "
        "and run `cosign sign --new-bundle-format=false --key cosign.key` on the printed digest."
    )
    return SigningKey(
        path=path,
        passphrase=passphrase,
        public=_public_key(path, ("-passin", f"env:{PASSPHRASE}"), passphrase, advice),
    )


def read_public_key(path: Path) -> str:
    """A public key in PEM. Raises InvalidSpec for anything else."""
    advice = f"Give the public half of the key that signs (cosign.pub, or: {MAKE_PUBLIC_KEY})."
    return _public_key(path, ("-pubin",), "", advice)


def _public_key(path: Path, options: tuple[str, ...], passphrase: str, advice: str) -> str:
    command = ["openssl", "pkey", "-in", str(path), *options, "-pubout", "-text_pub"]
    result = process.run(command, env=_environment(passphrase), timeout_s=TIMEOUT_S, check=False)
    pem, end, description = result.stdout.partition("-----END PUBLIC KEY-----\n")
    if result.returncode != 0 or not end:
        kind = "public" if "-pubin" in options else "private"
        raise InvalidSpec(
            f"openssl cannot read a {kind} key from {path}{' with this passphrase' if passphrase else ''}.",
            advice=advice,
            details=result.stderr,
        )
    if description.startswith("ED"):  # ED25519 Public-Key; others have no name there
        raise InvalidSpec(f"{path} is an Edwards key, not an ECDSA or RSA key.", advice=advice)
    return pem + end


def sign(content: bytes, key: SigningKey) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        signature = Path(folder) / "signature"
        command = ["openssl", "dgst", "-sha256", "-sign", str(key.path)]
        command += ["-out", str(signature), "-passin", f"env:{PASSPHRASE}"]
        environment = _environment(key.passphrase)
        process.run(command, env=environment, timeout_s=TIMEOUT_S, stdin=content)
        return signature.read_bytes()


def is_signature(signature: bytes, content: bytes, public_key: str) -> bool:
    """Whether a signature of some content is by this key."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "signature").write_bytes(signature)
        (Path(folder) / "key").write_text(public_key)
        command = ["openssl", "dgst", "-sha256", "-verify", "key", "-signature", "signature"]
        result = process.run(
            command, cwd=Path(folder), timeout_s=TIMEOUT_S, check=False, stdin=content
        )
        return result.returncode == 0


def _environment(passphrase: str) -> dict[str, str]:
    return {**os.environ, PASSPHRASE: passphrase}
