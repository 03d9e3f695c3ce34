"""The wheels that `provision add` and `remove` keep next to spec.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.core.errors import InvalidSpec
from provision.core.paths import Folders
from provision.verbs.change import change, requirements
from provision.workflow.context import Context
from tests.progress import Recorder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("requirements.txt",), "file's name.*`provision add lab -r requirements.txt`"),
        (("numpy", "2.0"), "`2.0` is a version.*`numpy==2.0`"),
        (("2.0",), "`PACKAGE==2.0`"),
        (("numpy=1.26",), "conda's way.*`numpy==1.26`, or add `--conda`"),
        (("numpy=1.26.*=py311",), "`numpy==1.26.*`"),
        (("to y",), "`to y` is not a requirement"),
    ],
)
def test_what_is_no_requirement(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Errors are about what was typed, not about a line that spec.yml would have."""
    folders = Folders(data=tmp_path, cache=tmp_path, envs=tmp_path)
    context = Context(folders=folders, progress=Recorder())
    with pytest.raises(InvalidSpec, match=message) as error:
        requirements.prepare(context, arguments, tmp_path / "lab", python_of=lambda: "3.11")
    assert "spec.yml" not in str(error.value)


@pytest.mark.parametrize(
    "package,key",
    [
        ("torch", "torch"),
        ("pytorch", "torch"),
        ("pytorch-cuda", "cuda"),
        ("python", "python"),
        ("torchvision", "companions"),
        ("ipykernel", "jupyter"),
        ("rdma-core", "infiniband"),
        ("conda", None),  # a key, and no package of a build
        ("numpy", None),
    ],
)
def test_a_package_of_the_build_comes_from_a_key(package: str, key: str | None) -> None:
    spec_key = change._key_of(package)
    assert (spec_key and spec_key.name) == key
