from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from provision import lockfile
from provision.lockfile import describe_diff
from tests.unit.lockfile.test_lock_verify import FORGE, conda_entry, entry, sound, wheel_entry


def compared(tmp_path: Path, before: dict[str, Any], after: dict[str, Any]) -> lockfile.LockDiff:
    result = []
    for name, content in (("old.yml", before), ("new.yml", after)):
        (tmp_path / name).write_text(yaml.safe_dump(content))
        result.append(lockfile.read_file(tmp_path / name))
    return lockfile.diff_locks(result[0], result[1], ("old", "new"))


def test_equal_locks_have_no_difference(tmp_path: Path) -> None:
    differences = compared(tmp_path, sound(), sound())
    assert differences.same
    assert describe_diff(differences) == ["no package differs: new has the same 6 packages as old"]


def test_every_kind_of_change(tmp_path: Path) -> None:
    after = sound()
    after["package"].remove(entry(after, "tzdata"))
    after["package"].append(wheel_entry("sympy", "1.12"))
    entry(after, "numpy").update(
        conda_entry("numpy", "1.26.10", "py311_0")
    )  # up, though "10" sorts before "4"
    entry(after, "torch").update(wheel_entry("torch", "2.2.2"))
    entry(after, "python").update(conda_entry("python", "3.11.7", "h1_1_cpython"))
    entry(after, "filelock")["hash"]["sha256"] = "c" * 64
    entry(after, "libz")["url"] = entry(after, "libz")["url"].replace(
        FORGE, "https://elsewhere.invalid/forge"
    )
    differences = compared(tmp_path, sound(), after)
    assert {
        (difference.manager, difference.package): difference.change
        for difference in differences.differences
    } == {
        ("conda", "tzdata"): "removed",
        ("pip", "sympy"): "added",
        ("conda", "numpy"): "up",
        ("pip", "torch"): "down",
        ("conda", "python"): "rebuilt",
        ("pip", "filelock"): "rebuilt",
        ("conda", "libz"): "re-sourced",
    }
    lines = describe_diff(differences)
    assert lines[0] == "linux-64, conda"
    assert (
        lines[-1]
        == "7 of 7 packages differ: 1 added, 1 down, 1 re-sourced, 2 rebuilt, 1 removed, 1 up"
    )
    assert any("numpy" in line and "1.26.4 py311_0 -> 1.26.10 py311_0" in line for line in lines)
    assert any(
        "libz" in line and "https://elsewhere.invalid/forge/linux-64" in line for line in lines
    )


def test_a_variant_is_a_build_of_a_wheel(tmp_path: Path) -> None:
    """Its label is in the name of the locked file; such a lock is well-formed."""
    after = sound()
    filelock = entry(after, "filelock")
    filelock["url"] = filelock["url"].replace(".whl", "-cu128.whl")
    (difference,) = compared(tmp_path, sound(), after).differences
    assert difference.change == "rebuilt"
    assert difference.after == f"{difference.before} cu128"
    lock = lockfile.read_file(tmp_path / "new.yml")
    findings = lockfile.verify_lock(lock, None, "new").findings
    assert [finding for finding in findings if finding.package == "filelock"] == []


def test_changed_channels_and_platforms_are_reported(tmp_path: Path) -> None:
    after = sound()
    after["metadata"]["channels"].insert(0, {"url": "nvidia", "used_env_vars": []})
    differences = compared(tmp_path, sound(), after)
    assert not differences.same
    assert describe_diff(differences)[0] == "channels: conda-forge -> nvidia, conda-forge"


def test_changed_as_of_date_is_reported(tmp_path: Path) -> None:
    after = sound()
    after["metadata"]["custom_metadata"] = {
        "provision_as_of": "2025-12-31",
        "provision_package_sources": "indexes: a @ https://i.example\nfind_links: file:w",
    }
    differences = compared(tmp_path, sound(), after)
    assert not differences.same
    assert describe_diff(differences)[:2] == [
        "as of: none -> 2025-12-31",
        "package sources: none -> indexes: a @ https://i.example, find_links: file:w",
    ]


def test_platforms_are_compared_separately(tmp_path: Path) -> None:
    after = sound()
    after["package"].append({**wheel_entry("torch", "2.4.0"), "platform": "linux-aarch64"})
    (difference,) = compared(tmp_path, sound(), after).differences
    assert (difference.platform, difference.change) == ("linux-aarch64", "added")


def test_versions_without_a_standard_order(tmp_path: Path) -> None:
    after = sound()
    entry(after, "filelock")["version"] = "3.13-weird+"
    assert compared(tmp_path, sound(), after).differences[0].change == "up"
