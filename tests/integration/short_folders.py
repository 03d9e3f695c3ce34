"""Folders with short paths and no spaces in them, for what cannot do with pytest's own, which lie below
the clone when nox runs the tests: sockets, whose paths have at most 107 bytes (unix(7)), and
configurations that cannot quote (Slurm's)."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def short_folder(purpose: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"{purpose}-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)  # root ships for all users
        yield Path(folder)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For stores on nodes, whose paths have at most 120 characters, and for LD_PRELOAD."""
    with short_folder("test") as folder:
        yield folder
