"""`provision image` with registries: push, index, verify."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from provision.cli.verb import context_of, verb
from provision.core.platforms import PLATFORMS, Platform

if TYPE_CHECKING:
    from provision.adapters.openssl import SigningKey
    from provision.cli.console import Console
    from provision.image.compress import Compression

image_platform_option = click.option(
    "--platform",
    "image_platform",
    type=click.Choice(PLATFORMS),
    help="The image for this platform.  [default: this machine's]",
)
sign_option = click.option(
    "--sign",
    "key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="KEY",
    help="Sign with this key, as cosign does: an ECDSA or RSA key in PEM.",
)


@click.command("push")
@click.argument("name")
@click.argument("target", metavar="HOST/NAME[:TAG]")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "zstd", "zstd:chunked"]),
    help="Compression of the layers in the registry. Docker before 23 reads `gzip` and `none` only. With "
    "`zstd:chunked`, Podman and CRI-O fetch only the files that they lack.  "
    "[default: zstd; none for a registry of this machine]",
)
@click.option(
    "--attach/--no-attach",
    default=True,
    show_default=True,
    help="Attach smoke verdicts, the SBOM and the provenance to the image.",
)
@sign_option
@image_platform_option
@verb
def push(
    console: Console,
    name: str,
    target: str,
    envs: Path | None,
    compression: Compression | None,
    attach: bool,
    key: Path | None,
    image_platform: Platform | None,
) -> None:
    """Push an environment's image to a registry.

    Uses the credentials of `docker login`. Sends only the layers that the registry lacks, and
    attaches smoke verdicts, the SBOM and the provenance as in-toto statements, where cosign looks.
    --sign signs the image and these statements.
    """
    from provision.verbs.image.registry import push_image
    from provision_runtime.report.text import format_bytes

    context = context_of(console, envs)
    signing_key = _read_key(key) if key else None
    pushed = push_image(context, name, target, compression, attach, signing_key, image_platform)
    sizes = (
        f"{format_bytes(pushed.sent)} sent, {format_bytes(pushed.present)} already in the registry"
    )
    lines = [f"pushed {pushed.tag}: {sizes}"]
    lines += [f"attached {title}" for title in pushed.attached]
    console.result("image-push", pushed, [*lines, pushed.reference])


def _read_key(path: Path) -> SigningKey:
    """The key, with its passphrase from cosign's variable or from the terminal."""
    import os
    import sys

    from provision.adapters import openssl
    from provision.core.errors import InvalidSpec

    passphrase = os.environ.get(openssl.PASSPHRASE, "")
    if openssl.PASSPHRASE not in os.environ and openssl.has_passphrase(path):
        if not sys.stdin.isatty():
            raise InvalidSpec(
                f"{path} has a passphrase, and there is no terminal to ask for it.",
                advice=f"Set it as {openssl.PASSPHRASE}.",
            )
        passphrase = click.prompt(f"Passphrase of {path}", hide_input=True, err=True)
    return openssl.read_private_key(path, passphrase)


@click.command("index")
@click.argument("target", metavar="HOST/NAME:TAG")
@click.argument("sources", metavar="IMAGE...", nargs=-1, required=True)
@sign_option
@verb
def index(
    console: Console, target: str, sources: tuple[str, ...], key: Path | None, envs: Path | None
) -> None:
    """Give images for several platforms one name in a registry.

    Each IMAGE is HOST/NAME:TAG or HOST/NAME@DIGEST in the same repository, and of the same lock. Engines
    then pull the one for their platform. Nothing is copied.
    """
    from provision.verbs.image.registry import index_images

    indexed = index_images(target, sources, _read_key(key) if key else None)
    lines = [f"{platform}  {digest}" for platform, digest in indexed.platforms.items()]
    console.result("image-index", indexed, [f"pushed {indexed.tag}", *lines, indexed.reference])


@click.command("verify")
@click.argument("target", metavar="HOST/NAME[:TAG|@DIGEST]")
@click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Public key in PEM, such as cosign.pub, that must have signed the image.",
)
@image_platform_option
@verb
def verify(
    console: Console,
    target: str,
    key: Path,
    image_platform: Platform | None,
    envs: Path | None,
) -> None:
    """Check that a key signed an image in a registry.

    Accepts the signatures of `image push --sign` and of `cosign sign --new-bundle-format=false`. Shows
    which statements about the image (provenance, SBOM) the same key signed; --json has them.
    """
    from provision.verbs.image.registry import verify_image
    from provision_runtime.report.text import escape_line

    verified = verify_image(target, key, image_platform)
    lines = [f"signed by {key}: {verified.signed_digest}"]
    lines += [f"signed statement: {row['predicateType']}" for row in verified.statements]
    if not verified.statements:
        lines.append("no signed statement (provenance, SBOM) is attached")
    console.result("image-verify", verified, map(escape_line, [*lines, verified.reference]))
