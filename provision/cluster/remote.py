"""Runs one action of the node program on many nodes and returns what each replied, or why it did
not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Generic

from provision.adapters import clustershell, openssh
from provision.adapters.clustershell import NodeOutput
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster import replies
from provision.cluster.actions import Action, ResultT
from provision.cluster.failures import REASONS, NodeFailure, classify
from provision.cluster.inventory import Node, NodeDefaults
from provision.cluster.program import node_command, node_program
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, ProvisionError
from provision_runtime.node.program import SIMULATED_NAME

Arguments = Mapping[str, object]
# srun itself needs a moment to start a step and to collect its end.
SRUN_EXTRA_S = 30.0


@frozen
class NodeReply(Generic[ResultT]):
    """What an action returned on a node, or why it did not.

    identity: the machine's own name and its boot, equal for two names of one machine. sent,
    received: this machine's Unix time before and after.
    """

    node: Node
    result: ResultT | None
    failure: NodeFailure | None
    identity: tuple[str, ...] = ()
    sent: float = 0.0
    received: float = 0.0


def run_action(
    nodes: Sequence[Node],
    action: Action[ResultT],
    arguments: Arguments | Callable[[Node], Arguments] | str,
    *,
    stage: str,
    timeout_s: float,
    defaults: NodeDefaults,
    straggler_factor: float = 0.0,
    on_reply: Callable[[NodeReply[ResultT]], None] | None = None,
    data: Callable[[Node], Iterable[bytes]] | None = None,
) -> list[NodeReply[ResultT]]:
    """Run an action of `provision_runtime/node/program.py` on nodes; replies in their order.

    arguments: the same for all nodes, or a function of the node. A text is a script of the POSIX
    shell, which runs instead and prints its reply as the node program does. stage: under which
    failures are reported. timeout_s: for each node, from its own start; straggler_factor: or this
    many times the median of the others, if that is more. on_reply: called with each reply as it
    comes. data: what the action reads behind its program from standard input, in pieces.
    """
    replies_by_name: dict[str, NodeReply[ResultT]] = {}
    by_name = {node.name: node for node in nodes}

    def add(reply: NodeReply[ResultT]) -> None:
        replies_by_name[reply.node.name] = reply
        if on_reply is not None:
            on_reply(reply)

    def stdin(name: str) -> Iterable[bytes]:
        return chain([programs[name]], data(by_name[name]) if data else ())

    programs: dict[str, bytes] = {}
    commands: dict[str, list[str]] = {}
    allocated: set[str] | None = None
    for node in nodes:
        name = transport(node, defaults)
        if name == "kubernetes":
            add(_failed(node, stage, "not-run", REASONS["not-run"].meaning))
            continue
        if name == "srun":
            allocated = _allocated_nodes(defaults) if allocated is None else allocated
            if node.name not in allocated:
                message = f"the allocation is {clustershell.fold(allocated)}"
                add(_failed(node, stage, "not-in-allocation", message))
                continue
        if isinstance(arguments, str):
            command, program = "sh -s", arguments.encode()
        elif callable(arguments) or not programs:
            given = arguments(node) if callable(arguments) else arguments
            program = node_program(action.name, given)
            command = node_command(len(program) if data else None, python=defaults.python)
        programs[node.name] = program
        commands[node.name] = node_argv(node, command, defaults)
    clustershell.run(
        commands,
        stdin=stdin,
        fanout=defaults.fanout,
        timeout_s=timeout_s + (SRUN_EXTRA_S if defaults.via == "srun" else 0.0),
        straggler_factor=straggler_factor,
        most_bytes=replies.most_bytes(action.name),
        on_output=lambda output: add(reply_of(by_name[output.node], output, stage, action)),
    )
    return [replies_by_name[node.name] for node in nodes]


def transport(node: Node, defaults: NodeDefaults) -> str:
    """How commands reach a node: ssh, srun, exec, local, or kubernetes (not at all)."""
    return defaults.via if node.engine == "slurm" else node.engine


def node_argv(node: Node, command: str, defaults: NodeDefaults) -> list[str]:
    """The local command that runs a shell command on one node.

    Raises InvalidSpec for a Kubernetes node, which runs no commands of ours.
    """
    name = transport(node, defaults)
    if name == "kubernetes":
        raise InvalidSpec(
            f"{node.name}: {REASONS['not-run'].meaning}.", advice=REASONS["not-run"].advice
        )
    if name == "ssh":
        return clustershell.ssh_command(
            node.address, command, connect_s=defaults.connect_s, ssh_options=defaults.ssh_options
        )
    shell = ["sh", "-c", command]
    if name == "srun":  # a step that shares the allocation with others
        step = ["srun", "--overlap", "--mpi=none", *defaults.srun_options]
        return [*step, "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", *shell]
    if name == "exec":
        simulated = command.replace("%h", node.name)
        return ["env", f"{SIMULATED_NAME}={node.name}", "/bin/sh", "-c", f"exec {simulated}"]
    return shell


def merge_same_nodes(nodes: Sequence[NodeReply[ResultT]]) -> list[NodeReply[ResultT]]:
    """The replies with each machine once: for another name of a machine that has replied already,
    the reply becomes a failure `same-node` that names the first."""
    first_names: dict[tuple[str, ...], str] = {}
    merged = []
    for reply in nodes:
        first = first_names.setdefault(reply.identity, reply.node.name)
        if reply.identity and first != reply.node.name:
            message = f"{reply.node.name} and {first} are the same machine"
            failure = NodeFailure(stage="check", reason="same-node", message=message)
            reply = replace(reply, result=None, failure=failure)
        merged.append(reply)
    return merged


def split_replies(
    replies: Sequence[NodeReply[ResultT]],
) -> tuple[dict[str, ResultT], dict[str, NodeFailure]]:
    """Results and failures by node, each machine once."""
    results, failures = {}, {}
    for reply in merge_same_nodes(replies):
        if reply.failure is not None:
            failures[reply.node.name] = reply.failure
        elif reply.result is not None:
            results[reply.node.name] = reply.result
    return results, failures


def _allocated_nodes(defaults: NodeDefaults) -> set[str]:
    allocated = defaults.allocated or slurm_nodes.allocation()
    if allocated is None:
        raise InvalidSpec(
            "`via: srun` works only inside a Slurm job.",
            advice="Run this in `salloc -N NODES`, or leave out `via` to use ssh.",
        )
    return set(clustershell.expand(allocated))


def reply_of(
    node: Node, output: NodeOutput, stage: str, action: Action[ResultT]
) -> NodeReply[ResultT]:
    """The reply of the node program in what it printed, or why there is none."""
    if output.is_cut:
        return _failed(node, stage, "bad-answer", replies.too_long(action.name))
    stdout = output.stdout.decode(errors="replace")
    text = replies.marked_text(stdout)
    if text is not None:
        try:
            document = replies.decode(text, action.name)
            error = document.get("error")
            return NodeReply(
                node=node,
                result=document.get("result"),
                failure=NodeFailure(stage=stage, **error) if error is not None else None,
                identity=tuple(document.get("identity", ())),
                sent=output.started,
                received=output.ended,
            )
        except ValueError as problem:
            # Else the connection may have broken within the reply.
            if output.status == 0:
                return _failed(node, stage, "bad-answer", str(problem))
    reason, message = classify(output.status, stdout, output.stderr)
    if reason == "login-refused":
        message += _locked_keys_note()
    return _failed(node, stage, reason, message)


def _locked_keys_note() -> str:
    """Which keys a host may know, though ssh could not use them. ssh itself says only that the host
    refused."""
    try:
        keys = openssh.locked_keys(Path.home() / ".ssh")
    except (OSError, ProvisionError):
        return ""
    if not keys:
        return ""
    names = ", ".join(f"~/.ssh/{key.name}" for key in keys)
    return f"; {names}: has a passphrase, and no agent holds it (`ssh-add` asks for it)"


def _failed(node: Node, stage: str, reason: str, message: str) -> NodeReply[Any]:
    failure = NodeFailure(stage=stage, reason=reason, message=message)
    return NodeReply(node=node, result=None, failure=failure)
