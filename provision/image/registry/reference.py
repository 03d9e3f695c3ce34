"""Places in registries, as users write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.adapters.http.session import is_loopback
from provision.core.errors import InvalidSpec
from provision.core.types import Image

# host[:port]/repository[:tag][@digest]; a registry must be named, since none is ours.
_REFERENCE = re.compile(
    r"((?:[A-Za-z0-9-]+\.)+[A-Za-z0-9-]+(?::\d+)?|localhost(?::\d+)?|[A-Za-z0-9-]+:\d+|\[[0-9a-fA-F:]+\](?::\d+)?)"
    r"/([a-z0-9]+(?:(?:\.|_|__|-+|/)[a-z0-9]+)*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(sha256:[0-9a-f]{64}))?"
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# What Docker calls docker.io answers under another name.
DOCKER = "docker.io"
DOCKER_HOST = "registry-1.docker.io"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A place in a registry; where a digest is given, that is what is meant."""

    registry: str
    repository: str
    tag: str
    digest: str | None = None

    def __str__(self) -> str:
        return f"{self.registry}/{self.repository}" + (
            f"@{self.digest}" if self.digest else f":{self.tag}"
        )

    @property
    def base(self) -> str:
        scheme = "http" if is_loopback(self.registry) else "https"
        return f"{scheme}://{DOCKER_HOST if self.registry == DOCKER else self.registry}/v2/{self.repository}/"

    @property
    def reference(self) -> str:
        """As the registry is asked for it."""
        return self.digest or self.tag

    def at(self, digest: str) -> str:
        """What names these bytes for good."""
        return f"{self.registry}/{self.repository}@{digest}"


def target(text: str, image: Image | None = None) -> Target:
    """What a user wrote, or InvalidSpec. image: what is to be sent there, by a tag; without one it is the image's own."""
    match = _REFERENCE.fullmatch(text)
    if match is None or (image is not None and match[4]):
        forms = "HOST/NAME or HOST/NAME:TAG" + ("" if image else ", or HOST/NAME@sha256:...")
        raise InvalidSpec(
            f"{text!r} is not a place in a registry.",
            advice=f"Write {forms}, for example registry.lab:5000/torch:2.3.",
        )
    own = image.reference.rpartition(":")[2] if image else "latest"
    return Target(
        registry=match[1].lower(), repository=match[2], tag=match[3] or own, digest=match[4]
    )


def base_target(reference: str) -> Target:
    """Where a base lies, by Docker's rules for short names. InvalidSpec for an image id, which no registry knows."""
    if DIGEST.fullmatch(reference):
        raise InvalidSpec(
            f"{reference} is an image id, which only an engine knows.",
            advice="Name the base by its name with --base.",
        )
    host, slash, _ = reference.partition("/")
    named = slash and ("." in host or ":" in host or host == "localhost")
    found = target(reference if named else f"{DOCKER}/{reference}")
    if found.registry == DOCKER and "/" not in found.repository:
        return Target(
            registry=DOCKER,
            repository=f"library/{found.repository}",
            tag=found.tag,
            digest=found.digest,
        )
    return found
