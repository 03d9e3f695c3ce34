"""What lines of pip's requirement text state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provision.core.errors import InvalidSpec
from provision.core.requirement_files import decode, read_files
from provision.core.requirement_lines import parse_lines
from provision.core.requirement_urls import absolute_url, relative_url
from provision.core.statements import Statement, marker_holds

# A line, and the entries that it gives: kind and value.
LINES = {
    "numpy<2  # why": [("pip", "numpy<2")],
    "a[x, y] (>=1)": [("pip", "a[x,y]>=1")],
    "a>=1.*": [("pip", "a>=1")],
    "a2>=1<2": [("pip", "a2>=1,<2")],
    "a>=1,<=2.1; python_version>='3.10'": [("pip", "a>=1,<=2.1; python_version>='3.10'")],
    "clip @ git+https://g.example/clip.git@main#egg=clip": [
        ("pip", "clip @ git+https://g.example/clip.git@main")
    ],
    "ds@git+https://g.example/ds.git@91d1c5#egg=ds": [
        ("pip", "ds @ git+https://g.example/ds.git@91d1c5")
    ],
    "git+https://g.example/a.git@v1#subdirectory=py&egg=a[x]": [
        ("pip", "a[x] @ git+https://g.example/a.git@v1#subdirectory=py")
    ],
    "-e git+https://g.example/a.git": [("pip", "git+https://g.example/a.git")],
    "ssh://git@g.example/a": [("pip", "git+ssh://git@g.example/a")],
    "git@g.example:org/a.git@v1": [("pip", "git+ssh://git@g.example/org/a.git@v1")],
    "https://g.example/a.git@v1": [("pip", "git+https://g.example/a.git@v1")],
    "https://w.example/a_b-1.0%2Bcu121-py3-none-any.whl ; sys_platform == 'linux'": [
        (
            "pip",
            "a-b @ https://w.example/a_b-1.0%2Bcu121-py3-none-any.whl ; sys_platform == 'linux'",
        )
    ],
    "https://w.example/main.zip": [("pip", "https://w.example/main.zip")],
    "./sub[train]": [("pip", "./sub[train]")],
    "libs/pointops": [("pip", "libs/pointops")],
    r".\libs\pointops": [("pip", "./libs/pointops")],
    ".[train]": [("pip", ".[train]")],
    "-e .[dev,test]": [("pip", "-e .[dev,test]")],
    "--editable=../other": [("pip", "-e ../other")],
    "numpy @ file:///croot/n_1/work/dist/numpy-1.26.4-cp310-cp310-linux_x86_64.whl#sha256=d3": [
        ("pip", "numpy==1.26.4")
    ],
    "brotli @ file:///tmp/build/80/brotli-split_1/work": [("pip", "brotli")],
    "x @ file:///home/me/x": [("pip", "x @ file:///home/me/x")],
    "torch-cluster -f https://w.example/torch-2.5.0+cu124.html": [
        ("pip", "torch-cluster"),
        ("find-links", "https://w.example/torch-2.5.0+cu124.html"),
    ],
    "-r sub/more.txt": [("include", "sub/more.txt")],
    r"--requirement ..\base.txt": [("include", "../base.txt")],
    "-climits.txt": [("constraints", "limits.txt")],
    "-i https://i.example/simple --extra-index-url=https://j.example/simple": [
        ("index", "https://i.example/simple"),
        ("extra-index", "https://j.example/simple"),
    ],
    "c==1 \\\r\n    --hash=sha256:00 \\\r\n    --hash=sha256:11": [
        ("pip", "c==1"),
        ("ignored", "hash"),
        ("ignored", "hash"),
    ],
    'apex --global-option="--cpp_ext"': [("pip", "apex"), ("ignored", "global-option")],
    "--pre": [("ignored", "pre")],
    "git+https://${TOKEN}@g.example/a.git": [("pip", "git+https://g.example/a.git")],
}


def lines_of(path: Path) -> list[Statement]:
    return list(read_files(path, lambda file, text: parse_lines(text, str(file))))


@pytest.mark.parametrize("line", LINES)
def test_a_line_states(line: str) -> None:
    assert [(entry.kind, entry.value) for entry in parse_lines(line)] == LINES[line]


@pytest.mark.parametrize("line", LINES)
def test_a_requirement_is_read_from_its_own_text(line: str) -> None:
    for entry in parse_lines(line):
        if entry.requirement:
            (again,) = parse_lines(entry.value)
            assert again.requirement == entry.requirement


@pytest.mark.parametrize(
    "line,reason,next_step",
    [
        ("numpy=1.26", "conda's way", "numpy==1.26"),
        ("requirements.txt", "a file's name", "-r requirements.txt"),
        ("1.26.4", "a version", "PACKAGE==1.26.4"),
        ("numpy@1.26", "not an address", "numpy==1.26"),
        ("a==${VERSION}", "the variable", "the value"),
        ("hg+https://h.example/a", "repository of hg", "clone it"),
        ("https://g.example/org/a", "no archive", "git+https://g.example/org/a"),
        (r"C:\wheels\a.whl", "Windows", "of this one"),
        ("a; python_version >", "not a requirement", ""),
        ("./a ; python_version >", "its marker", ""),
        ("--no-such-option", "no-such-option", ""),
        ('-r "a.txt', "No closing quotation", ""),
        ("a @ https://w.example/a.zip?token=abcdefgh", "token in its query", ""),
    ],
)
def test_what_is_not_understood_says_why(line: str, reason: str, next_step: str) -> None:
    (entry,) = parse_lines(line)
    assert (entry.kind, entry.requirement) == ("unknown", None)
    assert reason in entry.reason
    assert next_step in entry.next_step


def test_numbers_of_lines_and_comments_in_continued_ones() -> None:
    text = "\n# a\none\\\n==1\n\ntwo \\\n# the end of two\nthree\n"
    entries = [(entry.line, entry.value) for entry in parse_lines(text)]
    assert entries == [(3, "one==1"), (6, "two"), (8, "three")]


@pytest.mark.parametrize(
    "line", ["-i https://m:S3CRET@i.example/simple", "a @ https://m:S3CRET@i.example/a.zip"]
)
def test_no_login_stays(line: str) -> None:
    (entry,) = parse_lines(line)
    assert "S3CRET" not in repr(entry)
    assert "netrc" in entry.credential


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str) -> None:
    assert decode("torch\r\nnumpy # é\r\n".encode(encoding)) == "torch\r\nnumpy # é\r\n"


def test_addresses_of_files_with_a_plus_come_back(tmp_path: Path) -> None:
    url = absolute_url("file:wheels/a-1+pt23.whl", tmp_path)
    assert absolute_url(relative_url(url, tmp_path), tmp_path) == url


@pytest.mark.parametrize("content", [b"torch\n# \xe9\n", "torch\n".encode("utf-16-le")])
def test_what_is_no_text(content: bytes) -> None:
    with pytest.raises(ValueError, match="iconv"):
        decode(content)


def test_files_that_are_included(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "setup.py").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.txt").write_text("one\n-r sub/b.txt\n-r sub/../sub/b.txt\n-c c.txt\n-r pipe\n")
    (tmp_path / "sub" / "b.txt").write_text("two\n-e .\n-r ../a.txt\n-r nosuch.txt\n")
    (tmp_path / "c.txt").write_text("three<3\n-f sub\n")
    entries = lines_of(tmp_path / "a.txt")
    assert [entry.value for entry in entries if entry.kind == "find-links"] == [f"{tmp_path}/sub"]
    texts = [(entry.kind, entry.value) for entry in entries if entry.requirement]
    project = f"-e {tmp_path}"  # not the folder of the file, which has no project
    assert texts == [
        ("pip", "one"),
        ("pip", "two"),
        ("pip", project),
        ("constraint", "three<3"),
    ]
    unknown = {entry.value: entry.reason for entry in entries if entry.kind == "unknown"}
    assert set(unknown) == {"../a.txt", "nosuch.txt", "pipe"}
    assert "includes itself" in unknown["../a.txt"]


@pytest.mark.parametrize("path", ["/dev/zero", "nosuch.txt"])
def test_a_file_that_cannot_be_read(path: str) -> None:
    with pytest.raises(InvalidSpec, match=f"{path} cannot be read"):
        lines_of(Path(path))


@pytest.mark.parametrize(
    "marker,is_met",
    [
        ("python_version >= '3.11' and sys_platform == 'linux'", True),
        ("platform_machine == 'aarch64'", False),
        ("sys_platform == 'win32' or extra == 'dev'", False),
        ("", True),
    ],
)
def test_markers(marker: str, is_met: bool) -> None:
    assert marker_holds(marker, "3.11") is is_met


@pytest.mark.parametrize(
    ("repository", "works_in", "project"),
    [
        ("home/lab", "home/lab/req", "home/lab"),
        ("home/lab/req", "home", "home/lab/req"),
    ],
)
def test_a_project_above_is_of_the_same_repository(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    repository: str,
    works_in: str,
    project: str,
) -> None:
    """Not that of a stray pyproject.toml further up."""
    (tmp_path / "home" / "lab" / "req").mkdir(parents=True)
    for folder in ("home", "home/lab"):
        (tmp_path / folder / "pyproject.toml").touch()
    (tmp_path / "home/lab/req/dev.txt").write_text("-e .\n")
    (tmp_path / repository / ".git").mkdir()
    monkeypatch.chdir(tmp_path / works_in)
    (entry,) = lines_of(tmp_path / "home/lab/req/dev.txt")
    assert entry.requirement and entry.requirement.source == str(tmp_path / project)
