"""References to images in registries, as users write them."""

from __future__ import annotations

import re
from dataclasses import replace

from provision.adapters.http.session import is_loopback, speaks_tls
from provision.core.container import names_registry
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.types import Image
from provision.image.oci_layout import DIGEST

# host[:port]/repository[:tag][@digest]; a registry must be named, because we have no default.
_REFERENCE = re.compile(
    r"((?:[A-Za-z0-9-]+\.)+[A-Za-z0-9-]+(?::\d+)?|localhost(?::\d+)?|[A-Za-z0-9-]+:\d+"
    r"|\[[0-9a-fA-F:]+\](?::\d+)?)"
    r"/([a-z0-9]+(?:(?:\.|_|__|-+|/)[a-z0-9]+)*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(sha256:[0-9a-f]{64}))?"
)
# Docker's docker.io has its API at another host.
DOCKER = "docker.io"
DOCKER_HOST = "registry-1.docker.io"


@frozen
class RegistryReference:
    """An image in a registry. If there is a digest, the tag does not count."""

    registry: str
    repository: str
    tag: str
    digest: str | None = None

    def __str__(self) -> str:
        suffix = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{self.registry}/{self.repository}{suffix}"

    @property
    def api_url(self) -> str:
        """The address of the repository's API."""
        is_plain = is_loopback(self.registry) and not speaks_tls(self.registry)
        scheme = "http" if is_plain else "https"
        host = DOCKER_HOST if self.registry == DOCKER else self.registry
        return f"{scheme}://{host}/v2/{self.repository}/"

    @property
    def tag_or_digest(self) -> str:
        return self.digest or self.tag

    def with_digest(self, digest: str) -> str:
        """The name of exactly these bytes."""
        return f"{self.registry}/{self.repository}@{digest}"


def parse_registry_reference(text: str, image: Image | None = None) -> RegistryReference:
    """Parse the user's text, or raise InvalidSpec.

    image: what will be pushed there; a digest is then invalid, and the default tag is the image's.
    """
    match = _REFERENCE.fullmatch(text.removeprefix("docker://"))  # skopeo's and enroot's
    if match is None or (image is not None and match[4]):
        forms = "HOST/NAME or HOST/NAME:TAG" + ("" if image else ", or HOST/NAME@sha256:...")
        raise InvalidSpec(
            f"{text!r} is not a reference to a registry.",
            advice=f"Write {forms}, in lower case, for example registry.lab:5000/torch:2.3.",
        )
    default_tag = image.reference.rpartition(":")[2] if image else "latest"
    return RegistryReference(
        registry=match[1].lower(),
        repository=match[2],
        tag=match[3] or default_tag,
        digest=match[4],
    )


def base_registry_reference(name: str) -> RegistryReference:
    """The reference of a base, by Docker's rules for short names. InvalidSpec for an image id, which no
    registry knows."""
    if DIGEST.fullmatch(name):
        raise InvalidSpec(
            f"{name} is an image id, which only an engine knows.",
            advice="Give the base by its name with --base.",
        )
    reference = parse_registry_reference(name if names_registry(name) else f"{DOCKER}/{name}")
    if reference.registry == DOCKER and "/" not in reference.repository:
        return replace(reference, repository=f"library/{reference.repository}")
    return reference
