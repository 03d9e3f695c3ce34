"""What is where in every image that we build, and how its processes run: the image stage writes
it, and the launch stage starts images by it.
"""

from __future__ import annotations

import re

PREFIX = "/opt/env"
PYTHON = f"{PREFIX}/bin/python"
WORKSPACE = "/workspace"
USER = "1000:1000"
# Bytes of stack for threads of compiled code.
STACK = 64 << 20


def brief_reference(reference: str) -> str:
    """An image's name for messages: `debian:bookworm-slim@sha256:96e378d7e653...`. A whole one has no
    break within 110 columns."""
    name = reference.removeprefix("docker.io/library/").removeprefix("docker.io/")
    return re.sub(r"(@sha256:[0-9a-f]{12})[0-9a-f]{52}$", r"\1...", name)


def names_registry(reference: str) -> bool:
    """Whether an image's name begins with a registry's host, by Docker's rule."""
    host, slash, _ = reference.partition("/")
    return bool(slash) and (host == "localhost" or "." in host or ":" in host)
