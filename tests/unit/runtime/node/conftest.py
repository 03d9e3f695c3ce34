"""A store, and a small pack for it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision_runtime.node.store import Store
from tests.node_stores import PackedToy, pack_toy


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def toy(tmp_path: Path) -> PackedToy:
    return pack_toy(tmp_path, "1")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory(prefix="store-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)
