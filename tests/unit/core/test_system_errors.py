"""Which errors of the operating system become which of ours, and the file and disk that they name."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from provision.core import system_errors
from provision.core.errors import NoSpace, SystemRefused
from provision.core.system_errors import (
    disk_full_raises,
    from_system,
    is_disk_full,
    named_errors,
    tool_without_space,
)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_used_up_quota_are_no_space(number: int, tmp_path: Path) -> None:
    assert is_disk_full(OSError(number, "full"))
    with pytest.raises(NoSpace, match=r"Free some\.$"), disk_full_raises(tmp_path, "Free some."):
        raise OSError(number, "full")


def test_other_errors_are_not_no_space(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), disk_full_raises(tmp_path):
        raise PermissionError(errno.EACCES, "no")


def test_a_quota_is_no_full_disk() -> None:
    assert "quota" in from_system(OSError(errno.EDQUOT, "x")).message
    assert "quota" not in from_system(OSError(errno.ENOSPC, "x")).message


def test_the_file_that_is_written_is_named_not_the_one_that_is_read(tmp_path: Path) -> None:
    read, written = "/usr/lib/python3/os.py", str(tmp_path / "missing" / "os.py")
    error = from_system(OSError(errno.ENOSPC, "full", read, None, written))
    assert read not in error.message
    assert f"{written} was not written" in error.message
    assert f"free in {tmp_path} now" in error.message


def test_a_file_of_the_error_comes_before_the_one_that_the_block_writes(tmp_path: Path) -> None:
    with pytest.raises(NoSpace) as caught, disk_full_raises(tmp_path / "block"):
        raise OSError(errno.ENOSPC, "full", str(tmp_path / "other"))
    assert "other" in caught.value.message and "block" not in caught.value.message


def test_no_error_says_that_nothing_was_changed() -> None:
    """The handler cannot know it."""
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
        assert "changed" not in str(from_system(OSError(number, "x", "/f")))


def test_both_files_of_a_refused_rename_are_named() -> None:
    error = from_system(OSError(errno.EROFS, "Read-only file system", "/a", None, "/b"))
    assert (type(error), "/a -> /b" in error.message) == (SystemRefused, True)


def test_a_failed_write_names_its_file(tmp_path: Path) -> None:
    """As a full disk, a limit of file sizes fails in write, whose error has no name."""
    code = (
        "import resource, signal; from pathlib import Path\n"
        "from provision.core.atomic import atomic_write\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
        f"path = Path({str(tmp_path)!r}) / 'file'\n"
        "try:\n"
        "    atomic_write(path, b'x' * 100)\n"
        "except OSError as error: print(error.filename)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == f"{tmp_path / 'file'}\n", result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_an_error_has_stays() -> None:
    with pytest.raises(OSError) as caught, named_errors("/block"):
        raise OSError(errno.EIO, "x", "/own")
    assert caught.value.filename == "/own"


@pytest.mark.parametrize(
    "output",
    [
        "gcc: error writing to /tmp/x: No space left on device",
        "failed to write: Disk quota exceeded (os error 122)",
        "I/O operation failed (os error 28)",
    ],
)
def test_a_tool_that_says_the_disk_is_full(output: str) -> None:
    error = tool_without_space(f"first\n{output}\nlast")
    assert error is not None and output in error.message


def test_other_failures_of_a_tool_are_no_full_disk() -> None:
    assert tool_without_space("quota: command not found (os error 2)") is None


def test_too_little_address_space_is_said_before_a_solver_aborts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (400_000 << 10, -1))
    with pytest.raises(SystemRefused, match="ulimit -v"):
        system_errors.require_address_space()


def test_a_limit_of_the_shell_is_named() -> None:
    assert "ulimit" in from_system(OSError(errno.EMFILE, os.strerror(errno.EMFILE))).advice
