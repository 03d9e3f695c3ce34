"""Jobs on plain hosts: started over ssh on each, and nowhere if one cannot start its part."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Sequence

from provision import launch
from provision.adapters import clustershell
from provision.adapters.clustershell import expand, fold
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster.failures import REASONS, classify
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.remote import node_argv
from provision.core import process
from provision.core.errors import CheckFailed, InvalidSpec, ProvisionError
from provision.verbs.launch.jobs import ASK_TIMEOUT_S, cancel_on_hosts
from provision.workflow.context import Context

START_TIMEOUT_S = 60.0


def refuse_nodes_of_slurm(context: Context, selection: NodeSelection) -> None:
    """InvalidSpec for nodes of Slurm that a node set or group reaches by ssh: the job would run
    there without Slurm's knowledge. `ssh:` insists, and in the nodes' own job nobody else is there."""
    hosts = [node for node in selection.nodes if node.engine == "ssh"]
    if selection.text.strip().startswith("ssh:") or not hosts or shutil.which("sinfo") is None:
        return
    try:
        rows = slurm_nodes.list_nodes()
    except ProvisionError as error:
        context.progress.warn(
            f"not known whether {selection.text} are nodes of Slurm: {error.message}"
        )
        return
    names = {name for row in rows for name in (row.name, row.host)}
    allocated = set(expand(slurm_nodes.allocation() or ""))
    addresses = [node.ssh_host for node in hosts]
    scheduled = [
        address
        for address in addresses
        if {address, address.partition(".")[0]} & names and address not in allocated
    ]
    if scheduled:
        raise InvalidSpec(
            f"{fold(scheduled)}: these are nodes of Slurm, and a job started by ssh would bypass "
            "Slurm.",
            advice=f"Use --on slurm:PARTITION. --on ssh:{fold(addresses)} starts it anyway.",
        )


def ssh_options(selection: NodeSelection, nodes: Sequence[Node]) -> launch.SshOptions:
    """How the parts of a job are started, and where the other hosts may find the first one: what ssh
    connects to, and its own name."""
    ssh = {node.name: tuple(node_argv(node, "", selection.defaults)[:-1]) for node in nodes}
    first, names = nodes[0], ["127.0.0.1"]
    if first.engine == "ssh":
        command = ["ssh", *selection.defaults.ssh_options, "-G", first.address]
        settings = process.run(command, timeout_s=ASK_TIMEOUT_S).stdout
        names = [*re.findall(r"^hostname (\S+)$", settings, re.MULTILINE), first.ssh_host]
    return launch.SshOptions(hosts=ssh, head=tuple(dict.fromkeys(names)))


def start_on_hosts(job: launch.JobSpec, selection: NodeSelection) -> None:
    """Start every host's part; if one does not start, or this is interrupted, end the others.
    Nothing is started where another user could have changed the environment. Raises CheckFailed."""
    from provision.launch.ssh import host_commands
    from provision.workflow.smoke.node_groups import python_failures

    nodes = selection.nodes[: job.nodes]
    commands = host_commands(job, job.gpus)
    environment, defaults = job.environment, selection.defaults
    assert isinstance(environment, launch.PrefixEnvironment)
    failures = python_failures(nodes, defaults, environment.path)
    if failures:
        problems = [f"{name}: {failure.message}" for name, failure in failures.items()]
        raise CheckFailed(
            f"The job did not start on {'; '.join(problems)}.",
            advice=" ".join(
                sorted({REASONS[failure.reason].advice for failure in failures.values()})
            )
            + " Nothing was started on other hosts.",
        )
    key = new_key()
    try:
        outputs = clustershell.run(
            commands,
            stdin=lambda _: [f"{key}\n".encode()],
            fanout=defaults.fanout,
            timeout_s=START_TIMEOUT_S,
        )
    except KeyboardInterrupt:
        _end_on_hosts(job, selection, nodes)
        raise
    failed = []
    for output in outputs:
        if output.status != 0:
            _, why = classify(output.status, output.stdout.decode(errors="replace"), output.stderr)
            failed.append(f"{output.node}: {why}")
    if failed:
        raise CheckFailed(
            f"The job did not start on {'; '.join(failed)}.",
            advice=_end_on_hosts(job, selection, nodes),
        )


def _end_on_hosts(job: launch.JobSpec, selection: NodeSelection, nodes: Sequence[Node]) -> str:
    """End what has started; returns what is known of it then."""
    try:
        problems = cancel_on_hosts(job.name, selection, nodes)
    except ProvisionError as error:
        return error.message
    if problems:
        return f"What had started may run on: {'; '.join(problems)}."
    return "What had started on other hosts was ended."


def new_key() -> str:
    """By which the nodes of one job know each other."""
    return secrets.token_hex(32)
