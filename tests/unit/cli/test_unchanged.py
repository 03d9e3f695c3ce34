"""A lock with nothing to do is recognized by what decides it, and never when that has changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from provision.core.paths import default_folders
from provision.workflow import context, lock
from tests.unit.workflow.test_batch import lab as lab  # the fixture
from tests.unit.workflow.test_batch import run, write_lock


@pytest.fixture
def locked(lab: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment whose lock had nothing to do twice; a third time is short."""
    monkeypatch.setenv("PROVISION_CACHE", str(lab / "cache"))
    folder = lab / "envs" / "rendered"
    write_lock(folder)
    context._warnings.clear()
    first = run("lock", "rendered")
    assert first.stdout.startswith("already locked") and "cuda-graph-hang" in first.stderr
    context._warnings.clear()
    assert run("lock", "rendered").output == first.output  # the first wrote the Dockerfile
    context._warnings.clear()
    return folder


def refuse(*arguments: object) -> None:
    raise AssertionError("the usual way")


def is_short(monkeypatch: pytest.MonkeyPatch, *options: str) -> bool:
    """Whether `lock rendered` ends without the usual way."""
    with monkeypatch.context() as patch:
        patch.setattr(lock, "lock", refuse)
        result = run("lock", "rendered", *options)
    assert isinstance(result.exception, (type(None), SystemExit, AssertionError))
    return not isinstance(result.exception, AssertionError)


def test_nothing_to_do_prints_the_same(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,) = (locked.parents[1] / "cache" / "unchanged").iterdir()
    usual = {}
    for options in ((), ("--json",), ("-q",)):
        text = record.read_text()
        record.unlink()
        context._warnings.clear()
        usual[options] = run(*options, "lock", "rendered")
        record.write_text(text)
    with monkeypatch.context() as patch:
        patch.setattr(lock, "lock", refuse)
        for options, before in usual.items():
            again = run(*options, "lock", "rendered")
            assert (again.exit_code, again.stdout, again.stderr) == (
                before.exit_code,
                before.stdout,
                before.stderr,
            )


CHANGES: dict[str, Callable[[Path], object]] = {
    "spec": lambda folder: append(folder / "spec.yml", "conda: [zlib]\n"),
    "environment": lambda folder: append(folder / "environment.yml", "  - six\n"),
    "lock": lambda folder: append(folder / "conda-lock.yml", "# a word\n"),
    "dockerfile": lambda folder: (folder / "Dockerfile").unlink(),
    "new file": lambda folder: (folder / "notes.txt").write_text("x"),
    "mode": lambda folder: folder.chmod(0o777),
    "template": lambda folder: make(folder.parents[1] / "templates" / "environment.yml.j2"),
    "change in progress": lambda folder: make(default_folders().change("rendered")),
    "passport": lambda folder: make(default_folders().passport("rendered") / "passport.json"),
}


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_takes_the_usual_way(
    change: str, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_short(monkeypatch)
    CHANGES[change](locked)
    assert not is_short(monkeypatch)


@pytest.mark.parametrize("options", [("--torch", "2.3"), ("--relock",), ("--dry-run",)])
def test_options_take_the_usual_way(
    options: tuple[str, ...], locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lock, "preview", refuse)
        assert not is_short(monkeypatch, *options)


def test_variables_code_and_other_users_records_take_the_usual_way(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = (locked.parents[1] / "cache" / "unchanged").iterdir()
    assert is_short(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setenv("PROVISION_MIRRORS", "conda-forge=https://mirror.invalid")
        assert not is_short(patch)
    assert is_short(monkeypatch)
    for root in ("PACKAGE", "LIBRARIES"):
        with monkeypatch.context() as patch:
            patch.setattr(f"provision.cli.unchanged.{root}", locked)
            assert not is_short(patch)
    text = record.read_text()
    for broken in ("", "[]", json.dumps({**json.loads(text), "state": "0" * 64})):
        record.write_text(broken)
        assert not is_short(monkeypatch)


@pytest.mark.parametrize(
    "line", ["pip: [./mypkg]", "pip: ['six @ git+https://x.invalid/six']", "as_of: 2026-01-31"]
)
def test_what_is_elsewhere_is_never_recorded(line: str, lab: Path) -> None:
    from provision.cli import unchanged

    folder = lab / "envs" / "rendered"
    write_lock(folder)
    assert unchanged.state(default_folders(), "rendered")
    append(folder / "spec.yml", f"{line}\n")
    assert unchanged.state(default_folders(), "rendered") is None


PRODUCTS = {
    "marker": "prefix/conda-meta/provision.state",
    "conda package": "prefix/conda-meta/zlib-1-0.json",
    "wheel": "prefix/lib/python3.11/site-packages/six-1.dist-info/RECORD",
    "runtime": "prefix/lib/python3.11/site-packages/provision_runtime/fs/durable.py",
    "python": "prefix/bin/python",
    "kernel": "jupyter/kernels/rendered/kernel.json",
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_build_is_decided_by_its_products(
    product: str, lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from provision.cli import unchanged
    from provision.core import prefix_registry

    write_lock(lab / "envs" / "rendered")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(lab / "jupyter"))
    folders = default_folders()
    prefix_registry.record_prefix(folders, "rendered", lab / "prefix")
    before = unchanged.state(folders, "rendered", installed=True)
    assert before == unchanged.state(folders, "rendered", installed=True)
    make(lab / PRODUCTS[product])
    assert unchanged.state(folders, "rendered", installed=True) != before
