"""A project's own files in an image, and commands whose script the container lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision import launch
from provision.core.errors import InvalidSpec
from provision.core.types import Image, LockedPackage
from provision.image import oci_layout
from provision.image.build import build_image
from provision.image.cache_key import Recipe
from provision.image.code import built_code, read_code
from provision.image.config import creation_time
from provision.workflow.image.code import relative_script, require_script
from tests.unit.image.test_image_build import BASE, LOCK, RESOLUTION
from tests.unit.image.test_image_layer_build import RUNTIME, Lab, Listening
from tests.unit.image.test_image_tree_files import install

IDENTITY = {
    f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, **IDENTITY}
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(
        command, check=True, text=True, capture_output=True, env=environment
    ).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my lab"
    (folder / "src" / "lab").mkdir(parents=True)
    (folder / "train.py").write_text("1")
    (folder / "run.sh").write_text("2")
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("train.py")
    (folder / "src" / "lab" / "__init__.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "x")
    return folder


def members(built: Image) -> dict[str, tarfile.TarInfo]:
    layer = built.layers[-1]
    assert layer.group == "code"
    with tarfile.open(oci_layout.blob(built.layout, layer.digest)) as archive:
        return {member.name: member for member in archive}


def build(
    lab: Lab, project: Path, packages: tuple[LockedPackage, ...] = (), origin: Path | None = None
) -> Image:
    """origin: the folder of the packages, which are editable."""

    def install_editables(staging: Path) -> None:
        lab.install({})(staging)
        for package in packages:
            files = {f"__editable__.{package.name}.pth": f"{project}/src\n".encode()}
            info = install(staging, package.name, files)
            (info / "direct_url.json").write_text(json.dumps({"url": (origin or project).as_uri()}))

    recipe = Recipe(
        resolution=RESOLUTION,
        lock=replace(LOCK, packages=(*LOCK.packages, *packages)),
        base=BASE,
        runtime=RUNTIME,
        code=read_code(project),
    )
    return build_image(
        recipe,
        layout=lab.root / "images" / "toy",
        install=install_editables,
        byte_code=None,
        progress=Listening(),
    )


@pytest.mark.needs("git")
def test_tracked_files_are_the_last_layer_and_the_commit_is_a_label(
    tmp_path: Path, project: Path
) -> None:
    lab = Lab(tmp_path)
    (project / "notes.txt").write_text("not tracked")
    built = build(lab, project)
    rows = {name: (member.mode, member.linkname) for name, member in members(built).items()}
    assert rows == {
        "workspace": (0o1777, ""),
        "workspace/latest": (0o777, "train.py"),
        "workspace/run.sh": (0o755, ""),
        "workspace/src": (0o1777, ""),
        "workspace/src/lab": (0o1777, ""),
        "workspace/src/lab/__init__.py": (0o644, ""),
        "workspace/train.py": (0o644, ""),
    }
    manifest = oci_layout.read_image(built)
    commit = git(project, "rev-parse", "HEAD").strip()
    assert manifest.annotations["org.opencontainers.image.revision"] == commit
    assert "org.provision.code.changed" not in manifest.annotations
    assert "workspace/src/lab/__init__.py" in (built_code(built.layout) or ())
    assert build(lab, project).manifest_digest == built.manifest_digest
    (project / "train.py").write_text("changed")
    changed = build(lab, project)
    assert changed.layers[:-1] == built.layers[:-1] and changed.layers[-1] != built.layers[-1]
    assert oci_layout.read_image(changed).annotations["org.provision.code.changed"] == "1"
    summary = read_code(project).summary
    assert "not committed: train.py" in summary and "not track: notes.txt" in summary


@pytest.mark.needs("git")
def test_a_folder_of_the_repository(project: Path) -> None:
    (project / "src" / "lab" / "__init__.py").write_text("changed")
    (project / "train.py").write_text("changed")
    code = read_code(project / "src")
    assert [entry.path for entry in code.entries if entry.kind == "file"] == [
        "workspace/lab/__init__.py"
    ]
    assert code.tree.changed == ("lab/__init__.py",)


@pytest.mark.needs("git")
@pytest.mark.parametrize("name", [b"lat\xe9in", b"a\rb", b"a\nb", b'"a\\101', "ü :,".encode()])
def test_a_file_of_any_name_is_in_the_image(tmp_path: Path, project: Path, name: bytes) -> None:
    """git's output as text would name another file, which is not there, and so not in the image."""
    (project / os.fsdecode(name)).write_text("")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "x")
    built = build(Lab(tmp_path), project)
    assert f"workspace/{os.fsdecode(name)}" in members(built)
    (project / os.fsdecode(name)).write_text("changed")
    assert read_code(project).tree.changed == (os.fsdecode(name),)


@pytest.mark.needs("git")
@pytest.mark.parametrize("bit", ["--assume-unchanged", "--skip-worktree"])
@pytest.mark.parametrize("is_there", [True, False])
def test_what_git_does_not_compare_is_a_change(project: Path, bit: str, is_there: bool) -> None:
    """Skipped files are those that a sparse checkout leaves out."""
    git(project, "update-index", bit, "train.py")
    (project / "train.py").write_text("changed")
    if not is_there:
        (project / "train.py").unlink()
    code = read_code(project)
    assert code.tree.changed == ("train.py",)
    assert ("train.py" in code.tree.files) is is_there


@pytest.mark.needs("git")
def test_settings_hide_nothing_from_the_summary(project: Path, tmp_path: Path) -> None:
    module = tmp_path / "module"
    shutil.copytree(project, module)
    settings = ["-c", "protocol.file.allow=always"]
    git(project, *settings, "submodule", "--quiet", "add", str(module), "libs/module")
    git(project, "commit", "--quiet", "-m", "x")
    for setting in ("status.showUntrackedFiles=no", "diff.ignoreSubmodules=all"):
        git(project, "config", *setting.split("="))
    git(project, "config", "log.showSignature", "true")
    (project / "notes.txt").write_text("")
    (project / "libs" / "module" / "train.py").write_text("changed")
    code = read_code(project)
    assert code.tree.changed == ("libs/module",)
    assert code.tree.untracked == ("notes.txt",)
    assert "workspace/libs/module/src/lab/__init__.py" in [entry.path for entry in code.entries]
    # It is the repository's, but not of this work tree.
    git(project, "worktree", "add", "--quiet", str(tmp_path / "second"))
    with pytest.raises(InvalidSpec, match="libs/module is a submodule that is not checked out"):
        read_code(tmp_path / "second")


@pytest.mark.needs("git")
def test_files_in_conflict_and_folders_in_their_place(project: Path) -> None:
    for branch in ("one", "two"):
        git(project, "checkout", "--quiet", "-b", branch, "HEAD")
        (project / "train.py").write_text(branch)
        git(project, "commit", "--quiet", "--all", "-m", branch)
        git(project, "checkout", "--quiet", "--detach", "HEAD~")
    git(project, "checkout", "--quiet", "one")
    with pytest.raises(subprocess.CalledProcessError):
        git(project, "merge", "two")
    (project / "run.sh").unlink()
    (project / "run.sh").mkdir()
    tree = read_code(project).tree
    assert tree.files.count("train.py") == 1
    assert "run.sh" not in tree.files
    assert set(tree.changed) == {"train.py", "run.sh"}


@pytest.mark.needs("git")
def test_an_editable_package_finds_its_folder_in_the_image(tmp_path: Path, project: Path) -> None:
    lab = Lab(tmp_path)
    editable = LockedPackage(
        manager="pip", name="lab", version="1.0", url="file:../..#editable", sha256=""
    )
    built = build(lab, project, (editable,))
    names = members(built)
    site_packages = "opt/env/lib/python3.11/site-packages"
    layer = oci_layout.blob(built.layout, built.layers[-1].digest)
    with tarfile.open(layer) as archive:
        file = archive.extractfile(f"{site_packages}/__editable__.lab.pth")
        assert file is not None and file.read() == b"/workspace/src\n"
    assert f"{site_packages}/lab-1.0.dist-info/RECORD" in names
    assert str(project).encode() not in layer.read_bytes()
    shutil.rmtree(built.layout)
    with pytest.raises(InvalidSpec, match="editable of"):
        build(lab, project, (editable,), origin=tmp_path)


@pytest.mark.needs("git")
def test_code_without_a_commit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))  # it may lie in a checkout
    with pytest.raises(InvalidSpec, match="not in a git repository with a commit"):
        read_code(tmp_path)
    git(tmp_path, "init", "--quiet", "--bare", "bare")
    with pytest.raises(InvalidSpec, match="not in a git repository with a commit"):
        read_code(tmp_path / "bare")


@pytest.mark.parametrize(
    ("environment", "as_of", "committed", "created"),
    [
        ({"SOURCE_DATE_EPOCH": "5"}, "2026-01-02", 7, 5),
        ({}, "2026-01-02", 7, 7),
        ({}, "2026-01-02", None, 1767312000),
        ({}, None, None, 315532800),
    ],
)
def test_an_image_has_the_date_of_what_it_is_made_of(
    environment: dict[str, str], as_of: str | None, committed: int | None, created: int
) -> None:
    assert creation_time(environment, replace(LOCK, as_of=as_of), committed) == created


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("train.py --lr 3e-4", "train.py"),
        ("torchrun --nproc-per-node 2 sub/train.py", "sub/train.py"),
        ("bash run.sh", "run.sh"),
        ("-m lab.train", "lab"),
        ("python -m torch.distributed.run --nproc-per-node 2 -m lab.train", "lab"),
        ("-m torch.distributed.run train.py", "train.py"),
        ("-m installed.train", None),
        ("/workspace/train.py", None),
        ("python -c x.py", None),
        ("python", None),
    ],
)
def test_scripts_that_the_working_folder_must_have(
    tmp_path: Path, command: str, script: str | None
) -> None:
    installed = replace(LOCK.packages[0], name="installed")
    for module in ("lab", "installed"):
        (tmp_path / module).mkdir()
    assert relative_script(command.split(), tmp_path, [installed]) == script


@pytest.mark.parametrize(
    ("mount", "problem"),
    [
        (None, "no mount brings it"),
        ("{}:/data", "no mount brings it"),
        ("{}/sub:/workspace", "There is no train.py in"),
        ("{}:/workspace", None),
        ("{}/sub:/workspace/sub", "no mount brings it"),
        ("claim:/workspace", None),
    ],
)
def test_a_script_that_the_container_lacks_is_refused(
    tmp_path: Path, mount: str | None, problem: str | None
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "train.py").write_text("")
    plan: Any = SimpleNamespace(name="lab", lock=None, folder=tmp_path, resolution=RESOLUTION)
    context: Any = SimpleNamespace(folders=SimpleNamespace(images=tmp_path / "images"))
    mounts = [launch.parse_mount(mount.format(tmp_path))] if mount else []
    if problem is None:
        require_script(context, plan, ("train.py",), mounts)
        return
    with pytest.raises(InvalidSpec, match=problem):
        require_script(context, plan, ("train.py",), mounts)


@pytest.mark.needs("git")
def test_code_of_one_build_must_have_the_script(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec.yml does not name the code of `image build --code`: the image has its files."""
    lab = Lab(tmp_path)
    built = build(lab, project)
    plan: Any = SimpleNamespace(name="toy", lock=None, folder=tmp_path, resolution=RESOLUTION)
    context: Any = SimpleNamespace(folders=SimpleNamespace(images=built.layout.parent))
    monkeypatch.chdir(project / "src")
    require_script(context, plan, ("./train.py",), ())
    require_script(context, plan, ("src/lab/__init__.py",), ())
    for script in ("other.py", "../train.py"):
        with pytest.raises(InvalidSpec, match=f"{script} is not in the image of toy"):
            require_script(context, plan, (script,), ())
    mount = launch.parse_mount(f"{tmp_path}:/workspace")
    with pytest.raises(InvalidSpec, match="not in the image of toy"):
        require_script(context, plan, ("../train.py",), (mount,))  # /train.py in the container
