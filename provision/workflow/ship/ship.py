"""`provision ship`, `activate` and `rollback`: an environment on the nodes of a cluster."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath

from provision.cluster import pack as packs
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.pack import Pack
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.file_locks import environment_lock
from provision.core.paths import LAB, LOCK
from provision.resolver import spec as specs
from provision.workflow.context import Context, refuse_mistyped_name
from provision.workflow.ship.activation import ActivationRun
from provision.workflow.ship.shipment import Shipment
from provision.workflow.ship.stages import Profile, ShipRequest, StageRun, Verb
from provision.workflow.ship.states import required_nodes


def ship(context: Context, request: ShipRequest) -> StageRun:
    """Bring an environment's latest pack to nodes and activate it there."""
    selection = request.selection
    refuse_mistyped_name(context.folders, specs.check_name(request.name))
    pack = packs.read_pack(packs.pack_path(context.folders, request.name))
    # The lock may have been updated since it was packed.
    path = context.folders.envs / pack.name / LOCK
    if path.exists():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != pack.sidecar["lock_sha256"]:
            context.progress.warn(
                f"{path} has changed since {pack.key} was packed: `provision pack {pack.name}` "
                "packs the new lock."
            )
    _check_path(pack, selection)
    required_nodes(request.minimum, len(selection.nodes))
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
    shipment.sent_bytes = shipment.distribution.sent_bytes
    shipment.copies_between_nodes = shipment.distribution.copies_between_nodes
    return shipment


def _test_wave(
    context: Context, request: ShipRequest, profile: Profile, nodes: Sequence[Node]
) -> str:
    """Why the smoke test does not pass on nodes; empty if it does."""
    from provision.workflow.plan import BuildRequest  # the smoke test is not for every ship
    from provision.workflow.smoke.nodes import NodesRequest, smoke_nodes
    from provision.workflow.smoke.request import SmokeRequest
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


def switch(context: Context, verb: Verb, request: ShipRequest, key: str | None) -> StageRun:
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
        activation = ActivationRun(request, identity, context.progress, verb)
        histories = activation.ask_history()
        if key is None:
            key = activation.previous_key(histories)
        if key is not None:
            activation.select(key, histories)
        if key is not None and not request.dry_run:
            activation.switch(key)
    activation.key = key or ""
    return activation


@contextmanager
def _locked_run(context: Context, request: ShipRequest) -> Iterator[dict[str, str]]:
    """One run of an environment from here at a time, as nodes record it. Builds and packs may go on
    meanwhile."""
    signers = ""  # `allowed_signers` of the lab whose envs folder this is, if it names any
    lab = context.folders.envs.parent
    if (lab / LAB).is_file():
        from provision.workflow.lab_definition import read_lab  # few ships need it

        path = read_lab(lab).allowed_signers
        signers = path.read_text(encoding="utf-8", errors="replace") if path else ""
    lock = f"{request.name}.ship"
    with environment_lock(context.folders, lock, context.progress):
        try:
            yield {**run_identity(context), "signers": signers}
        except KeyboardInterrupt:
            context.progress.warn(
                "some nodes may have changed; the same command checks them and continues from there"
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
