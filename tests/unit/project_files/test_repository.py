"""Which files of a repository are read, and what one adds to those before it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provision.core.errors import InvalidSpec
from provision.lockfile import conda_lock_v1
from provision.lockfile.export import export_lock
from provision.project_files.request import Choices
from provision.project_files.toml_file import Selection
from provision.verbs.init.init import Reading, read_one, read_repository

ENVIRONMENT = "name: dl\ndependencies: [python<3.12, pytorch=2.1, pytorch-cuda=12.1, numpy]\n"
SETUP = "from setuptools import setup\nsetup(name='toy', install_requires=['einops', 'torch'])\n"
GROUP = "[project]\nname = 'toy'\n[dependency-groups]\ntest = ['pytest']\n"


def read(folder: Path, files: dict[str, str], *groups: str) -> Reading:
    for name, text in files.items():
        (folder / name).write_text(text)
    return read_repository(folder, Choices(), Selection(groups=frozenset(groups)))


@pytest.mark.parametrize(
    "files,content",
    [
        ({"requirements.txt": "numpy==1.26\neinops\n"}, {"pip": ["einops"]}),
        ({"requirements.txt": "torch==2.1.2\n"}, {"torch": "2.1.2"}),
        ({"setup.py": SETUP}, {"pip": ["einops"]}),
        ({".python-version": "3.10\n"}, {"python": "3.10"}),
        ({".tool-versions": "nodejs 20.1\npython 3.9.1\n"}, {"python": "3.9"}),
        ({"setup.py": "print 'python 2'\n"}, {}),
        ({"Dockerfile": "FROM pytorch/pytorch:2.4.0-cuda12.4\nRUN pip install rich\n"}, {}),
        ({"pyproject.toml": "[tool.ruff]\nline-length = 100\n"}, {}),
    ],
)
def test_further_files_add_what_the_leading_one_leaves_open(
    tmp_path: Path, files: dict[str, str], content: dict[str, object]
) -> None:
    alone = read(tmp_path, {"environment.yml": ENVIRONMENT}).request.content
    assert read(tmp_path, files).request.content == {**alone, **content}


def test_exact_versions_lead_before_ranges(tmp_path: Path) -> None:
    project = "[project]\nname = 'toy'\ndependencies = ['numpy', 'rich>=13', 'torch>=2']\n"
    files = {"pyproject.toml": project, "requirements.txt": "torch==2.3.1+cu121\nnumpy==1.26\n"}
    reading = read(tmp_path, files)
    assert reading.source == "requirements.txt, pyproject.toml"
    assert reading.request.content["torch"] == "2.3.1"
    assert reading.request.content["pip"] == ["numpy==1.26", "rich>=13"]


def test_unread_files_are_named(tmp_path: Path) -> None:
    files = {
        "environment.yml": ENVIRONMENT,
        "requirements-dev.txt": "",
        "uv.lock": "",
        "notes.txt": "",
    }
    assert read(tmp_path, files).unread_files == ("requirements-dev.txt", "uv.lock")


def test_only_file_of_requirements_is_read_whatever_its_name(tmp_path: Path) -> None:
    reading = read(tmp_path, {"requirements-gpu.txt": "torch==2.3.1+cu121\n", "train.py": ""})
    assert reading.source == "requirements-gpu.txt"
    assert reading.request.content["cuda"] == "12.1"


@pytest.mark.parametrize(
    "others", [["requirements-dev.txt"], ["a-requirements.txt", "b-requirements.txt"]]
)
def test_files_for_other_purposes_that_name_torch_are_shown(
    tmp_path: Path, others: list[str]
) -> None:
    files = {"requirements.txt": "numpy<2\n", **dict.fromkeys(others, "torch==2.3.1\n")}
    with pytest.raises(InvalidSpec, match=others[0]):
        read(tmp_path, files)


def test_text_decides_the_torch_that_no_other_file_requests(tmp_path: Path) -> None:
    readme = (
        "    conda install pytorch=2.1.2 pytorch-cuda=12.1 -c pytorch\n    pip install -e .\n"
        "    pip install numpy rich\n"
    )
    reading = read(tmp_path, {"requirements.txt": "numpy\n", "README.md": readme})
    content = {"torch": "2.1.2", "cuda": "12.1", "pip": ["numpy"]}
    assert {**reading.request.content, **content} == reading.request.content
    assert reading.source == "requirements.txt, README.md"
    left = [entry.next_step for entry in reading.request.entries if entry.outcome == "left out"]
    assert left == ["provision add NAME rich"]


@pytest.mark.parametrize(
    "lead,readme,content",
    [
        ("torch", "pip install torch==2.1.2+cu118", {"torch": "2.1.2", "cuda": "11.8"}),
        (
            "torch==2.3.1",
            "pip install torch --index-url https://w.example/whl/cu118",
            {"cuda": "11.8"},
        ),
        (
            "torch>=2",
            "pip install torch==2.3.1 torchvision",
            {"torch": "2.3.1", "companions": True},
        ),
        # What contradicts does not count, nor what the text says besides.
        ("torch==2.3.1", "pip install torch==2.2.0+cu118", {"torch": "2.3.1", "cuda": None}),
        (
            "torch>=2",
            "pip install torch==2.3.1+cu118\n    pip install torch==2.3.1+cu121",
            {"torch": ">=2", "cuda": None},
        ),
        ("torch>=2", "pip install torch==1.13.1+cu117", {"torch": ">=2", "cuda": None}),
    ],
)
def test_text_narrows_the_torch_that_another_file_requests(
    tmp_path: Path, lead: str, readme: str, content: dict[str, object]
) -> None:
    files = {"requirements.txt": f"{lead}\n", "README.md": f"    {readme}\n"}
    stated = read(tmp_path, files).request.content
    assert {key: stated.get(key) for key in content} == content


def test_base_image_does_not_say_the_cuda_of_torch(tmp_path: Path) -> None:
    files = {"requirements.txt": "torch==2.4.0\n", "Dockerfile": "FROM nvidia/cuda:11.8.0-devel\n"}
    assert "cuda" not in read(tmp_path, files).request.content


def test_two_builds_of_a_text_are_not_passed_over(tmp_path: Path) -> None:
    readme = "`pip install torch==2.3.1+cu118` `pip install torch==2.3.1+cu121`"
    with pytest.raises(InvalidSpec, match=r"README\.md:1"):
        read(tmp_path, {"requirements.txt": "torch\n", "README.md": readme})


@pytest.mark.parametrize(
    "files",
    [
        {"cpu.txt": "torch==2.3.1+cpu", "gpu.txt": "torch==2.3.1+cu121"},
        {"a.txt": "torch==2.1.2\nrich"},
    ],
)
def test_files_that_a_readme_names_are_not_passed_over(
    tmp_path: Path, files: dict[str, str]
) -> None:
    lines = "".join(f"    pip install -r {name}\n" for name in files)
    with pytest.raises(InvalidSpec, match=f"{list(files)[-1]}:1 torch"):
        read(tmp_path, {**files, "setup.py": SETUP, "README.md": lines})


def test_readme_leads_before_its_translations(tmp_path: Path) -> None:
    readme = "`pip install torch==2.{}`"
    files = {"README-ja.md": readme.format("1.2"), "README.md": readme.format("3.1")}
    assert read(tmp_path, files).request.content["torch"] == "2.3.1"


@pytest.mark.parametrize(
    "files,line",
    [
        (
            {"requirements.txt": "rich\n", "Dockerfile": "FROM nvcr.io/nvidia/pytorch:20.12-py3\n"},
            "Dockerfile:1 FROM nvcr.io/nvidia/pytorch:20.12-py3",
        ),
        (
            {
                "pyproject.toml": "[project]\nname = 'toy'\ndependencies = ['rich']\n"
                "[project.optional-dependencies]\ngpu = ['torch == 2.3.1']\n"
            },
            "gpu: torch == 2.3.1 (provision init --extra gpu)",
        ),
    ],
)
def test_release_in_a_line_that_does_not_count_is_not_passed_over(
    tmp_path: Path, files: dict[str, str], line: str
) -> None:
    with pytest.raises(InvalidSpec, match=re.escape(line)):
        read(tmp_path, files)


@pytest.mark.parametrize("second,python", [("3.9", "3.9"), ("3.10", None)])
def test_text_decides_the_python_if_it_names_one(
    tmp_path: Path, second: str, python: str | None
) -> None:
    readme = f"    conda create -n a python=3.9\n    conda create -n b python={second}\n"
    reading = read(tmp_path, {"requirements.txt": "torch==2.1.2\n", "README.md": readme})
    assert reading.request.content.get("python") == python
    assert reading.request.contradictions == []


def test_text_leads_where_nothing_else_does(tmp_path: Path) -> None:
    files = {".python-version": "3.10", "Dockerfile": "RUN pip install torch==2.3.1+cu121 rich\n"}
    content = read(tmp_path, files).request.content
    assert (content["torch"], content["python"], content["pip"]) == ("2.3.1", "3.10", ["rich"])


def test_text_that_installs_nothing_is_not_read(tmp_path: Path) -> None:
    assert read(tmp_path, {"README.md": "# Net\n"}).source == "nothing"


def test_files_of_which_nothing_is_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"requirements-gpu\.txt") as caught:
        read(tmp_path, {"requirements-gpu.txt": "torch\n", "requirements-cpu.txt": "torch\n"})
    assert "provision import requirements-cpu.txt" in caught.value.advice
    assert (
        read_repository(tmp_path, Choices(torch="2.3"), Selection()).request.content["torch"]
        == "2.3"
    )


@pytest.mark.parametrize(
    "file,line",
    [
        ("Makefile", "\tpip install torch==2.3.1"),
        ("docker/Dockerfile", "FROM pytorch/pytorch:2.1.0-cuda11.8-cudnn8-runtime"),
        (".github/workflows.yml", "run: pip install torch==2.3.1"),
        ("README.md", "It needs PyTorch >= 2.1."),
    ],
)
@pytest.mark.parametrize("others", [{}, {"requirements.txt": "numpy\n"}])
def test_release_that_an_unread_file_names_is_not_passed_over(
    tmp_path: Path, file: str, line: str, others: dict[str, str]
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    with pytest.raises(InvalidSpec, match=re.escape(f"{file}:1 {line.strip()}")):
        read(tmp_path, {file: line, **others})
    assert (
        read_repository(tmp_path, Choices(torch="2.3"), Selection()).request.content["torch"]
        == "2.3"
    )


@pytest.mark.parametrize(
    "file,text",
    [
        ("node_modules/README.md", "torch==2.1"),
        ("envs/lab/environment.yml", "- pytorch=2.1"),
        ("main.py", "assert torch.__version__ >= '2.1'"),
        ("docs/CHANGELOG.md", "PyTorch 2.1 works"),
        ("setup-gpu.txt", "lion-pytorch==0.1.2"),
        (".github/ISSUE_TEMPLATE/bug.md", "like PyTorch 2.1"),
    ],
)
def test_files_that_say_nothing_about_the_repository(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "spec.yml").touch()
    assert read(tmp_path, {file: text, "requirements.txt": "numpy\n"}).source == "requirements.txt"


def test_file_that_cannot_be_read_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.md").symlink_to("/proc/self/mem")
    assert read(tmp_path, {"requirements.txt": "numpy\n"}).source == "requirements.txt"


def test_lock_leads_where_nothing_else_does(tmp_path: Path) -> None:
    lock = "version = 1\nrequires-python = '==3.10.*'\n[[package]]\nname = 'toy'\nsource = {virtual = '.'}\n"
    assert read(tmp_path, {"uv.lock": lock}).request.content == {"python": "3.10"}


def test_group_of_a_file_that_does_not_lead(tmp_path: Path) -> None:
    files = {"environment.yml": ENVIRONMENT, "pyproject.toml": GROUP}
    assert read(tmp_path, files, "test").request.content["pip"] == ["pytest"]
    with pytest.raises(InvalidSpec, match="no group `docs`"):
        read(tmp_path, files, "docs")


def test_exported_pylock_comes_back_with_its_build(tmp_path: Path) -> None:
    lock = conda_lock_v1.read_file(Path(__file__).parents[3] / "conda-lock.yml")
    path = tmp_path / "pylock.toml"
    path.write_text(export_lock(lock, "lab", "pylock", "linux-64"))
    content = read_one(path, Choices(), Selection()).request.content
    stated = {key: content.get(key) for key in ("torch", "cuda", "python")}
    build = {entry.name: entry for entry in lock.for_platform("linux-64")}
    assert stated == {
        "torch": (build.get("pytorch") or build["torch"]).version,
        "cuda": "12.1",
        "python": ".".join(build["python"].version.split(".")[:2]),
    }
