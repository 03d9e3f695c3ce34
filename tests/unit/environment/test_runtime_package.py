"""The runtime package: which files it has, how it gets into a prefix, and that it is an ordinary package there."""

from __future__ import annotations

import csv
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from provision.adapters import installed_files
from provision.core import atomic
from provision.core.errors import IntegrityError, SystemRefused
from provision.core.paths import Folders
from provision.core.types import Prefix
from provision.environment import activation, install_record, runtime_package
from provision.workflow.context import Context
from provision.workflow.ensure import ensure_runtime
from provision_runtime import __version__
from tests.progress import Recorder


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    (tmp_path / "env" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    return tmp_path / "env"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "smoke").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "smoke" / "runner.py").write_text("x = 1\n")
    return folder


def test_package_contains_only_code_and_data(source: Path) -> None:
    (source / "smoke" / "table.json").write_text("{}")
    (source / "smoke" / "__pycache__").mkdir()
    (source / "smoke" / "__pycache__" / "runner.cpython-311.pyc").write_text("byte code")
    for stray in ("smoke/runner.py~", "smoke/.#runner.py", "notes.txt", "smoke/.hidden.py"):
        (source / stray).write_text("an editor's")
    package = runtime_package.load(source, "1.2")
    assert list(package.files) == [
        "provision_runtime-1.2.dist-info/INSTALLER",
        "provision_runtime-1.2.dist-info/METADATA",
        "provision_runtime-1.2.dist-info/RECORD",
        "provision_runtime-1.2.dist-info/WHEEL",
        "provision_runtime/__init__.py",
        "provision_runtime/smoke/runner.py",
        "provision_runtime/smoke/table.json",
    ]


def test_package_bytes_are_reproducible(source: Path) -> None:
    first = runtime_package.load(source, "1.2")
    (source / "smoke" / "runner.py").touch()
    assert runtime_package.load(source, "1.2") == first
    (source / "smoke" / "runner.py").write_text("x = 2\n")
    assert runtime_package.load(source, "1.2").sha256 != first.sha256
    assert runtime_package.load(source, "1.3").sha256 != first.sha256


def test_record_has_the_hash_and_size_of_every_file_but_itself() -> None:
    package = runtime_package.load()
    rows = list(csv.reader(package.files[f"{package.dist_info}/RECORD"].decode().splitlines()))
    assert [row[0] for row in rows] == sorted(package.files)
    for path, digest, size in rows:
        content = package.files[path]
        if path.endswith("/RECORD"):
            assert (digest, size) == ("", "")
        else:
            assert (digest, size) == (installed_files.record_hash(content), str(len(content)))


def test_python_imports_it_and_reads_its_metadata(prefix: Path) -> None:
    runtime_package.install(prefix, runtime_package.load())
    site = runtime_package.site_packages(prefix)
    (distribution,) = metadata.distributions(path=[str(site)])
    assert (distribution.metadata["Name"], distribution.version) == (
        "provision-runtime",
        __version__,
    )
    assert distribution.read_text("INSTALLER") == "provision\n"
    assert all(Path(str(file.locate())).is_file() for file in distribution.files or ())
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import provision_runtime.checkpoint.layout"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", script, site], check=True)


def test_installation_is_current_until_a_file_changes(prefix: Path) -> None:
    package = runtime_package.load()
    assert runtime_package.installed(prefix) is None
    assert not runtime_package.is_current(prefix, package)
    runtime_package.install(prefix, package)
    assert runtime_package.is_current(prefix, package)
    installed = runtime_package.installed(prefix)
    assert installed is not None
    assert (installed.version, installed.sha256) == (package.version, package.sha256)
    site = runtime_package.site_packages(prefix)
    (site / "provision_runtime" / "cli.py").unlink()
    assert not runtime_package.is_current(prefix, package)
    runtime_package.install(prefix, package)
    assert runtime_package.is_current(prefix, package)


def test_other_version_is_replaced_completely(prefix: Path, source: Path) -> None:
    (source / "old.py").write_text("")
    runtime_package.install(prefix, runtime_package.load(source, "0.0.1"))
    package = runtime_package.load()
    assert not runtime_package.is_current(prefix, package)
    runtime_package.install(prefix, package)
    site = runtime_package.site_packages(prefix)
    names = ["provision_runtime", package.dist_info, runtime_package.PTH]
    assert sorted(path.name for path in site.iterdir()) == names
    assert not (site / "provision_runtime" / "old.py").exists()


def test_leftovers_of_a_killed_installation_are_removed(prefix: Path, source: Path) -> None:
    site = runtime_package.site_packages(prefix)
    for leftover in (
        ".provision_runtime.provision-building",
        ".provision_runtime-0.0.1.dist-info.provision-building",
        ".provision_runtime.provision-replaced",
    ):
        (site / leftover).mkdir()
    runtime_package.install(prefix, runtime_package.load(source, "1.2"))
    assert sorted(path.name for path in site.iterdir()) == [
        "provision_runtime",
        "provision_runtime-1.2.dist-info",
    ]


@pytest.mark.parametrize("step", [1, 2])
def test_killed_update_is_repaired(
    prefix: Path, source: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    runtime_package.install(prefix, runtime_package.load(source, "0.0.1"))
    package = runtime_package.load()
    steps: list[Path] = []

    def killed(path: Path) -> None:
        steps.append(path)
        if len(steps) == step:
            raise KeyboardInterrupt
        atomic.replace_directory(path)

    monkeypatch.setattr(runtime_package, "replace_directory", killed)
    with pytest.raises(KeyboardInterrupt):
        runtime_package.install(prefix, package)
    assert not runtime_package.is_current(prefix, package)
    assert runtime_package.installed(prefix) is None
    monkeypatch.undo()
    runtime_package.install(prefix, package)
    assert runtime_package.is_current(prefix, package)


def test_condas_python_link_is_not_another_python(prefix: Path) -> None:
    (prefix / "lib" / "python3.1").symlink_to("python3.11")
    assert runtime_package.site_packages(prefix).parent.name == "python3.11"


def test_a_prefix_without_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match=r"has no lib/python3\.\*/site-packages"):
        runtime_package.install(tmp_path, runtime_package.load())


def test_unwritable_prefix_is_reported(
    prefix: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path, content: bytes) -> int:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "write_bytes", refused)
    with pytest.raises(
        SystemRefused,
        match=r"has no current provision_runtime, and you may not write there: Permission denied.*owner",
    ):
        runtime_package.install(prefix, runtime_package.load(source, "1.2"))


def installed_environment(prefix: Path) -> Prefix:
    """With the runtime package, its interpreter and scripts, and a record of all that."""
    runtime_package.install(prefix, runtime_package.load())
    activation.write_scripts(prefix)
    # The interpreter that compiles what is installed.
    (prefix / "bin" / "python").symlink_to(sys.executable)
    install_record.write(prefix, {})
    return Prefix(name="lab", path=prefix, lock_sha256="0" * 64)


def test_environment_lock_is_taken_only_to_install(prefix: Path, tmp_path: Path) -> None:
    """So that `smoke` and `kernel add` also work in a prefix that they may not write to."""
    folders = Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")
    context = Context(folders=folders, progress=Recorder())
    environment = installed_environment(prefix)
    ensure_runtime(context, environment)
    assert not folders.data.exists()
    (runtime_package.site_packages(prefix) / "provision_runtime" / "cli.py").unlink()
    ensure_runtime(context, environment)
    assert (folders.data / "locks" / "lab").exists()
    assert runtime_package.is_current(prefix, runtime_package.load())
