"""The requirements in a requirements.txt."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.core.errors import InvalidSpec
from provision.core.requirements_file import read_requirements


def test_requirements_of_a_file_and_those_it_includes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.txt").write_text("b\n./wheel.whl\n-e ../mine\n")
    (tmp_path / "requirements.txt").write_text(
        "\ufeff# all\n\na>=1,<2 # why\n-r sub/more.txt\n"
        "c==1 \\\n    --hash=sha256:00 \\\n    --hash=sha256:11\n"
        "d @ git+https://example.org/d@v1\nb\ne; python_version < '3.12'\n"
    )
    assert read_requirements(tmp_path / "requirements.txt") == [
        "a>=1,<2",
        "b",
        str(tmp_path / "sub" / "./wheel.whl"),
        f"-e {tmp_path / 'sub' / '../mine'}",
        "c==1",
        "d @ git+https://example.org/d@v1",
        "e; python_version < '3.12'",
    ]


@pytest.mark.parametrize(
    "text,message",
    [
        ("--index-url https://example.org\n", "has an option of pip: --index-url"),
        ("-c limits.txt\n", "has an option of pip: -c limits.txt"),
        ("-r requirements.txt\n", "includes itself"),
        ("-r nosuch.txt\n", "cannot be read"),
    ],
)
def test_what_is_not_a_requirement_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(InvalidSpec, match=message):
        read_requirements(tmp_path / "requirements.txt")


def test_files_that_include_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n-r b.txt\n")
    (tmp_path / "b.txt").write_text(f"-r ../{tmp_path.name}/a.txt\n")
    with pytest.raises(InvalidSpec, match=r"a\.txt includes itself"):
        read_requirements(tmp_path / "a.txt")


def test_a_file_is_read_once_however_often_it_is_included(tmp_path: Path) -> None:
    """Each file includes the next one twice: reading all of them anew would take 2^60 readings."""
    for number in range(60):
        text = f"p{number}\n-r {number + 1}.txt\n-r ./{number + 1}.txt\n"
        (tmp_path / f"{number}.txt").write_text(text)
    (tmp_path / "60.txt").write_text("last\n")
    expected = [f"p{number}" for number in range(60)]
    assert read_requirements(tmp_path / "0.txt") == [*expected, "last"]


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "requirements.txt").write_text("-r pipe\n")
    with pytest.raises(InvalidSpec, match="pipe cannot be read: it is no file"):
        read_requirements(tmp_path / "requirements.txt")
    with pytest.raises(InvalidSpec, match="zero cannot be read: it has more than 4 MiB"):
        read_requirements(Path("/dev/zero"))


def test_an_included_file_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"top\xffsecret")
    (tmp_path / "requirements.txt").write_text("-r secret\n")
    with pytest.raises(InvalidSpec, match="secret cannot be read") as error:
        read_requirements(tmp_path / "requirements.txt")
    assert "top" not in str(error.value)
