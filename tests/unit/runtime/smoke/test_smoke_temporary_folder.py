"""Where sockets of DataLoader workers cannot be made."""

from __future__ import annotations

from provision_runtime.checks.surroundings import temporary_folder_finding


def test_one_folder_that_can_be_written_is_enough() -> None:
    assert temporary_folder_finding({"/a": False, "/tmp": True}) is None
    assert temporary_folder_finding({}) is None
    finding = temporary_folder_finding({"/a": False, "/tmp": False})
    assert finding is not None and finding.id == "tmpdir-unusable"
    assert finding.message.endswith("can be written: /a, /tmp")
