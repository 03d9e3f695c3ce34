"""The wheels that `provision add` and `remove` keep next to spec.yml."""

from __future__ import annotations

from pathlib import Path

from provision.commands import requirements


def test_only_a_wheel_that_the_change_dropped_is_unused(tmp_path: Path) -> None:
    folder = tmp_path / requirements.WHEELS
    folder.mkdir()
    for name in ("dropped-1-py3-none-any.whl", "staying-1-py3-none-any.whl", "users-1.whl"):
        (folder / name).write_bytes(b"wheel")
    staying = "pip:\n  - staying @ file:wheels/staying-1-py3-none-any.whl\n"
    old_text = f"{staying}  - dropped @ file:wheels/dropped-1-py3-none-any.whl\n"
    unused = requirements.unused_wheels(tmp_path, old_text, staying)
    assert [path.name for path in unused] == ["dropped-1-py3-none-any.whl"]
