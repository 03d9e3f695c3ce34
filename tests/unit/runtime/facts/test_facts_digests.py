"""Digests of small prefixes: what changes them, what does not, and which distribution is named."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import provision_runtime
from provision_runtime.facts.digests import OTHER, file_sha256, prefix_digests

SITE = "lib/python3.11/site-packages"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_wheel(prefix: Path, name: str, version: str, files: dict[str, str]) -> None:
    rows = []
    for path, text in files.items():
        write(prefix / SITE / path, text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text)}\n")
    record = f"{name}-{version}.dist-info/RECORD"
    write(prefix / SITE / record, "".join(rows) + f"{record},,\n")


def add_conda(prefix: Path, name: str, files: dict[str, str], host: str = "here") -> None:
    for path, text in files.items():
        write(prefix / path, text)
    record = {
        "name": name,
        "version": "1.0",
        "build": "h_0",
        "sha256": "0" * 64,
        "link": {"source": host},
        "paths_data": {"paths": [{"_path": path} for path in files]},
    }
    write(prefix / "conda-meta" / f"{name}-1.0-h_0.json", json.dumps(record))


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    folder = tmp_path / "prefix"
    add_conda(folder, "python", {"bin/python3.11": "ELF", "lib/python3.11/os.py": "x = 1\n"})
    (folder / "lib" / "python3.1").symlink_to("python3.11")
    pip = {f"{SITE}/pip/__init__.py": "", f"{SITE}/pip-26.0.dist-info/RECORD": "pip/,,\n"}
    add_conda(folder, "pip", pip)
    add_wheel(folder, "torch", "2.3.1", {"torch/a.py": "y = 1\n", "../../../bin/torchrun": "#!"})
    add_wheel(folder, "Ein.Ops", "0.8", {"einops/__init__.py": "z = 1\n"})
    write(folder / "conda-meta" / "history", "")
    write(folder / "conda-meta" / "provision.state", json.dumps({"lock_sha256": "abc"}))
    write(folder / "README", "of nobody")
    return folder


def differing(prefix: Path, change: Callable[[], object], *, deep: bool) -> set[str]:
    """The distributions whose digests a change of the prefix changes."""
    before = prefix_digests(str(prefix), deep)
    change()
    after = prefix_digests(str(prefix), deep)
    names = before["distributions"].keys() | after["distributions"].keys()
    changed = set()
    for name in names:
        if before["distributions"].get(name) != after["distributions"].get(name):
            changed.add(name)
    assert bool(changed) == (before["root"] != after["root"])
    return changed


def test_every_distribution_is_listed_once(prefix: Path) -> None:
    """pip is conda's, though it has a RECORD too; and a link to lib/python3.11 is not followed."""
    answer = prefix_digests(str(prefix), False)
    listed = {
        name: (entry["kind"], entry["version"]) for name, entry in answer["distributions"].items()
    }
    assert listed == {
        "python": ("conda", "1.0 h_0"),
        "pip": ("conda", "1.0 h_0"),
        "torch": ("wheel", "2.3.1"),
        "ein-ops": ("wheel", "0.8"),
        OTHER: ("files", ""),
    }
    assert answer["lock_sha256"] == "abc"


@pytest.mark.parametrize("deep", [False, True])
def test_copies_have_equal_digests(prefix: Path, tmp_path: Path, deep: bool) -> None:
    subprocess.run(["cp", "-R", prefix, tmp_path / "copy"], check=True)
    (tmp_path / "link").symlink_to(tmp_path / "copy")
    expected = prefix_digests(str(prefix), deep)
    assert prefix_digests(str(tmp_path / "copy"), deep) == expected
    assert prefix_digests(str(tmp_path / "link"), deep) == expected


def replace_by_link(prefix: Path) -> None:
    file = prefix / SITE / "einops" / "__init__.py"
    file.rename(file.with_name("moved.py"))
    file.symlink_to("moved.py")


def move_link(prefix: Path) -> None:
    (prefix / "lib" / "python3.1").unlink()
    (prefix / "lib" / "python3.1").symlink_to("python3.12")


def upgrade_pip(prefix: Path) -> None:
    (prefix / SITE / "pip-26.0.dist-info" / "RECORD").unlink()
    add_wheel(prefix, "pip", "27.0", {"pip/__init__.py": ""})


def describe_other_host(prefix: Path) -> None:
    files = {"bin/python3.11": "ELF", "lib/python3.11/os.py": "x = 1\n"}
    add_conda(prefix, "python", files, host="there")
    write(prefix / "conda-meta" / "history", "# a time")
    write(prefix / "conda-meta" / "provision.state", json.dumps({"folder": "/elsewhere"}))


TORCH = f"{SITE}/torch/a.py"


@pytest.mark.parametrize(
    ("change", "deep", "expected"),
    [
        (lambda prefix: write(prefix / TORCH, "y = 2\n"), False, set()),
        (lambda prefix: write(prefix / TORCH, "y = 2\n"), True, {"torch"}),
        (lambda prefix: write(prefix / "bin/torchrun", "#! "), False, {"torch"}),
        (lambda prefix: (prefix / "bin/torchrun").unlink(), False, {"torch"}),
        (lambda prefix: write(prefix / SITE / "leftover.py", ""), False, {OTHER}),
        (lambda prefix: (prefix / "bin/python3.11").chmod(0o755), False, {"python"}),
        (lambda prefix: (prefix / "bin/python3.11").chmod(0o600), False, set()),
        (move_link, False, {OTHER}),
        (replace_by_link, True, {"ein-ops", OTHER}),
        # Another build of the same version whose files happen to have the same sizes.
        (
            lambda prefix: add_wheel(prefix, "Ein.Ops", "0.8", {"einops/__init__.py": "z = 2\n"}),
            False,
            {"ein-ops"},
        ),
        (upgrade_pip, False, {"pip", "pip (wheel 27.0)"}),
        (describe_other_host, True, set()),
        # A name that is no text.
        (lambda prefix: (prefix / os.fsdecode(b"caf\xe9")).write_bytes(b""), True, {OTHER}),
    ],
)
def test_a_change_shows_in_the_digests_of_its_distributions(
    prefix: Path, change: Callable[[Path], object], deep: bool, expected: set[str]
) -> None:
    assert differing(prefix, lambda: change(prefix), deep=deep) == expected


def test_byte_code_counts_only_in_packs(prefix: Path) -> None:
    """Python writes byte code into a prefix when it runs; a pack brings its own."""
    folder = prefix / SITE / "torch" / "__pycache__"
    folder.mkdir()
    compiled = folder / "a.cpython-311.pyc"
    assert differing(prefix, lambda: compiled.write_bytes(b"1"), deep=True) == set()
    write(prefix / "conda-meta" / "provision.state", json.dumps({"pack": "toy-0123456789ab"}))
    assert differing(prefix, lambda: compiled.write_bytes(b"2"), deep=True) == {"torch"}
    assert differing(prefix, compiled.unlink, deep=False) == {"torch"}


def test_missing_prefix_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        prefix_digests(str(tmp_path / "absent"), False)


def test_file_hash_is_that_of_all_bytes(tmp_path: Path) -> None:
    content = os.urandom(3_000_001)
    (tmp_path / "file").write_bytes(content)
    assert file_sha256(str(tmp_path / "file")) == hashlib.sha256(content).hexdigest()


def test_verb_prints_the_digests(prefix: Path) -> None:
    folder = Path(str(provision_runtime.__file__)).parent
    result = subprocess.run(
        [sys.executable, folder, "digests", "--deep", prefix], capture_output=True, text=True
    )
    assert json.loads(result.stdout) == prefix_digests(str(prefix), True)
