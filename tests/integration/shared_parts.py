"""Parts that the workers of one test run share: each is made once, by the first that needs it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

# Named by tests/conftest.py, which removes it when the run ends.
FOLDER_VARIABLE = "PROVISION_TEST_SHARED"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """The run's folder of that name, filled by `make` unless another worker has done it."""
    folder = Path(os.environ[FOLDER_VARIABLE]) / name
    complete = folder.with_name(f"{name}.complete")
    with exclusively(folder.with_name(f"{name}.lock")):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            complete.touch()
    return folder


@contextlib.contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """One test process at a time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def byte_code() -> Path:
    """The cache of compiled packages, which is safe to share (environment/bytecode_cache.py): the
    one that PROVISION_TEST_BYTE_CODE names, or the run's own."""
    folder = os.environ.get("PROVISION_TEST_BYTE_CODE")
    return Path(folder) if folder else made_once("byte-code", lambda _: None)


def conda_packages() -> Path:
    """The cache of downloaded and unpacked conda packages, for users whose subject is not the
    download: unpacking this machine's Python takes longer than linking it."""
    return made_once("conda-packages", lambda _: None)


def packaged_python() -> Path:
    """The folder of channels with this machine's Python. Copy it to change it."""
    return made_once("python", _package_python) / "channels"


def _package_python(folder: Path) -> None:
    command = [str(Path(sys.executable).parent / "provision"), "channel", "bootstrap"]
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith("PROVISION_")
    }
    variables |= {"PROVISION_DATA": str(folder), "PROVISION_CACHE": str(folder / "cache")}
    subprocess.run(command, cwd=folder, env=variables, check=True, capture_output=True)
