"""What is where in every image that we build, and how its processes run: the image stage writes
it, and the launch stage starts images by it.
"""

from __future__ import annotations

PREFIX = "/opt/env"
PYTHON = f"{PREFIX}/bin/python"
WORKSPACE = "/workspace"
USER = "1000:1000"
# Bytes of stack for threads of compiled code.
STACK = 64 << 20
