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
    return lockfile.diff_locks(*result)


def test_equal_locks_have_no_difference(tmp_path: Path) -> None:
    differences = compared(tmp_path, sound(), sound())
    assert differences.same
    assert describe_diff(differences) == ["no package differs"]


def test_every_kind_of_change(tmp_path: Path) -> None:
    after = sound()
    after["package"].remove(entry(after, "tzdata"))
    after["package"].append(wheel_entry("sympy", "1.12"))
    entry(after, "numpy").update(conda_entry("numpy", "1.26.10", "py311_0"))
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
        ("conda", "numpy"): "changed",
        ("pip", "torch"): "changed",
        ("conda", "python"): "changed",
        ("pip", "filelock"): "changed",
        ("conda", "libz"): "changed",
    }
    lines = describe_diff(differences)
    assert any(line.startswith("removed  tzdata ") for line in lines)
    assert lines[-1] == "7 of 7 packages differ: 1 added, 5 changed, 1 removed"
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
    assert difference.change == "changed"
    assert difference.after == f"{difference.before} cu128"
    lock = lockfile.read_file(tmp_path / "new.yml")
    findings = lockfile.verify_lock(lock, None, "new").findings
    assert [finding for finding in findings if finding.package == "filelock"] == []


def test_platforms_are_compared_separately(tmp_path: Path) -> None:
    after = sound()
    after["package"].append({**wheel_entry("torch", "2.4.0"), "platform": "linux-aarch64"})
    (difference,) = compared(tmp_path, sound(), after).differences
    assert (difference.platform, difference.change) == ("linux-aarch64", "added")
