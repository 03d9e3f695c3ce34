"""What commands of this machine run programs from, or write to: paths in which no other user has a
hand."""

from __future__ import annotations

import grp
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provision.adapters import openssh
from provision.cli.main import cli
from provision.core.errors import SystemRefused
from provision.core.paths import Folders
from provision.core.types import Lock, Prefix
from provision.environment import prefix as prefixes
from provision.environment import runtime_package
from provision.verbs.join import environment_steps as join_environments
from provision.verbs.join.join_run import JoinRun
from provision.workflow.lab_definition import Lab, LabEnvironment
from provision.workflow.project import require_prefix
from provision.workflow.trust import require_trusted_path
from provision_runtime.node.signatures import NAMESPACE
from tests.node_stores import pack_record
from tests.programs import write_program
from tests.progress import Recorder

GROUP = "games"  # every Linux has it, and root is not in it
STRANGER = 65533
KEY = "lab-0123456789ab"
LOCK_SHA256 = "1" * 64

pytestmark = pytest.mark.root


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    (tmp_path / "lab" / "envs").mkdir(parents=True)
    return Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "lab" / "envs")


def open_to_the_group(folder: Path) -> None:
    os.chown(folder, -1, grp.getgrnam(GROUP).gr_gid)
    folder.chmod(0o2775)


def test_a_folder_of_a_group_is_refused_unless_the_lab_trusts_it(
    folders: Folders, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    require_trusted_path(folders, shared / "new")
    open_to_the_group(shared)
    with pytest.raises(SystemRefused, match=rf"group {GROUP} .*`trusted_group: {GROUP}`"):
        require_trusted_path(folders, shared / "new")
    inventory = folders.envs.parent / "nodes.yml"
    inventory.write_text(f"schema: 1\ndefaults: {{trusted_group: {GROUP}}}\n")
    require_trusted_path(folders, shared / "new")
    inventory.write_text("schema: 1\ndefaults: {trusted_group: users}\n")
    with pytest.raises(SystemRefused):
        require_trusted_path(folders, shared / "new")
    other = tmp_path / "other.yml"
    other.write_text(f"schema: 1\ndefaults: {{trusted_group: {GROUP}}}\n")
    require_trusted_path(folders, shared / "new", other)


def make_prefix(path: Path, ran: Path, **marker: str) -> Path:
    """An environment of our own package alone, whose Python leaves a trace when it starts."""
    (path / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    runtime_package.install(path, runtime_package.load())
    (path / "bin").mkdir()
    write_program(path / "bin" / "python3.11", f"#!/bin/sh\ntouch {ran}\n")
    (path / "bin" / "python").symlink_to("python3.11")
    (path / "conda-meta").mkdir()
    content = {"name": "lab", "folder": str(path), "lock_sha256": LOCK_SHA256, **marker}
    (path / prefixes.MARKER).write_text(json.dumps(content))
    return path


def test_an_environment_elsewhere_is_entered_only_where_it_is_safe(
    folders: Folders, tmp_path: Path
) -> None:
    elsewhere = make_prefix(tmp_path / "scratch" / "lab", tmp_path / "ran")
    assert require_prefix(folders, "lab", elsewhere).path == elsewhere
    (elsewhere / "bin" / "python3.11").chmod(0o757)
    with pytest.raises(SystemRefused, match=r"every user may write to .*python3\.11"):
        require_prefix(folders, "lab", elsewhere)
    (elsewhere / "bin" / "python3.11").chmod(0o755)
    os.chown(tmp_path / "scratch", STRANGER, -1)
    with pytest.raises(SystemRefused, match="scratch belongs to the user 65533"):
        require_prefix(folders, "lab", elsewhere)


def test_no_environment_is_made_where_a_group_may_change_it(
    folders: Folders, tmp_path: Path
) -> None:
    """--prefix, before anything is asked or written."""
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    open_to_the_group(shared)
    (folders.envs / "lab").mkdir()
    (folders.envs / "lab" / "spec.yml").write_text('torch: "2.6"\ncpu: true\n')
    words = ["build", "lab", "--envs", str(folders.envs), "--dry-run", "--prefix"]
    result = CliRunner().invoke(cli, [*words, str(shared / "lab")])
    assert result.exit_code == SystemRefused.exit_code
    assert f"`trusted_group: {GROUP}`" in result.stderr


# What join takes from a store


def sidecar(prefix: Path) -> dict[str, Any]:
    return pack_record(prefix, "lab", KEY)


class Store:
    """A store of this machine, to which an environment was shipped."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "opt"
        self.ran = folder / "ran"
        self.prefix = make_prefix(self.path / "envs" / KEY, self.ran, pack=KEY)
        self.link = self.path / "lab"
        self.link.symlink_to(f"envs/{KEY}")
        self.record = self.path / "images" / f"{KEY}.json"
        self.record.parent.mkdir()
        self.write(sidecar(self.prefix))

    def write(self, document: Mapping[str, Any]) -> None:
        self.record.write_text(json.dumps(document))

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python3.11"


@pytest.fixture
def store() -> Iterator[Store]:
    """At a path without a space, which `path` in nodes.yml cannot have."""
    with tempfile.TemporaryDirectory() as folder:
        yield Store(Path(folder))


@pytest.fixture
def join_run(tmp_path: Path, store: Store) -> JoinRun:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "nodes.yml").write_text(f"schema: 1\ndefaults: {{path: {store.path}}}\n")
    lab = Lab(
        name="lab",
        folder=folder,
        contact="me",
        clusters=(),
        environments=(LabEnvironment(name="lab"),),
    )
    return JoinRun(lab=lab, progress=Recorder(), act=True)


LOCK = Lock(
    path=Path("conda-lock.yml"),
    sha256=LOCK_SHA256,
    inputs_sha256="",
    content_hash="",
    packages=(),
    python_from="host",
    portable=True,
)


def of_shipped(join_run: JoinRun, lock: Lock = LOCK) -> tuple[Prefix | None, str]:
    return join_environments._shipped(join_run, "lab", lock)


def test_what_was_shipped_is_used_where_it_is_what_was_packed(
    join_run: JoinRun, store: Store
) -> None:
    prefix, problem = of_shipped(join_run)
    assert (prefix and prefix.path, problem) == (store.prefix, "")
    assert store.ran.exists()


def test_nothing_was_shipped(join_run: JoinRun, store: Store) -> None:
    store.link.unlink()
    assert of_shipped(join_run) == (None, "")


def other_bytes_of_python(store: Store) -> None:
    store.python.write_text(f"#!/bin/sh\ntouch {store.ran} \n".replace("touch", "/bin/touch"))


def other_bytes_of_the_same_length(store: Store) -> None:
    content = bytearray(store.python.read_bytes())
    content[-1:] = b" "
    store.python.write_bytes(content)


def another_file(store: Store) -> None:
    (store.prefix / "lib/python3.11/site-packages/sitecustomize.py").write_text("")


def another_package(store: Store) -> None:
    (store.prefix / "lib/python3.11/site-packages/evil-1.0.dist-info").mkdir()


def another_lock_in_the_environment(store: Store) -> None:
    content = json.loads((store.prefix / prefixes.MARKER).read_text())
    (store.prefix / prefixes.MARKER).write_text(json.dumps({**content, "lock_sha256": "9" * 64}))


def record_of_another_pack(store: Store) -> None:
    store.write({**sidecar(store.prefix), "key": "lab-ba9876543210"})


def no_record(store: Store) -> None:
    store.record.unlink()


def record_that_is_none(store: Store) -> None:
    store.record.write_text("[" * 10)


def another_runtime(store: Store) -> None:
    package = store.prefix / "lib/python3.11/site-packages/provision_runtime/__init__.py"
    package.write_text("")
    store.write(sidecar(store.prefix))


def store_of_a_group(store: Store) -> None:
    open_to_the_group(store.path)


def store_of_a_stranger(store: Store) -> None:
    os.chown(store.path, STRANGER, STRANGER)


def tree_of_a_stranger(store: Store) -> None:
    os.chown(store.prefix, STRANGER, STRANGER)


def link_of_a_stranger(store: Store) -> None:
    os.lchown(store.link, STRANGER, STRANGER)


def record_of_a_stranger(store: Store) -> None:
    os.chown(store.record, STRANGER, STRANGER)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_bytes_of_python, "not those of its pack"),
        (other_bytes_of_the_same_length, "not those of its pack"),
        (another_file, "not those of its pack"),
        (another_package, "does not have the packages of its lock"),
        (another_lock_in_the_environment, "is of another lock"),
        (record_of_another_pack, "not those of its pack"),
        (no_record, "not those of its pack"),
        (record_that_is_none, "not those of its pack"),
        (another_runtime, "by another version of provision"),
        (store_of_a_group, f"the group {GROUP} may write to"),
        (store_of_a_stranger, "belongs to the user 65533"),
        (tree_of_a_stranger, "belongs to the user 65533"),
        (link_of_a_stranger, "belongs to the user 65533"),
        (record_of_a_stranger, "belongs to the user 65533"),
    ],
)
def test_what_is_not_what_was_packed_never_runs(
    join_run: JoinRun, store: Store, change: Callable[[Store], None], why: str
) -> None:
    change(store)
    prefix, problem = of_shipped(join_run)
    assert prefix is None
    assert why in problem
    assert not store.ran.exists()


def test_what_was_shipped_of_another_lock_never_runs(join_run: JoinRun, store: Store) -> None:
    prefix, problem = of_shipped(join_run, replace(LOCK, sha256="8" * 64))
    assert prefix is None and "is of another lock (111111111111)" in problem
    assert not store.ran.exists()


def test_members_trust_the_group_that_their_lab_names(join_run: JoinRun, store: Store) -> None:
    store_of_a_group(store)
    inventory = join_run.lab.folder / "nodes.yml"
    text = f"schema: 1\ndefaults: {{path: {store.path}, trusted_group: {GROUP}}}\n"
    inventory.write_text(text)
    prefix, problem = of_shipped(join_run)
    assert prefix is not None and not problem


@pytest.mark.needs("ssh-keygen")
def test_what_the_lab_did_not_sign_never_runs(
    join_run: JoinRun, store: Store, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"ann@lab {key.with_suffix('.pub').read_text()}")
    join_run.lab = replace(join_run.lab, allowed_signers=signers)
    assert "is not a signature" in of_shipped(join_run)[1]
    for root, is_used in ((sidecar(store.prefix)["root"], True), ("7" * 64, False)):
        statement = json.dumps({**sidecar(store.prefix), "root": root})
        signature = openssh.sign(statement, key, NAMESPACE)
        document = {"statement": statement, "signature": signature}
        store.record.with_suffix(".signature").write_text(json.dumps(document))
        assert (of_shipped(join_run)[0] is not None) is is_used
