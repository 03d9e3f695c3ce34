"""Where sockets of DataLoader workers do not fit, or cannot be made."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from provision_runtime.checks.surroundings import temporary_folder_finding

LONG = "/scratch/" + "x" * 100


@pytest.mark.parametrize(
    ("folders", "replaces_long", "text"),
    [
        ({"/tmp": True}, False, None),
        ({}, False, None),
        ({LONG: True, "/tmp": True}, False, "has 109 characters"),
        ({LONG: False, "/tmp": True}, False, None),
        ({LONG: True}, True, None),
        ({LONG: False, "/tmp": False}, True, "can be written"),
    ],
)
def test_the_first_folder_that_can_be_written_counts(
    folders: Mapping[str, bool], replaces_long: bool, text: str | None
) -> None:
    finding = temporary_folder_finding(folders, replaces_long)
    if text is None:
        assert finding is None
    else:
        assert finding is not None and text in finding.message
        assert finding.id == "tmpdir-unusable"
