"""Which errors of the operating system become which of ours."""

from __future__ import annotations

import errno

import pytest

from provision.core.errors import NoSpace, disk_full_raises, is_disk_full, says_disk_full


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_used_up_quota_are_no_space(number: int) -> None:
    assert is_disk_full(OSError(number, "full"))
    with pytest.raises(NoSpace, match="No room"), disk_full_raises("No room.", "Free some."):
        raise OSError(number, "full")


def test_other_errors_are_not_no_space() -> None:
    with pytest.raises(PermissionError), disk_full_raises("No room.", "Free some."):
        raise PermissionError(errno.EACCES, "no")


@pytest.mark.parametrize(
    "output",
    [
        "gcc: error writing to /tmp/x: No space left on device",
        "failed to write: Disk quota exceeded (os error 122)",
        "I/O operation failed (os error 28)",
    ],
)
def test_a_tool_that_says_the_disk_is_full(output: str) -> None:
    assert says_disk_full(output)


def test_other_failures_of_a_tool_are_no_full_disk() -> None:
    assert not says_disk_full("quota: command not found (os error 2)")
