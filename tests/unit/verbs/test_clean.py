"""`provision clean` and `provision env remove`: what goes, and above all what stays."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from provision.cli.text import removal_lines
from provision.core.paths import Folders, default_folders
from provision.environment import kernel as kernels
from provision.environment import prefix as prefixes
from provision.environment.marker import Marker
from provision.environment.marker import write as write_marker
from provision.verbs.clean import clean
from provision.verbs.env import env
from provision.workflow.context import Context
from tests.progress import Recorder


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    return Context(folders=folders, progress=Recorder())


def make_prefix(context: Context, name: str, *, folder: Path | None = None) -> Path:
    """An installed prefix with a kernel; its folder in envs exists unless another one is named."""
    path = context.folders.prefixes / name
    described = folder or context.folders.envs / name
    if folder is None:
        described.mkdir(parents=True)
        (described / "spec.yml").write_text('torch: "2.3"\n')
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").write_text("x" * 100)
    write_marker(path, Marker(name=name, folder=str(described), lock_sha256="1" * 64))
    prefix = prefixes.find(name, path)
    assert prefix is not None
    kernels.install(prefix, name)
    return path


def make_layout(context: Context, name: str) -> Path:
    layout = context.folders.images / name
    layout.mkdir(parents=True)
    (layout / "oci-layout").write_text("{}")
    return layout


def names(items: Sequence[clean.Removable]) -> set[tuple[str, str]]:
    return {(item.kind, item.path.name) for item in items}


def test_only_what_nothing_names_can_go(context: Context) -> None:
    folders = context.folders
    make_prefix(context, "used")
    make_layout(context, "used")
    make_layout(context, "gone")
    for name in ("used", "gone"):
        (folders.smoke(name) / "prefix").mkdir(parents=True)
        (folders.smoke(name) / "prefix" / "report.json").write_text("{}")
        (folders.packs / name).mkdir(parents=True)
        (folders.packs / name / f"{name}-0123456789ab.json").write_text("{}")
    folders.packages.mkdir(parents=True)
    assert names(clean.removable(context)) == {
        ("cache", "conda-packages"),
        ("image", "gone"),
        ("smoke", "gone"),
        ("pack", "gone"),
    }
    assert names(clean.removable(context, ["pack"])) == {("pack", "gone")}
    clean.clean(context, clean.removable(context))
    assert clean.removable(context) == []
    assert (folders.images / "used" / "oci-layout").exists()
    assert (folders.smoke("used") / "prefix" / "report.json").exists()


def test_a_channel_stays_while_a_lock_names_it(context: Context, tmp_path: Path) -> None:
    for name in ("py3.11.7", "py3.12.1"):
        repodata = context.folders.channels / name / "linux-64" / "repodata.json"
        repodata.parent.mkdir(parents=True)
        repodata.touch()
    (context.folders.channels / "py3.13" / "mine").mkdir(parents=True)
    project = tmp_path / "other" / "envs" / "lab"
    project.mkdir(parents=True)
    make_prefix(context, "lab", folder=project)
    lock = project / "conda-lock.yml"
    lock.write_text(f"url: file://{context.folders.channels}/py3.11.7/linux-64/python.conda\n")
    assert names(clean.removable(context, ["channel"])) == set()
    context.folders.envs.mkdir()
    assert names(clean.removable(context, ["channel"])) == {("channel", "py3.12.1")}


def test_folders_of_the_same_names_that_are_not_ours_stay(context: Context) -> None:
    """PROVISION_DATA may be a home folder, with pictures in `images`."""
    folders = context.folders
    for path in (folders.images / "holidays", folders.packs / "x", folders.data / "smoke" / "y"):
        path.mkdir(parents=True)
        (path / "thesis.tex").write_text("years")
    (folders.cache / "browser").mkdir(parents=True)
    assert clean.removable(context) == []


def test_a_prefix_goes_with_its_deleted_folder_but_not_with_an_unmounted_disk(
    context: Context, tmp_path: Path
) -> None:
    make_prefix(context, "kept", folder=tmp_path / "not mounted" / "envs" / "kept")
    path = make_prefix(context, "lab")
    assert clean.removable(context) == []
    (context.folders.envs / "lab" / "spec.yml").unlink()
    (context.folders.envs / "lab").rmdir()
    items = clean.removable(context)
    assert names(items) == {("environment", "lab")}
    assert clean.clean(context, items) == items
    assert not path.exists()
    assert [kernel.name for kernel in kernels.list_kernels()] == ["kept"]


def test_what_a_killed_build_left_goes_unless_the_build_still_runs(context: Context) -> None:
    path = make_prefix(context, "lab")
    leftover = path.with_name(".lab.provision-building")
    leftover.mkdir()
    items = clean.removable(context)
    assert [(item.kind, item.name) for item in items] == [("unfinished", "lab")]
    locks = context.folders.data / "locks"
    locks.mkdir()
    with (locks / "lab").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert clean.clean(context, items) == []
        assert leftover.exists()
    assert isinstance(context.progress, Recorder)
    assert "lab is in use by" in context.progress.warnings[0]
    clean.clean(context, items)
    assert path.exists() and not leftover.exists()


def test_the_way_back_of_a_killed_change_stays(context: Context) -> None:
    make_prefix(context, "lab").with_name(".lab.provision-replaced").mkdir()
    folders = context.folders
    journal = {"folder": str(folders.envs / "lab"), "files": {}}
    folders.change("lab").parent.mkdir(parents=True)
    folders.change("lab").write_text(json.dumps(journal))
    assert clean.removable(context) == []


def test_caches_stay_while_a_build_reads_them(context: Context) -> None:
    context.folders.packages.mkdir(parents=True)
    locks = context.folders.data / "locks"
    locks.mkdir(parents=True)
    with (locks / "lab").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert clean.clean(context, clean.removable(context)) == []
    assert context.folders.packages.exists()


def test_a_temporary_directory_of_a_living_process_stays(context: Context, tmp_path: Path) -> None:
    abandoned, working = tmp_path / "tmp" / "provision.smoke.1", tmp_path / "tmp" / "provision.b.2"
    abandoned.mkdir()
    working.mkdir()
    descriptor = os.open(working, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert names(clean.removable(context)) == {("temporary", abandoned.name)}
    assert abandoned.exists()
    os.close(descriptor)


def test_kernels_whose_prefix_was_deleted_by_hand_go(context: Context) -> None:
    path = make_prefix(context, "lab")
    prefix = prefixes.find("lab", path)
    assert prefix is not None
    path.rename(path.with_name("elsewhere"))
    assert names(clean.removable(context)) == {("kernel", "lab")}


def test_remove_asks_with_sizes_and_does_nothing_when_declined(context: Context) -> None:
    path = make_prefix(context, "lab")
    asked: list[Sequence[env.Product]] = []

    def decline(products: Sequence[env.Product]) -> bool:
        asked.append(products)
        return False

    report = context.folders.smoke("lab") / "report.json"
    report.parent.mkdir(parents=True)
    report.touch()
    assert env.remove(context, "lab", confirm=decline) == []
    assert path.exists()
    kinds = ["prefix", "kernel", "smoke reports"]
    assert [product.kind for product in asked[0]] == kinds
    assert asked[0][0].size >= 100
    removed = env.remove(context, "lab", confirm=lambda products: True)
    assert [product.kind for product in removed] == kinds
    assert not path.exists() and not report.parent.exists() and kernels.list_kernels() == []


@pytest.mark.parametrize("size", [100, 5 << 30])
def test_what_is_removed_fits_a_terminal(size: int) -> None:
    products = [
        env.Product(kind="prefix", what="/data/prefixes/lab", size=size, freed=size // 4),
        env.Product(kind="kernel", what="/home/ann/.local/share/jupyter/kernels/lab"),
        env.Product(kind="image", what="provision/lab:6f1c2a90", size=size, freed=None),
    ]
    rows = [(product.kind, product.size, product.freed, product.what) for product in products]
    lines = removal_lines(rows, verb_form="would remove", width=80)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["kind", "size", "frees", "what"]
    assert [line.split()[-1] for line in lines[1:4]] == [product.what for product in products]
    assert lines[5].startswith("would remove 3 items (")


@pytest.mark.parametrize("command", [["env", "remove", "lab"], ["clean"]])
def test_without_a_terminal_yes_is_required(
    context: Context, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(context.folders.data))
    monkeypatch.setenv("PROVISION_CACHE", str(context.folders.cache))
    monkeypatch.setenv("PROVISION_ENVS", str(context.folders.envs))
    context = replace(context, folders=default_folders(context.folders.envs))
    path = make_prefix(context, "lab")
    context.folders.packages.mkdir(parents=True)
    refused = CliRunner().invoke(cli, command)
    assert (refused.exit_code, "--yes" in refused.output) == (2, True)
    assert path.exists() and context.folders.packages.exists()
    shown = CliRunner().invoke(cli, [*command, "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert path.exists() and context.folders.packages.exists()
    result = CliRunner().invoke(cli, [*command, "--yes", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["removed"]
    assert path.exists() == (command == ["clean"])


def test_links_are_not_followed(context: Context, tmp_path: Path) -> None:
    """What a link names may be anybody's: `env remove` removes the link, `clean` leaves it."""
    folders = context.folders
    victim = tmp_path / "victim"
    moved = make_prefix(context, "lab").rename(victim)
    (folders.prefixes / "lab").symlink_to(victim)
    for folder in (folders.images, folders.packed, folders.packs):
        folder.mkdir(parents=True)
        (folder / "lab").symlink_to(victim)
    folders.packages.parent.mkdir(parents=True)
    folders.packages.symlink_to(victim)
    assert clean.clean(context, clean.removable(context, ["cache"])) == []
    env.remove(context, "lab", confirm=lambda products: True)
    assert (moved / "bin" / "python").exists()
    assert [path.name for path in folders.prefixes.iterdir()] == []
    for folder in (folders.images, folders.packed, folders.packs):
        assert [path.name for path in folder.iterdir()] == []
    assert isinstance(context.progress, Recorder)
    first, *others = context.progress.warnings
    assert first == f"{folders.packages} stays: it is a link to {victim}"
    assert others[0] == f"{folders.prefixes / 'lab'} is a link: it is removed, and {victim} stays"
    assert len(others) == 4


def test_what_cannot_be_removed_is_not_called_removed(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.folders.packages.mkdir(parents=True)
    items = clean.removable(context)

    def refuse(path: Path, ignore_errors: bool) -> None: ...

    monkeypatch.setattr("shutil.rmtree", refuse)
    assert clean.clean(context, items) == []
    assert isinstance(context.progress, Recorder)
    assert "stays: it cannot be removed completely" in context.progress.warnings[0]


def test_ctrl_c_says_what_is_removed_and_what_only_in_part(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes with the fifth file; Python handles it at the next instruction."""
    for folder in (context.folders.packages, context.folders.byte_code, context.folders.pulled):
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / str(number)).write_text("x")
    removed: list[str] = []
    unlink = os.unlink

    def unlink_and_interrupt(path: Any, **options: Any) -> None:
        unlink(path, **options)
        removed.append(str(path))
        if len(removed) == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("os.unlink", unlink_and_interrupt)
    items = clean.removable(context, ["cache"])
    with pytest.raises(KeyboardInterrupt):
        clean.clean(context, items)
    assert isinstance(context.progress, Recorder)
    first, second, third = (item.path for item in items)
    assert context.progress.warnings == [
        f"done before this: removed {first}; removed {second} in part"
    ]
    assert (first.exists(), second.exists(), third.exists()) == (False, True, True)
