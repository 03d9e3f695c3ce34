"""What a store says of itself, what may go from it, whose packs it takes, and its modulefiles."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import openssh
from provision_runtime.node import (
    activation,
    install,
    modulefile,
    store_contents,
    store_files,
    store_status,
)
from provision_runtime.node.errors import NodeError
from provision_runtime.node.results import IS_ACTIVE
from provision_runtime.node.signatures import NAMESPACE
from provision_runtime.node.store import Store
from tests.conftest import absence
from tests.integration.waiting import eventually
from tests.node_stores import NAME, RUN, PackedToy, pack_toy, receive, refused, ship


@pytest.fixture
def other(tmp_path: Path) -> PackedToy:
    return pack_toy(tmp_path, "2")


def remove(store: Store, *keys: str, active_too: bool = False, dry_run: bool = False) -> Any:
    return store_contents.remove(store.path, NAME, list(keys), active_too, dry_run, RUN)


def states(store: Store) -> dict[str, str]:
    return {row["key"]: row["state"] for row in store_contents.contents(store.path)["environments"]}


def test_contents_and_what_may_go(store: Store, toy: PackedToy, other: PackedToy) -> None:
    assert states(store) == {}, "nothing was shipped there yet"
    ship(store, toy)
    ship(store, other)
    assert states(store) == {toy.key: "installed", other.key: "active"}
    kept = {other.key: IS_ACTIVE}
    for dry_run in (True, False):
        assert remove(store, dry_run=dry_run) == {"removed": [toy.key], "retained": kept}
    assert remove(store, active_too=True)["removed"] == [other.key]
    assert states(store) == {}
    assert not Path(store.link(NAME)).is_symlink()
    assert list(Path(store.path, "metrics").iterdir()) == []


def test_what_a_process_uses_stays(store: Store, toy: PackedToy, other: PackedToy) -> None:
    ship(store, toy)
    ship(store, other)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE,
                             cwd=store.environment(toy.key))  # fmt: skip
    try:
        for dry_run in (True, False):
            assert toy.key in remove(store, toy.key, dry_run=dry_run)["retained"]
    finally:
        child.communicate(b"\n")
    assert toy.key in states(store)


def test_an_environment_that_lost_its_mount_is_named(store: Store, toy: PackedToy) -> None:
    ship(store, toy)
    store_files.remove_tree(store.environment(toy.key))
    assert states(store) == {toy.key: "unmounted"}


def test_log_says_who_and_from_where(
    store: Store, toy: PackedToy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.7 5000 192.0.2.1 22")
    ship(store, toy)
    [*_, last] = store_contents.log(store.path, NAME)["events"]
    assert (last["event"], last["by"], last["client"]) == ("activated", RUN["by"], "192.0.2.7")
    assert store_contents.log(store.path, "another")["events"] == []


# Signatures


@pytest.fixture
def key(store: Store, tmp_path: Path) -> Path:
    """A key whose owner may sign, for a store that demands it."""
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    Path(store.path).mkdir()
    signers = Path(store.path, "allowed_signers")
    signers.write_text(f'ann@lab namespaces="{NAMESPACE}" {path.with_suffix(".pub").read_text()}')
    return path


def signed(toy: PackedToy, key: Path, at: str, **changes: str) -> dict[str, str]:
    statement = json.dumps({**toy.pack, "signed_at": at, **changes})
    return {"statement": statement, "signature": openssh.sign(statement, key, NAMESPACE)}


def bring(store: Store, toy: PackedToy, signature: dict[str, str] | None, **run: str) -> None:
    """A whole ship."""
    run = {**RUN, **run}
    store_status.status(store.path, toy.pack, run, signature)
    receive(store, toy)
    install.install(store.path, NAME, toy.key, run, signed=signature)
    activation.activate(store.path, NAME, toy.key, run)


@pytest.mark.needs("ssh-keygen")
def test_only_packs_of_allowed_signers(store: Store, toy: PackedToy, key: Path) -> None:
    stranger = key.with_name("stranger")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", stranger], check=True)
    good = signed(toy, key, "2026-01-01")
    for bad in (
        None,
        signed(toy, stranger, "2026-01-01"),
        signed(toy, key, "2026-01-01", sha256="0" * 64),
        {**good, "statement": good["statement"].replace("2026", "2027")},
        {**good, "signature": "none"},
    ):
        with refused("not-signed"):
            bring(store, toy, bad)
    # What was copied there by other means is not installed either.
    receive(store, toy)
    with refused("not-signed"):
        install.install(store.path, NAME, toy.key, RUN)
    bring(store, toy, good)
    assert states(store) == {toy.key: "active"}
    # The record counts from then on.
    activation.activate(store.path, NAME, toy.key, RUN)


@pytest.mark.needs("ssh-keygen")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('ann@lab valid-before="20200101" KEY', "key has expired"),
        ('ann@lab namespaces="git" KEY', "not permitted for use in signature namespace"),
        ("ann@lab namespaces KEY", "allowed_signers:1: "),
        ("", "No principal matched"),
    ],
)
def test_signers_that_do_not_allow_it(
    store: Store, toy: PackedToy, key: Path, line: str, why: str
) -> None:
    public_key = key.with_suffix(".pub").read_text()
    Path(store.path, "allowed_signers").write_text(line.replace("KEY", public_key))
    with pytest.raises(NodeError, match=why) as error:
        bring(store, toy, signed(toy, key, "2026-01-01"))
    assert error.value.reason == "not-signed"


@pytest.mark.needs("ssh-keygen")
def test_a_bad_line_of_the_signers_does_not_hide_the_others(
    store: Store, toy: PackedToy, key: Path
) -> None:
    signers = Path(store.path, "allowed_signers")
    signers.write_text("this is no line\n" + signers.read_text())
    bring(store, toy, signed(toy, key, "2026-01-01"))


def a_pipe(signers: Path) -> None:
    signers.unlink()
    os.mkfifo(signers)


def a_link_to_nothing(signers: Path) -> None:
    signers.unlink()
    signers.symlink_to("/nonexistent")


def open_behind_a_link(signers: Path) -> None:
    target = signers.rename(signers.parents[1] / "signers")
    target.chmod(0o666)
    signers.symlink_to(target)


@pytest.mark.needs("ssh-keygen")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (a_pipe, "allowed_signers is not a file"),
        (a_link_to_nothing, "allowed_signers is not a file"),
        (open_behind_a_link, "may write to"),
    ],
)
def test_signers_that_are_no_file_of_ours(
    store: Store, toy: PackedToy, key: Path, change: Callable[[Path], None], why: str
) -> None:
    change(Path(store.path, "allowed_signers"))
    with pytest.raises(NodeError, match=why):
        bring(store, toy, signed(toy, key, "2026-01-01"))


@pytest.mark.needs("ssh-keygen")
def test_signers_of_the_lab_count_where_the_store_names_none(
    store: Store, toy: PackedToy, other: PackedToy, key: Path
) -> None:
    signers = Path(store.path, "allowed_signers")
    text = signers.read_text()
    signers.unlink()
    with pytest.raises(NodeError, match="the lab's allowed_signers demands one"):
        bring(store, toy, None, signers=text)
    bring(store, toy, signed(toy, key, "2026-02-02"), signers=text)
    with refused("older-pack"):
        bring(store, other, signed(other, key, "2026-01-01"), signers=text)


@pytest.mark.needs("ssh-keygen")
def test_a_pack_that_was_signed_earlier_is_refused(
    store: Store, toy: PackedToy, other: PackedToy, key: Path
) -> None:
    bring(store, toy, signed(toy, key, "2026-02-02"))
    older = signed(other, key, "2026-01-01")
    with refused("older-pack"):
        bring(store, other, older)
    bring(store, other, older, allow_older="yes")
    assert states(store)[other.key] == "active"


# Modulefiles


def version(store: Store, folder: Path) -> str:
    return (folder / NAME / ".version").read_text().rpartition("ModulesVersion")[2].strip(' "\n')


def test_the_modulefile_is_switched_with_the_environment(
    store: Store, toy: PackedToy, other: PackedToy, tmp_path: Path
) -> None:
    folder = tmp_path / "modules"
    ship(store, toy)
    modulefile.enable(store.path, NAME, str(folder), RUN)
    assert version(store, folder) == toy.key[-12:]
    ship(store, other)
    assert version(store, folder) == other.key[-12:]
    text = (folder / NAME / other.key[-12:]).read_text()
    assert f"{other.key}/bin" in text
    assert "family provision" in text  # one of all names: they set the same variables
    activation.activate(store.path, NAME, toy.key, RUN)
    assert version(store, folder) == toy.key[-12:]
    remove(store, active_too=True)
    assert not (folder / NAME).exists()


# Of Debian's packages lmod and environment-modules, which exclude each other.
MODULE_COMMANDS = ("/usr/share/lmod/lmod/init/bash", "/usr/share/modules/init/bash")


def test_module_loads_the_active_environment_and_unloads_all_of_it(
    toy: PackedToy, other: PackedToy, tmp_path: Path, open_folder: Path
) -> None:
    """Also after another one became active meanwhile: the loaded one's paths are its own. They are
    text to Tcl, whatever they hold."""
    command = next(filter(os.path.exists, MODULE_COMMANDS), None)
    if command is None:
        absence("module", "neither lmod nor environment-modules is installed")
    # Lmod reads no folder with a space in its path.
    folder, store = open_folder / "modules", Store(str(tmp_path / "a [pwd] $HOME" / "store"))
    ship(store, toy)
    modulefile.enable(store.path, NAME, str(folder), RUN)
    shown = 'echo "<${CONDA_PREFIX-}|${PYTHONPATH##*/}|${PATH%%:*}>"'
    switch = tmp_path / "switch"
    script = f"""
    . {command}; module use {shlex.quote(str(folder))}; {shown}
    module load {NAME}; {shown}
    switch={shlex.quote(str(switch))}; touch "$switch"; while [ -e "$switch" ]; do sleep 0.05; done
    module unload {NAME}; {shown}
    module load {NAME}; {shown}
    module switch {NAME}/{toy.key[-12:]}; {shown}
    module load none || echo absent
    """
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": "/foreign"}
    with subprocess.Popen(
        ["bash", "-c", script], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as shell:  # fmt: skip
        eventually(lambda: shell.poll() is not None or switch.exists())
        ship(store, other)
        switch.unlink(missing_ok=True)
        out, err = shell.communicate()
    first, second = store.environment(toy.key), store.environment(other.key)
    assert [line for line in out.splitlines() if line] == [
        "<|foreign|/usr/bin>",
        f"<{first}||{first}/bin>",
        "<||/usr/bin>",  # nothing brings back what `unsetenv` removed
        f"<{second}||{second}/bin>",
        f"<{first}||{first}/bin>",
        "absent",
    ], err


def test_a_modulefile_of_somebody_else_stays(store: Store, toy: PackedToy, tmp_path: Path) -> None:
    ship(store, toy)
    foreign = tmp_path / "modules" / NAME / ".version"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("#%Module1.0\n")
    with refused("not-ours"):
        modulefile.enable(store.path, NAME, str(tmp_path / "modules"), RUN)
    assert foreign.read_text() == "#%Module1.0\n"
