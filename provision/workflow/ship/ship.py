"""`provision ship`, `activate` and `rollback`: an environment on the nodes of a cluster."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Literal

from provision.cluster import pack as packs
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.pack import Pack
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.file_locks import environment_lock
from provision.resolver import spec as specs
from provision.workflow.context import Context, refuse_mistyped_name
from provision.workflow.ship.activation import ActivationRun
from provision.workflow.ship.shipment import Shipment
from provision.workflow.ship.stages import RunIdentity, RunSetup, ShipOptions, StageRun
from provision.workflow.ship.states import (
    CommonFailure,
    NodeDetails,
    NodeState,
    State,
    plan_waves,
    required_nodes,
)

# provision.lockfile.FILE; importing that package would take as long as asking 20 nodes.
LOCK_FILE = "conda-lock.yml"
LAB_FILE = "lab.yml"
Profile = Literal["quick", "default", "full"]
Verb = Literal["ship", "activate", "rollback"]


@dataclass(frozen=True, kw_only=True)
class ShipReport:
    """What a verb did, by node where it differs.

    goal: the state that nodes should reach; required: how many of them. stopped: the reason for
    which too many nodes failed, if that ended the run. sent_bytes: by this machine. halted: why a
    wave was the last. left_out: nodes out of service.
    """

    verb: Verb
    name: str
    selection: NodeSelection
    key: str
    goal: State
    required: int
    states: Mapping[str, NodeState]
    details: Mapping[str, NodeDetails]
    stopped: CommonFailure | None
    size: int = 0
    sent_bytes: int = 0
    copies_between_nodes: int = 0
    dry_run: bool = False
    halted: str = ""
    left_out: tuple[Node, ...] = ()

    @property
    def ready(self) -> int:
        """How many nodes are where they should be."""
        reached = ("passed", "active") if self.goal == "passed" else ("active",)
        return sum(state.state in reached for state in self.states.values())

    @property
    def succeeded(self) -> bool:
        """Whether enough nodes are; for a dry run, whether enough could be."""
        if not self.dry_run:
            return self.ready >= self.required and not self.halted
        return self.possible >= self.required

    @property
    def possible(self) -> int:
        """How many nodes could be where they should be."""
        return sum(state.state not in ("failed", "unknown") for state in self.states.values())


@dataclass(frozen=True, kw_only=True)
class ShipRequest:
    """smoke: the profile with which each wave is tested. left_out: nodes out of service."""

    name: str
    selection: NodeSelection
    options: ShipOptions
    dry_run: bool = False
    smoke: Profile | None = None
    left_out: tuple[Node, ...] = ()


def ship(context: Context, request: ShipRequest) -> ShipReport:
    """Bring an environment's latest pack to nodes and activate it there."""
    selection, options = request.selection, request.options
    refuse_mistyped_name(context.folders, specs.check_name(request.name))
    pack = packs.read_pack(packs.pack_path(context.folders, request.name))
    # The lock may have been updated since it was packed.
    path = context.folders.envs / pack.name / LOCK_FILE
    if path.exists():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != pack.sidecar["lock_sha256"]:
            context.progress.warn(
                f"{path} has changed since {pack.key} was packed: `provision pack {pack.name}` "
                "packs the new lock."
            )
    _check_path(pack, selection)
    required = required_nodes(options.minimum, len(selection.nodes))
    waves = plan_waves(options.waves, selection.nodes, len(selection.nodes))
    test_wave = None
    if request.smoke:
        from provision.workflow.plan import BuildRequest, make_plan

        make_plan(context, BuildRequest(name=request.name))  # raises before anything is activated
        test_wave = partial(_test_wave, context, request, request.smoke)
    with _locked_run(context, request) as run:
        shipment = Shipment(run, pack, test_wave)
        if request.dry_run:
            shipment.check(shipment.in_state("pending"), options.deadline_s)
        else:
            shipment.ship()
    return replace(
        _report("ship", pack.key, request, shipment),
        required=min(required, sum(map(len, waves)), len(shipment.states)),
        halted=shipment.halted,
        size=pack.size,
        sent_bytes=shipment.distribution.sent_bytes,
        copies_between_nodes=shipment.distribution.copies_between_nodes,
    )


def _test_wave(
    context: Context, request: ShipRequest, profile: Profile, nodes: Sequence[Node]
) -> str:
    """Why the smoke test does not pass on nodes; empty if it does."""
    from provision.workflow.plan import BuildRequest  # the smoke test is not for every ship
    from provision.workflow.smoke.nodes import NodesRequest, smoke_nodes
    from provision.workflow.smoke.runner import SmokeRequest
    from provision_runtime.report.model import succeeded

    selection = replace(request.selection, nodes=tuple(nodes))
    build_request = BuildRequest(name=request.name, smoke_request=SmokeRequest(profile=profile))
    try:
        result = smoke_nodes(context, build_request, NodesRequest(selection=selection))
    except ProvisionError as error:
        return f"smoke test: {error.message}"
    if succeeded(result.verdict):
        return ""
    findings = result.whole.findings if result.whole else ()
    ids = dict.fromkeys(
        [
            *(finding.id for finding in findings),
            *(failure.reason for failure in result.failures.values()),
        ]
    )
    return f"smoke test: {result.verdict} ({', '.join(ids) or 'no result'}); evidence: {result.evidence}"


def switch(context: Context, verb: Verb, request: ShipRequest, key: str | None) -> ShipReport:
    """Make an environment that nodes have the active one. key: None for the latest pack here, or to
    roll back to the one that was active before."""
    name = request.name
    refuse_mistyped_name(context.folders, specs.check_name(name))
    if key is None and verb == "activate":
        key = packs.read_pack(packs.pack_path(context.folders, name)).key
    required_nodes(request.options.minimum, len(request.selection.nodes))
    if key is not None and not re.fullmatch(re.escape(name) + "-[0-9a-f]{12}", key):
        raise InvalidSpec(
            f"--key {key} is not a key of {name}.",
            advice=f"Keys look like {name}-0123456789ab: the folders in `envs` on the nodes.",
        )
    with _locked_run(context, request) as run:
        activation = ActivationRun(run)
        histories = activation.ask_history()
        if key is None:
            key = activation.previous_key(histories)
        if key is not None:
            activation.select(key, histories)
        if key is not None and not request.dry_run:
            activation.switch(key)
    return _report(verb, key or "", request, activation)


def _report(verb: Verb, key: str, request: ShipRequest, run: StageRun) -> ShipReport:
    return ShipReport(
        verb=verb,
        name=run.name,
        selection=request.selection,
        key=key,
        goal="passed" if request.options.stage_only else "active",
        required=run.required(),
        states=dict(run.states),
        details=dict(run.details),
        stopped=run.stopped,
        dry_run=request.dry_run,
        left_out=request.left_out,
    )


@contextmanager
def _locked_run(context: Context, request: ShipRequest) -> Iterator[RunSetup]:
    """One run of an environment from here at a time. Builds and packs may go on meanwhile."""
    lock = f"{request.name}.ship"
    with environment_lock(context.folders, lock, context.progress, wait=context.wait):
        try:
            yield RunSetup(
                name=request.name,
                selection=request.selection,
                identity=run_identity(context),
                options=request.options,
                progress=context.progress,
                signers=_lab_signers(context),
            )
        except KeyboardInterrupt:
            context.progress.warn(
                "nodes may have changed up to now; the same command again asks them, and goes on "
                "from there"
            )
            raise


def _lab_signers(context: Context) -> str:
    """`allowed_signers` of the lab whose envs folder this is; empty if it names none."""
    folder = context.folders.envs.parent
    if not (folder / LAB_FILE).is_file():
        return ""
    from provision.workflow.lab_definition import read_lab  # few ships need it

    signers = read_lab(folder).allowed_signers
    return signers.read_text(encoding="utf-8", errors="replace") if signers else ""


def _check_path(pack: Pack, selection: NodeSelection) -> None:
    """Raise InvalidSpec if the pack's scripts name another path than the nodes have."""
    path = selection.defaults.path
    if all(node.engine == "exec" for node in selection.nodes):
        return  # simulated nodes have a path each
    packed_for = PurePosixPath(pack.sidecar["install_path"]).parents[1]
    if packed_for != path:
        raise InvalidSpec(
            f"{pack.key} was packed for {packed_for}, and the nodes' path is {path}.",
            advice=f"Write `path: {path}` under `defaults:` in nodes.yml, and `provision pack "
            f"{pack.name}`; or correct `path:` there.",
        )


def run_identity(context: Context) -> RunIdentity:
    """Of a run that changes stores from here."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such number in the user database
        user = str(os.getuid())
    if "SUDO_USER" in os.environ:
        user = f"{os.environ['SUDO_USER']} as {user}"
    host = socket.gethostname()
    return RunIdentity(
        id=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        source=f"{host}:{os.getuid()}:{context.folders.data}",
        by=f"{user}@{host} (process {os.getpid()})",
    )
