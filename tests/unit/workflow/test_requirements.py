"""What users state to pip, as keys of spec.yml, and the wheels that lie next to it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from provision.core.errors import InvalidSpec
from provision.core.paths import Folders
from provision.workflow import requirements
from provision.workflow.context import Context
from provision.workflow.requirements import Requirements
from provision.workflow.resolution import with_names
from tests.progress import Recorder
from tests.small import write_wheel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("requirements.txt",), "file's name.*`-r requirements.txt`"),
        (("numpy", "2.0", "to y"), "`2.0`: it is a version(.|\n)*`to y`: it is not a requirement"),
        (("numpy=1.26.*=py311",), "conda's way.*`numpy==1.26.*`"),
        (("-i https://i.example/simple",), "a setting of pip's.*global.index-url"),
        (("--extra-index-url https://i.example/simple",), "named for it.*PACKAGE --extra"),
        (("a @ https://m:S3CRET@i.example/a.zip",), "~/.netrc"),
        (("./nosuch",), "no wheel and no project at .*/nosuch"),
        (("-r nosuch.txt",), "nosuch.txt cannot be read"),
        (("-r https://r.example/a.txt",), "Download the file"),
        (("-c limits.txt",), "into a requirements.txt"),
    ],
)
def test_what_is_no_requirement(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Errors are about what was typed, not about a line that spec.yml would have."""
    with pytest.raises(InvalidSpec, match=message) as error:
        prepare(tmp_path, *arguments)
    assert "spec.yml" not in str(error.value) and "S3CRET" not in str(error.value)


def prepare(envs: Path, *arguments: str) -> Requirements:
    folders = Folders(data=envs, cache=envs, envs=envs)
    context = Context(folders=folders, progress=Recorder())
    entries = requirements.read(arguments)
    return requirements.prepare(context, entries, envs / "lab", python_of=lambda: "3.11")


def test_a_file_and_options_become_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    (tmp_path / "limits.txt").write_text("six<2\nother<1\n")
    (tmp_path / "requirements.txt").write_text(
        "\ufeffsix>=1 --hash=sha256:00\n-r sub/more.txt\n-c limits.txt\n"
        "--extra-index-url https://mirror.example/whl/cu121\n"
    )
    wheel = write_wheel(tmp_path / "sub", "my_pkg", "1.0+pt23")
    (tmp_path / "sub" / "more.txt").write_text(
        f"{wheel.name}\r\nd @ git+https://g.example/d@v1\r\n"
    )
    prepared = prepare(
        tmp_path / "envs",
        "-r requirements.txt",
        "torch-scatter -f https://w.example/page.html",
        "my-pkg2 -f ./sub",
        "labpkg --extra-index-url https://i.example/simple",
    )
    assert prepared.pip == (
        "six>=1,<2",
        "my-pkg @ file:wheels/my_pkg-1.0+pt23-py3-none-any.whl",
        "d @ git+https://g.example/d@v1",
        "torch-scatter",
        "my-pkg2",
        "labpkg",
    )
    pages = ("torch-scatter @ https://w.example/page.html", "my-pkg2 @ file:../../sub")
    assert prepared.find_links == pages
    assert prepared.indexes == ("labpkg @ https://i.example/simple",)
    assert prepared.wheels == {wheel.name: wheel.read_bytes()}


def test_files_of_other_tools_are_read_as_everywhere(tmp_path: Path) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text("[project]\nname = 'x'\nversion = '1'\ndependencies = ['einops>=0.7']\n")
    assert prepare(tmp_path, f"-r {project}").pip == ("einops>=0.7",)
    environment = tmp_path / "environment.yml"
    environment.write_text("dependencies: [ffmpeg]\n")
    with pytest.raises(InvalidSpec, match=r"ffmpeg.*conda"):
        prepare(tmp_path, f"-r {environment}")


def test_names_of_addresses_and_paths_in_spec_yml(tmp_path: Path) -> None:
    """Those that environment.yml has are not looked up: no such repository exists."""
    (tmp_path / "environment.yml").write_text(
        '  - pip:\n      - "mine[x] @ git+https://g.invalid/m.git@v1"\n      - p @ file:../p\n'
    )
    texts = [
        "six",
        "git+https://g.invalid/m.git@v1",
        "-e ../p[dev]",
        "./wheels/a_b-1-py3-none-any.whl",
        "c @ ../c",
    ]
    assert with_names(texts, tmp_path) == [
        "six",
        "mine @ git+https://g.invalid/m.git@v1",
        "p[dev] @ file:../p",
        "a-b @ file:wheels/a_b-1-py3-none-any.whl",
        "c @ file:../c",
    ]


@pytest.mark.parametrize("is_failing", [True, False])
def test_placed_wheels_stay_only_if_the_block_succeeds(tmp_path: Path, is_failing: bool) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "old.whl").write_bytes(b"old")
    with (
        contextlib.suppress(KeyboardInterrupt),
        requirements.placed(tmp_path, {"old.whl": b"new", "more.whl": b"more"}),
    ):
        if is_failing:
            raise KeyboardInterrupt
    contents = {path.name: path.read_bytes() for path in (tmp_path / "wheels").glob("*.whl")}
    expected = {"old.whl": b"old"} if is_failing else {"old.whl": b"new", "more.whl": b"more"}
    assert contents == expected
