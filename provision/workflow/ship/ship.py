"""`provision ship`, `activate` and `rollback`: an environment on the nodes of a cluster."""

from __future__ import annotations

import dataclasses
import getpass
import hashlib
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from provision.cluster import pack as packs
from provision.cluster.inventory import NodeSelection
from provision.cluster.pack import Pack
from provision.core.errors import InvalidSpec
from provision.core.file_locks import environment_lock
from provision.resolver import spec as specs
from provision.workflow.context import Context, refuse_mistyped_name
from provision.workflow.ship import journal as ship_journal
from provision.workflow.ship.activation import Activation
from provision.workflow.ship.journal import RecordedShipment, ShipJournal
from provision.workflow.ship.registry_shipment import RegistryShipment
from provision.workflow.ship.shipment import Shipment, ShipOptions
from provision.workflow.ship.stages import RunIdentity, StageOptions, StageRun
from provision.workflow.ship.states import CommonFailure, NodeState, State, required_nodes

# provision.lockfile.FILE; importing that package would take as long as asking 20 nodes.
LOCK_FILE = "conda-lock.yml"

Verb = Literal["ship", "activate", "rollback"]


@dataclass(frozen=True, kw_only=True)
class ShipReport:
    """What a verb did, by node where it differs.

    goal: the state that nodes should reach; required: how many of them. ways: how the environment
    was installed. removed: older environments; in_use: those that would be removed, and stay because
    jobs use them. stopped: the reason for which too many nodes failed, if that ended the run. notes:
    why only the account that ships can start it. sent_bytes: by this machine. journal: None for a
    dry run.
    """

    verb: Verb
    name: str
    key: str
    goal: State
    required: int
    states: Mapping[str, NodeState]
    ways: Mapping[str, str]
    removed: Mapping[str, Sequence[str]]
    in_use: Mapping[str, Sequence[str]]
    stopped: CommonFailure | None
    notes: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    sent_bytes: int = 0
    copies_between_nodes: int = 0
    dry_run: bool = False
    from_registry: bool = False
    journal: Path | None = None

    @property
    def ready(self) -> int:
        """How many nodes are where they should be."""
        reached = ("passed", "active") if self.goal == "passed" else ("active",)
        return sum(state.state in reached for state in self.states.values())

    @property
    def succeeded(self) -> bool:
        """Whether enough nodes are; for a dry run, whether enough could be."""
        if not self.dry_run:
            return self.ready >= self.required
        hopeless = ("failed", "unknown")
        possible = [state for state in self.states.values() if state.state not in hopeless]
        return len(possible) >= self.required


def ship(
    context: Context,
    name: str,
    selection: NodeSelection,
    options: ShipOptions,
    *,
    inventory: Path | None = None,
    resume: bool = False,
    dry_run: bool = False,
) -> ShipReport:
    """Bring an environment's latest pack to nodes and activate it there.

    inventory: the nodes.yml that the selection was made with, if any. resume: go on with the latest
    ship of this environment from here.
    """
    refuse_mistyped_name(context.folders, specs.check_name(name))
    pack = packs.read_pack(packs.pack_path(context.folders, name))
    _warn_if_outdated(context, pack)
    with _ship_lock(context, name):
        recorded = _recorded(context, pack) if resume else None
        _check_path(pack, selection)
        required = required_nodes(options.minimum, len(selection.nodes))
        journal = None
        if not dry_run:
            journal = _open_journal(
                context, "ship", pack.name, pack.key, selection, inventory, recorded
            )
        with _closing(journal, context):
            shipment = Shipment(
                selection,
                pack,
                _identity(context, journal),
                options,
                journal,
                context.progress,
                finished=_finished_nodes(recorded, selection),
            )
            if dry_run:
                shipment.check(shipment.in_state("pending"), options.deadline_s)
            else:
                shipment.ship()
    return dataclasses.replace(
        _report("ship", pack.key, shipment, journal),
        goal="passed" if options.stage_only else "active",
        required=min(required, len(shipment.states)),
        size=pack.sidecar["size"],
        sent_bytes=shipment.distribution.sent_bytes,
        copies_between_nodes=shipment.distribution.copies_between_nodes,
        dry_run=dry_run,
    )


def ship_from_registry(
    context: Context,
    name: str,
    selection: NodeSelection,
    place: str,
    options: ShipOptions,
    *,
    dry_run: bool = False,
) -> ShipReport:
    """Have nodes pull an image by the digest that its registry has for a reference now.

    Raises what `image show` raises for a registry that does not answer.
    """
    from provision import image as images  # a ship of a pack has no use for it, and starts faster

    specs.check_name(name)
    required_nodes(options.minimum, len(selection.nodes))
    tag = images.parse_registry_reference(place)
    remote = images.find_remote(tag)
    reference = tag.with_digest(remote.digest)
    with _ship_lock(context, name):
        journal = None
        if not dry_run:
            journal = _open_journal(context, "ship", name, reference, selection, None, None)
        with _closing(journal, context):
            identity = _identity(context, journal)
            run = RegistryShipment(selection, name, identity, options, journal, context.progress)
            size = remote.size
            if not dry_run:
                run.ship(reference, size, stage_only=options.stage_only)
    return dataclasses.replace(
        _report("ship", reference, run, journal),
        goal="passed" if options.stage_only else "active",
        size=size,
        dry_run=dry_run,
        from_registry=True,
    )


def activate(
    context: Context,
    name: str,
    selection: NodeSelection,
    options: StageOptions,
    key: str | None,
    dry_run: bool = False,
) -> ShipReport:
    """Make an environment that nodes have the active one. key: None for the latest pack here."""
    refuse_mistyped_name(context.folders, specs.check_name(name))
    if key is None:
        key = packs.read_pack(packs.pack_path(context.folders, name)).key
    return _switch(context, "activate", name, selection, options, key, dry_run)


def rollback(
    context: Context,
    name: str,
    selection: NodeSelection,
    options: StageOptions,
    key: str | None,
    dry_run: bool = False,
) -> ShipReport:
    """Go back to the environment that was active before. key: None for the one before."""
    refuse_mistyped_name(context.folders, specs.check_name(name))
    return _switch(context, "rollback", name, selection, options, key, dry_run)


def _switch(
    context: Context,
    verb: Verb,
    name: str,
    selection: NodeSelection,
    options: StageOptions,
    key: str | None,
    dry_run: bool,
) -> ShipReport:
    required_nodes(options.minimum, len(selection.nodes))
    if key is not None and not re.fullmatch(re.escape(name) + "-[0-9a-f]{12}", key):
        raise InvalidSpec(
            f"--key {key} is not a key of {name}.",
            advice=f"Keys look like {name}-0123456789ab: the folders in `envs` on the nodes.",
        )
    with _ship_lock(context, name):
        journal = None
        if not dry_run:
            journal = _open_journal(context, verb, name, key or "", selection, None, None)
        with _closing(journal, context):
            identity = _identity(context, journal)
            run = Activation(selection, name, identity, options, journal, context.progress)
            histories = run.ask_history()
            if key is None:
                key = run.previous_key(histories)
            if key is not None:
                run.select(key, histories)
            if key is not None and not dry_run:
                run.switch(key)
    report = _report(verb, key or "", run, journal)
    return dataclasses.replace(report, dry_run=dry_run)


def _report(verb: Verb, key: str, run: StageRun, journal: ShipJournal | None) -> ShipReport:
    return ShipReport(
        verb=verb,
        name=run.name,
        key=key,
        goal="active",
        required=run.required(),
        states=dict(run.states),
        ways=dict(run.ways),
        notes=dict(run.notes),
        removed=dict(run.removed),
        in_use=dict(run.in_use),
        stopped=run.stopped,
        journal=journal.path if journal else None,
    )


@contextmanager
def _ship_lock(context: Context, name: str) -> Iterator[None]:
    """One run of an environment from here at a time. Builds and packs may go on meanwhile."""
    with environment_lock(context.folders, f"{name}.ship", context.progress, wait=context.wait):
        yield


@contextmanager
def _closing(journal: ShipJournal | None, context: Context) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if journal is not None:
            context.progress.warn(
                f"what nodes answered is in {journal.path}; others may have changed too. The same "
                "command again asks them, and goes on from there"
            )
        raise
    finally:
        if journal is not None:
            journal.close()


def _journals(context: Context, name: str) -> Path:
    return context.folders.data / "ships" / name


def _open_journal(
    context: Context,
    verb: Verb,
    name: str,
    key: str,
    selection: NodeSelection,
    inventory: Path | None,
    recorded: RecordedShipment | None,
) -> ShipJournal:
    if recorded is not None:
        return ship_journal.reopen(recorded)
    header: dict[str, Any] = {
        "verb": verb,
        "name": name,
        "key": key,
        "on": selection.text,
        "inventory": str(inventory.absolute()) if inventory else None,
        "nodes": [node.name for node in selection.nodes],
        "options": {},
    }
    run_id = ship_journal.new_run_id()
    return ship_journal.create(_journals(context, name), run_id, header)


def _warn_if_outdated(context: Context, pack: Pack) -> None:
    """The lock may have been updated since it was packed."""
    path = context.folders.envs / pack.name / LOCK_FILE
    if path.exists():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != pack.sidecar["lock_sha256"]:
            context.progress.warn(
                f"{path} has changed since {pack.key} was packed: `provision pack {pack.name}` "
                "packs the new lock."
            )


def recorded_nodes(context: Context, name: str) -> tuple[str, Path | None]:
    """The nodes of the latest run of an environment: its --on and its nodes.yml. Raises
    InvalidSpec."""
    recorded = _latest_ship(context, specs.check_name(name))
    inventory = recorded.header["inventory"]
    return recorded.header["on"], Path(inventory) if inventory else None


def _latest_ship(context: Context, name: str) -> RecordedShipment:
    recorded = ship_journal.latest(_journals(context, name))
    if recorded is None:
        raise InvalidSpec(
            f"No ship of {name} from here can be resumed.", advice="Leave out --resume."
        )
    return recorded


def _recorded(context: Context, pack: Pack) -> RecordedShipment:
    """The latest run of this environment. Raises InvalidSpec if it was of another pack."""
    recorded = _latest_ship(context, pack.name)
    if recorded.header["key"] != pack.key:
        raise InvalidSpec(
            f"The last ship of {pack.name} was of {recorded.header['key']}, and the pack is "
            f"{pack.key} now.",
            advice="Leave out --resume: nothing is sent twice either way.",
        )
    return recorded


def _finished_nodes(recorded: RecordedShipment | None, selection: NodeSelection) -> list[str]:
    if recorded is None:
        return []
    names = {node.name for node in selection.nodes}
    return [
        name for name, state in recorded.states.items() if state.state == "active" and name in names
    ]


def _check_path(pack: Pack, selection: NodeSelection) -> None:
    """Raise InvalidSpec if the pack's scripts name another path than the nodes have."""
    path = selection.defaults.path
    if all(node.engine == "exec" for node in selection.nodes):
        return  # simulated nodes have a path each
    expected = PurePosixPath(path, "envs", pack.key)
    if pack.install_path != expected:
        raise InvalidSpec(
            f"{pack.key} was packed for {pack.install_path.parents[1]}, and the nodes' path is "
            f"{path}.",
            advice=f"`provision pack {pack.name} --install-path {path}`, or `path:` in nodes.yml.",
        )


def _identity(context: Context, journal: ShipJournal | None) -> RunIdentity:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such number in the user database
        user = str(os.getuid())
    host = socket.gethostname()
    return RunIdentity(
        id=journal.run_id if journal else "",
        source=f"{host}:{os.getuid()}:{context.folders.data}",
        by=f"{user}@{host} (process {os.getpid()})",
    )
