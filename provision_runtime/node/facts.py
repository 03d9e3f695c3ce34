"""The facts of this node that decide whether an environment can run here."""

from __future__ import annotations

import os
import platform
import time
from typing import Any


def collect(path: str) -> dict[str, Any]:
    """path: where environments are stored on this node; it need not exist yet."""
    libc, libc_version = platform.libc_ver()
    return {
        "arch": platform.machine(),
        "kernel": platform.release(),
        "glibc": libc_version if libc == "glibc" else None,
        "python": platform.python_version(),
        "user": os.getuid(),
        "path": path,
        "time": time.time(),
    }
