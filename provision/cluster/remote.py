"""Runs one action of the node program on many nodes and returns what each replied, or why it did
not."""

from __future__ import annotations

import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from provision.core import process
from provision.core.errors import InvalidSpec, OutputTooLong, ProvisionError, TimedOut
from provision_runtime.node.program import SIMULATED_NAME

Arguments = Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
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
) -> list[NodeReply[ResultT]]:
    """Run an action of `provision_runtime/node/program.py` on nodes; replies in their order.

    arguments: the same for all nodes, or a function of the node. A text is a script of the POSIX
    shell, which runs instead and prints its reply as the node program does. stage: under which
    failures are reported. timeout_s: for each node, from its own start; straggler_factor: or this
    many times the median of the others, if that is more (not over srun). on_reply: called with each
    reply as it comes.
    """
    if not nodes:
        return []
    command = node_command(python=defaults.python)
    if isinstance(arguments, str):
        command = "sh -s"
        programs = dict.fromkeys((node.name for node in nodes), arguments.encode())
    elif callable(arguments):
        programs = {node.name: node_program(action.name, arguments(node)) for node in nodes}
    else:
        program = node_program(action.name, arguments)
        programs = dict.fromkeys((node.name for node in nodes), program)
    run = _RemoteRun(
        action=action,
        command=command,
        programs=programs,
        stage=stage,
        timeout_s=timeout_s,
        straggler_factor=straggler_factor,
        defaults=defaults,
        on_reply=on_reply,
    )
    return run.on(nodes)


def run_with_data(
    node: Node,
    action: Action[ResultT],
    arguments: Arguments,
    feed: Callable[[int], None],
    *,
    stage: str,
    timeout_s: float,
    defaults: NodeDefaults,
) -> NodeReply[ResultT]:
    """Run an action on one node that reads more than its program from standard input.

    feed: writes these data to a descriptor, in another thread. Raises InvalidSpec for a Kubernetes
    node.
    """
    program = node_program(action.name, arguments)
    command = node_command(len(program), python=defaults.python)

    def write(descriptor: int) -> None:
        process.write_all(descriptor, program)
        feed(descriptor)

    started = time.time()
    status: int | None = None
    stdout, stderr = "", ""
    is_cut = False
    try:
        result = process.run(
            node_argv(node, command, defaults),
            feed=write,
            timeout_s=timeout_s,
            check=False,
            most_bytes=replies.most_bytes(action.name),
        )
        # As a shell counts signals, and so ClusterShell.
        status = 128 - result.returncode if result.returncode < 0 else result.returncode
        stdout, stderr = result.stdout, result.stderr
    except TimedOut:
        pass
    except OutputTooLong:
        is_cut = True
    output = NodeOutput(
        node=node.name,
        status=status,
        stdout=stdout.encode(),
        stderr=stderr,
        started=started,
        ended=time.time(),
        is_cut=is_cut,
    )
    return reply_of(node, output, stage, action)


def transport(node: Node, defaults: NodeDefaults) -> str:
    """How commands reach a node: ssh, srun, exec, local, or kubernetes (not at all)."""
    return defaults.via if node.engine == "slurm" else node.engine


def node_argv(node: Node, command: str, defaults: NodeDefaults) -> list[str]:
    """The local command that runs a shell command on one node, for callers that stream into it.

    Raises InvalidSpec for a Kubernetes node, which runs no commands of ours.
    """
    name = transport(node, defaults)
    if name == "ssh":
        return clustershell.ssh_command(
            node.address, command, connect_s=defaults.connect_s, ssh_options=defaults.ssh_options
        )
    if name == "srun":
        return [*_SRUN, "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", "sh", "-c", command]
    if name == "exec":
        simulated = command.replace("%h", node.name)
        return ["env", f"{SIMULATED_NAME}={node.name}", "sh", "-c", simulated]
    if name == "local":
        return ["sh", "-c", command]
    raise InvalidSpec(
        f"{node.name}: {REASONS['not-run'].meaning}.", advice=REASONS["not-run"].advice
    )


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


# A step that shares the allocation with others and ends for each node by itself.
_SRUN = ("srun", "--overlap", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none")
_SRUN_EXIT = re.compile(r"^srun: error: (\S+): tasks? ([\d,-]+): (.*)$", re.MULTILINE)
_SRUN_LAUNCH = re.compile(
    r"^srun: error: Task launch for \S+ failed on node (\S+): (.*)$", re.MULTILINE
)
_SRUN_ABORTED = re.compile(r"^srun: Job step aborted", re.MULTILINE)
_SRUN_LABEL = re.compile(r"^\s*(\d+): (.*)$", re.MULTILINE)
# srun itself needs a moment to start a step and to collect its end.
SRUN_EXTRA_S = 30.0


@dataclass(frozen=True, kw_only=True)
class _RemoteRun(Generic[ResultT]):
    """One action on nodes with several transports. programs: what each node's command reads."""

    action: Action[ResultT]
    command: str
    programs: Mapping[str, bytes]
    stage: str
    timeout_s: float
    straggler_factor: float
    defaults: NodeDefaults
    on_reply: Callable[[NodeReply[ResultT]], None] | None
    replies: dict[str, NodeReply[ResultT]] = field(default_factory=dict)

    def on(self, nodes: Sequence[Node]) -> list[NodeReply[ResultT]]:
        commands = {
            "ssh": self.command,
            "exec": f"{SIMULATED_NAME}=%h exec {self.command}",
            "local": f"exec {self.command.replace('%', '%%')}",
        }
        by_transport: dict[str, list[Node]] = {}
        for node in nodes:
            by_transport.setdefault(transport(node, self.defaults), []).append(node)
        for name, members in by_transport.items():
            if name == "srun":
                self.over_srun(members)
            elif name in commands:
                worker: clustershell.Worker = "exec"
                if name == "ssh":
                    worker = "ssh"
                self._run_commands(members, commands[name], worker)
            else:
                for node in members:
                    self._fail(node, "not-run", REASONS["not-run"].meaning)
        return [self.replies[node.name] for node in nodes]

    def _run_commands(
        self, nodes: Sequence[Node], command: str, worker: clustershell.Worker
    ) -> None:
        # Two nodes may have one address (a node under two names): one after the other.
        remaining = list(nodes)
        while remaining:
            by_address: dict[str, Node] = {}
            later = []
            for node in remaining:
                address = node.address or node.name
                if by_address.setdefault(address, node) is not node:
                    later.append(node)
            remaining = later
            self._run_command(by_address, command, worker)

    def _run_command(
        self, nodes: Mapping[str, Node], command: str, worker: clustershell.Worker
    ) -> None:
        """nodes: by what ClusterShell calls them."""
        clustershell.run(
            list(nodes),
            command,
            stdin=lambda name: self.programs[nodes[name].name],
            worker=worker,
            fanout=self.defaults.fanout,
            connect_s=self.defaults.connect_s,
            timeout_s=self.timeout_s,
            straggler_factor=self.straggler_factor,
            ssh_options=self.defaults.ssh_options,
            most_bytes=replies.most_bytes(self.action.name),
            on_output=lambda output: self._add(
                reply_of(nodes[output.node], output, self.stage, self.action)
            ),
        )

    def over_srun(self, nodes: Sequence[Node]) -> None:
        """One step over all nodes with the same program: srun feeds it to each, and slurmctld is
        asked once. The steps of different programs run at the same time: some may serve others."""
        allocated = self.defaults.allocated or slurm_nodes.allocation()
        if allocated is None:
            raise InvalidSpec(
                "`via: srun` works only inside a Slurm job.",
                advice="Run this in `salloc -N NODES`, or leave out `via` to use ssh.",
            )
        inside = set(clustershell.expand(allocated))
        by_program: dict[bytes, dict[str, Node]] = {}
        for node in nodes:
            if node.name in inside:
                by_program.setdefault(self.programs[node.name], {})[node.name] = node
            else:
                self._fail(node, "not-in-allocation", f"the allocation is {allocated}")
        steps = [(members, program) for program, members in by_program.items()]
        while steps:
            remaining = []
            for (members, program), output in zip(steps, self._srun_steps(steps)):
                rest = self._add_step(members, output)
                if rest:
                    remaining.append((rest, program))
            steps = remaining

    def _add_step(self, nodes: Mapping[str, Node], output: NodeOutput) -> dict[str, Node]:
        """Take the replies of a step; returns the nodes that need another one. A node where srun
        cannot start anything, or whose slurmstepd is gone, ends the step for all (Slurm 22.05)."""
        documents = srun_documents(output.stdout, self.action.name)
        messages = srun_messages(output.stderr)
        causes = step_causes(messages, output.stderr) & set(nodes)
        rest = {}
        for name, node in nodes.items():
            if name in documents:
                self._add(_reply_of_document(node, documents[name], output, self.stage))
            elif causes and name not in causes:
                rest[name] = node
            elif name not in messages:
                # The status of the step is that of a task which is named.
                status = 0 if messages else output.status
                errors = [
                    line
                    for line in output.stderr.splitlines()
                    if line.startswith("srun: error") and not _SRUN_EXIT.search(line)
                ]
                self._fail(node, *classify(status, "", "\n".join(errors)), output)
            elif messages[name].status is None:
                self._fail(node, "no-slurmd", messages[name].text, output)
            else:
                message = messages[name]
                self._fail(node, *classify(message.status, "", message.text), output)
        return rest

    def _srun_steps(self, steps: Sequence[tuple[Mapping[str, Node], bytes]]) -> list[NodeOutput]:
        """All steps at the same time, each with its program."""
        branches, programs = [], {}
        for number, (nodes, program) in enumerate(steps):
            command = [
                *_SRUN,
                *self.defaults.srun_options,
                f"--nodes={len(nodes)}",
                f"--ntasks={len(nodes)}",
                "--ntasks-per-node=1",
                f"--nodelist={','.join(nodes)}",
                "--label",
                "sh",
                "-c",
                # The shell stays, and reads what its command left. srun ends a step for all nodes,
                # at times before the others have replied, if a signal ends a task of one, or if it
                # cannot write to one (Slurm 22.05). A status does not.
                f"{self.command}; status=$?; cat >/dev/null; exit $status",
            ]
            programs[f"step{number}"] = program
            branches.append(f"step{number}) exec {shlex.join(command).replace('%', '%%')};;")
        return clustershell.run(
            list(programs),
            f"case %h in {' '.join(branches)} esac",
            stdin=lambda step: programs[step],
            worker="exec",
            fanout=self.defaults.fanout,
            timeout_s=self.timeout_s + SRUN_EXTRA_S,
            most_bytes=replies.most_bytes(self.action.name),
            is_labeled=True,
        )

    def _fail(
        self, node: Node, reason: str, message: str, output: NodeOutput | None = None
    ) -> None:
        self._add(_failed(node, self.stage, reason, message, output))

    def _add(self, reply: NodeReply[ResultT]) -> None:
        self.replies[reply.node.name] = reply
        if self.on_reply is not None:
            self.on_reply(reply)


def reply_of(
    node: Node, output: NodeOutput, stage: str, action: Action[ResultT]
) -> NodeReply[ResultT]:
    """The reply of the node program in what it printed, or why there is none."""
    if output.is_cut:
        return _failed(node, stage, "bad-answer", replies.too_long(action.name), output)
    stdout = output.stdout.decode(errors="replace")
    text = replies.marked_text(stdout.split("\n"))
    if text is not None:
        try:
            return _reply_of_document(node, replies.decode(text, action.name), output, stage)
        except ValueError as error:
            # Else the connection may have broken within the reply.
            if output.status == 0:
                return _failed(node, stage, "bad-answer", str(error), output)
    reason, message = classify(output.status, stdout, output.stderr)
    if reason == "login-refused":
        message += _locked_keys_note()
    return _failed(node, stage, reason, message, output)


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


def _reply_of_document(
    node: Node, document: Mapping[str, Any], output: NodeOutput, stage: str
) -> NodeReply[Any]:
    failure = None
    if "error" in document:
        failure = NodeFailure(stage=stage, **document["error"])
    return NodeReply(
        node=node,
        result=document.get("result"),
        failure=failure,
        identity=tuple(document.get("identity", ())),
        sent=output.started,
        received=output.ended,
    )


def _failed(
    node: Node, stage: str, reason: str, message: str, output: NodeOutput | None = None
) -> NodeReply[Any]:
    return NodeReply(
        node=node,
        result=None,
        failure=NodeFailure(stage=stage, reason=reason, message=message),
        sent=output.started if output else 0.0,
        received=output.ended if output else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class SrunMessage:
    """What srun prints of one node. status: of its task; None if the task could not be started.
    text: what the task printed to standard error, or srun's words. by_signal: srun may have sent it
    to end the step."""

    status: int | None
    text: str
    by_signal: bool = False


def srun_messages(stderr: str) -> dict[str, SrunMessage]:
    """What `srun --label` prints of nodes whose task failed or could not be started.

    srun folds them: `srun: error: n[1,3]: tasks 0,2: Exited with exit code 2`.
    """
    printed: dict[str, list[str]] = {}
    for task, text in _SRUN_LABEL.findall(stderr):
        printed.setdefault(task, []).append(text)
    messages = {}
    for nodes, tasks, ending in _SRUN_EXIT.findall(stderr):
        exit_code = re.search(r"exit code (\d+)", ending)
        status = int(exit_code[1]) if exit_code else 128 + signal.SIGKILL
        for name, task in zip(clustershell.expand(nodes), clustershell.expand(f"[{tasks}]")):
            text = "\n".join(printed.get(task, [ending]))
            messages[name] = SrunMessage(status=status, text=text, by_signal=exit_code is None)
    for name, text in _SRUN_LAUNCH.findall(stderr):
        messages[name] = SrunMessage(status=None, text=text)
    return messages


def step_causes(messages: Mapping[str, SrunMessage], stderr: str) -> set[str]:
    """The nodes because of which srun ended a step for all; empty if it did not, or does not
    name them."""
    if _SRUN_ABORTED.search(stderr):
        return {name for name, message in messages.items() if not message.by_signal}
    return {name for name, message in messages.items() if message.status is None}


def srun_documents(stdout: bytes, action: str) -> dict[str, Mapping[str, Any]]:
    """The replies in what `srun --label` printed, by Slurm's name of the node. It breaks lines after
    1,024 bytes or so (22.05): `2: ` begins each piece of what task 2 printed.

    Without replies that are not valid, and without those of a name that several tasks claim.
    """
    pieces: dict[str, list[str]] = {}
    for task, text in _SRUN_LABEL.findall(stdout.decode(errors="replace")):
        pieces.setdefault(task, []).append(text)
    documents: dict[str, Mapping[str, Any]] = {}
    claimed: set[str] = set()
    for texts in pieces.values():
        text = replies.marked_text(texts)
        if text is None:
            continue
        try:
            document = replies.decode(text, action)
        except ValueError:
            continue
        name = str(document.get("slurm_node"))
        if name in claimed:
            documents.pop(name, None)
        else:
            documents[name] = document
        claimed.add(name)
    return documents
