"""Which errors of the operating system become which of ours."""

from __future__ import annotations

import errno

import pytest

from provision.core.errors import NoSpace, disk_full_raises, is_disk_full


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_used_up_quota_are_no_space(number: int) -> None:
    assert is_disk_full(OSError(number, "full"))
    with pytest.raises(NoSpace, match="No room"), disk_full_raises("No room.", "Free some."):
        raise OSError(number, "full")


def test_other_errors_are_not_no_space() -> None:
    with pytest.raises(PermissionError), disk_full_raises("No room.", "Free some."):
        raise PermissionError(errno.EACCES, "no")
