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
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Literal

from provision.cluster import pack as packs
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.pack import Pack
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.file_locks import environment_lock
from provision.resolver import spec as specs
from provision.workflow.context import Context, refuse_mistyped_name
from provision.workflow.ship.activation import ActivationRun
from provision.workflow.ship.shipment import Shipment
from provision.workflow.ship.stages import Profile, ShipRequest, StageRun
from provision.workflow.ship.states import NodeState, State, plan_waves, required_nodes

# provision.lockfile.FILE; importing that package would take as long as asking 20 nodes.
LOCK_FILE = "conda-lock.yml"
LAB_FILE = "lab.yml"
Verb = Literal["ship", "activate", "rollback"]


@frozen
class ShipReport:
    """What a verb did. required: how many nodes should reach the goal. sent_bytes: by this machine.
    halted: why a wave was the last."""

    verb: Verb
    key: str
    request: ShipRequest
    required: int
    states: Mapping[str, NodeState]
    size: int = 0
    sent_bytes: int = 0
    copies_between_nodes: int = 0
    halted: str = ""

    @property
    def goal(self) -> State:
        """The state that nodes should reach."""
        return "passed" if self.request.stage_only else "active"

    @property
    def ready(self) -> int:
        """How many nodes are where they should be."""
        reached = ("passed", "active") if self.goal == "passed" else ("active",)
        return sum(state.state in reached for state in self.states.values())

    @property
    def succeeded(self) -> bool:
        """Whether enough nodes are; for a dry run, whether enough could be."""
        if not self.request.dry_run:
            return self.ready >= self.required and not self.halted
        return self.possible >= self.required

    @property
    def possible(self) -> int:
        """How many nodes could be where they should be."""
        return sum(state.state not in ("failed", "unknown") for state in self.states.values())


def ship(context: Context, request: ShipRequest) -> ShipReport:
    """Bring an environment's latest pack to nodes and activate it there."""
    selection = request.selection
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
    required = required_nodes(request.minimum, len(selection.nodes))
    waves = plan_waves(request.waves, selection.nodes, len(selection.nodes))
    test_wave = None
    if request.smoke:
        from provision.workflow.plan import BuildRequest, make_plan

        make_plan(context, BuildRequest(name=request.name))  # raises before anything is activated
        test_wave = partial(_test_wave, context, request, request.smoke)
    with _locked_run(context, request) as identity:
        shipment = Shipment(request, identity, context.progress, pack, test_wave)
        if request.dry_run:
            shipment.check(shipment.in_state("pending"))
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
    required_nodes(request.minimum, len(request.selection.nodes))
    if key is not None and not re.fullmatch(re.escape(name) + "-[0-9a-f]{12}", key):
        raise InvalidSpec(
            f"--key {key} is not a key of {name}.",
            advice=f"Keys look like {name}-0123456789ab: the folders in `envs` on the nodes.",
        )
    with _locked_run(context, request) as identity:
        activation = ActivationRun(request, identity, context.progress)
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
        key=key,
        request=request,
        required=run.required(),
        states=run.states,
    )


@contextmanager
def _locked_run(context: Context, request: ShipRequest) -> Iterator[dict[str, str]]:
    """One run of an environment from here at a time, as nodes record it. Builds and packs may go on
    meanwhile."""
    signers = ""  # `allowed_signers` of the lab whose envs folder this is, if it names any
    lab = context.folders.envs.parent
    if (lab / LAB_FILE).is_file():
        from provision.workflow.lab_definition import read_lab  # few ships need it

        path = read_lab(lab).allowed_signers
        signers = path.read_text(encoding="utf-8", errors="replace") if path else ""
    lock = f"{request.name}.ship"
    with environment_lock(context.folders, lock, context.progress, wait=context.wait):
        try:
            yield {**run_identity(context), "signers": signers}
        except KeyboardInterrupt:
            context.progress.warn(
                "nodes may have changed up to now; the same command again asks them, and goes on "
                "from there"
            )
            raise


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


def run_identity(context: Context) -> dict[str, str]:
    """A run that changes stores from here, as nodes record it. source: the machine, user and folder that
    it runs from, where one run of an environment is at work at a time. by: the same for people."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no such number in the user database
        user = str(os.getuid())
    if "SUDO_USER" in os.environ:
        user = f"{os.environ['SUDO_USER']} as {user}"
    host = socket.gethostname()
    return {
        "id": f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        "source": f"{host}:{os.getuid()}:{context.folders.data}",
        "by": f"{user}@{host} (process {os.getpid()})",
    }
