"""Runs one action of the node program on many nodes and returns what each answered, or why it did
not."""

from __future__ import annotations

import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.adapters import clustershell
from provision.adapters.clustershell import NodeOutput
from provision.adapters.slurm import nodes as slurm_nodes
from provision.cluster import answers as codec
from provision.cluster.failures import REASONS, NodeFailure, classify
from provision.cluster.inventory import Node, NodeDefaults, NodeSelection
from provision.cluster.program import node_command, node_program
from provision.core import process
from provision.core.errors import InvalidSpec, OutputTooLong, TimedOut
from provision_runtime.node.program import SIMULATED_NAME

Arguments = Mapping[str, Any] | Callable[[Node], Mapping[str, Any]]
# The same for all nodes, or one for each.
Programs = bytes | Callable[[Node], bytes]
OnAnswer = Callable[["NodeAnswer"], None]


@dataclass(frozen=True, kw_only=True)
class NodeAnswer:
    """What an action returned on a node, or why it did not.

    identity: the machine's own name and its boot, equal for two names of one machine. sent,
    received: this machine's Unix time before and after.
    """

    node: Node
    result: Mapping[str, Any] | None
    failure: NodeFailure | None
    identity: tuple[str, ...] = ()
    sent: float = 0.0
    received: float = 0.0


def run_action(
    nodes: NodeSelection | Sequence[Node],
    action: str,
    arguments: Arguments,
    *,
    stage: str,
    timeout_s: float,
    late_factor: float = 0.0,
    defaults: NodeDefaults | None = None,
    on_answer: OnAnswer | None = None,
) -> list[NodeAnswer]:
    """Run an action of `provision_runtime/node/program.py` on nodes; answers in their order.

    arguments: the same for all nodes, or a function of the node. stage: under which failures are
    reported. timeout_s: for each node, from its own start; late_factor: or this many times the
    median of the others, if that is more (not over srun). defaults: those of the selection, unless
    given. on_answer: called with each answer as it comes.
    """
    if isinstance(nodes, NodeSelection):
        defaults = defaults or nodes.defaults
        nodes = nodes.nodes
    defaults = defaults or NodeDefaults()
    programs = _programs(action, arguments)
    command = node_command(python=defaults.python)
    run = _RemoteAction(
        action, command, programs, stage, timeout_s, late_factor, defaults, on_answer
    )
    return run.on(nodes)


def _programs(action: str, arguments: Arguments) -> Programs:
    if not callable(arguments):
        return node_program(action, arguments)
    make_arguments = arguments
    return lambda node: node_program(action, make_arguments(node))


def run_script(
    nodes: Sequence[Node],
    script: str,
    *,
    stage: str,
    timeout_s: float,
    late_factor: float = 0.0,
    defaults: NodeDefaults,
    on_answer: OnAnswer | None = None,
) -> list[NodeAnswer]:
    """Run the script of `probe.py` for the POSIX shell, which prints its answer as the node program
    does; otherwise as `run_action`."""
    program = script.encode()
    run = _RemoteAction(
        codec.PROBE, "sh -s", program, stage, timeout_s, late_factor, defaults, on_answer
    )
    return run.on(nodes)


def run_with_data(
    node: Node,
    action: str,
    arguments: Mapping[str, Any],
    feed: Callable[[int], None],
    *,
    stage: str,
    timeout_s: float,
    defaults: NodeDefaults,
) -> NodeAnswer:
    """Run an action on one node that reads more than its program from standard input.

    feed: writes these data to a descriptor, in another thread. Raises InvalidSpec for a Kubernetes
    node.
    """
    program = node_program(action, arguments)
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
            most_bytes=codec.most_bytes(action),
        )
        status, stdout, stderr = result.returncode, result.stdout, result.stderr
    except TimedOut:
        pass
    except OutputTooLong:
        is_cut = True
    output = NodeOutput(
        node=node.name,
        # As a shell says it, and so ClusterShell.
        status=128 - status if status is not None and status < 0 else status,
        stdout=stdout.encode(),
        stderr=stderr,
        started=started,
        ended=time.time(),
        is_cut=is_cut,
    )
    return answer_of(node, output, stage, action)


def transport(node: Node, defaults: NodeDefaults) -> str:
    """How commands reach a node: ssh, srun, exec, local, or kubernetes (not at all)."""
    if node.engine == "slurm":
        return defaults.via
    return node.engine


def node_argv(node: Node, command: str, defaults: NodeDefaults) -> list[str]:
    """The local command that runs a shell command on one node, for callers that stream into it.

    Raises InvalidSpec for a Kubernetes node, which runs no commands of ours.
    """
    way = transport(node, defaults)
    if way == "ssh":
        return clustershell.ssh_command(
            node.address, command, connect_s=defaults.connect_s, ssh_options=defaults.ssh_options
        )
    if way == "srun":
        return [*_SRUN, "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", "sh", "-c", command]
    if way == "exec":
        simulated = command.replace("%h", node.name)
        return ["env", f"{SIMULATED_NAME}={node.name}", "sh", "-c", simulated]
    if way == "local":
        return ["sh", "-c", command]
    raise InvalidSpec(
        f"{node.name}: {REASONS['not-run'].meaning}.", advice=REASONS["not-run"].advice
    )


def merge_same_nodes(answers: Sequence[NodeAnswer]) -> list[NodeAnswer]:
    """The answers with each machine once: for another name of a machine that has answered already,
    the answer becomes a failure `same-node` that names the first."""
    first_names: dict[tuple[str, ...], str] = {}
    merged = []
    for answer in answers:
        first = first_names.setdefault(answer.identity, answer.node.name)
        if answer.identity and first != answer.node.name:
            message = f"{answer.node.name} and {first} are the same machine"
            failure = NodeFailure(stage="check", reason="same-node", message=message)
            answer = replace(answer, result=None, failure=failure)
        merged.append(answer)
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


class _RemoteAction:
    """One action on nodes that may be reached in several ways."""

    def __init__(
        self,
        action: str,
        command: str,
        programs: Programs,
        stage: str,
        timeout_s: float,
        late_factor: float,
        defaults: NodeDefaults,
        on_answer: OnAnswer | None,
    ) -> None:
        self._action, self._command, self._programs, self._stage = action, command, programs, stage
        self._timeout_s, self._late_factor = timeout_s, late_factor
        self._defaults, self._on_answer = defaults, on_answer
        self.answers: dict[str, NodeAnswer] = {}

    def on(self, nodes: Sequence[Node]) -> list[NodeAnswer]:
        by_transport: dict[str, list[Node]] = {}
        for node in nodes:
            by_transport.setdefault(transport(node, self._defaults), []).append(node)
        for name, group in by_transport.items():
            {
                "ssh": self.over_ssh,
                "exec": self.simulated,
                "local": self.locally,
                "srun": self.over_srun,
                "kubernetes": self.refuse_kubernetes,
            }[name](group)
        return [self.answers[node.name] for node in nodes]

    def over_ssh(self, nodes: Sequence[Node]) -> None:
        # Two nodes may have one address (a node under two names): one after the other.
        remaining = list(nodes)
        while remaining:
            by_address: dict[str, Node] = {}
            for node in remaining:
                by_address.setdefault(node.address, node)
            batch = {node.name for node in by_address.values()}
            remaining = [node for node in remaining if node.name not in batch]
            self._run_commands(by_address, self._command, "ssh")

    def simulated(self, nodes: Sequence[Node]) -> None:
        command = f"{SIMULATED_NAME}=%h exec {self._command}"
        self._run_commands({node.address: node for node in nodes}, command, "exec")

    def locally(self, nodes: Sequence[Node]) -> None:
        command = f"exec {self._command}".replace("%", "%%")
        self._run_commands({node.name: node for node in nodes}, command, "exec")

    def _run_commands(
        self, nodes: Mapping[str, Node], command: str, worker: clustershell.Worker
    ) -> None:
        """nodes: by what ClusterShell calls them."""

        def on_output(output: NodeOutput) -> None:
            self._add(answer_of(nodes[output.node], output, self._stage, self._action))

        clustershell.run(
            list(nodes),
            command,
            stdin=self._stdin(nodes),
            worker=worker,
            fanout=self._defaults.fanout,
            connect_s=self._defaults.connect_s,
            timeout_s=self._timeout_s,
            late_factor=self._late_factor,
            ssh_options=self._defaults.ssh_options,
            most_bytes=codec.most_bytes(self._action),
            on_output=on_output,
        )

    def _stdin(self, nodes: Mapping[str, Node]) -> bytes | Callable[[str], bytes]:
        programs = self._programs
        if isinstance(programs, bytes):
            return programs
        return lambda name: programs(nodes[name])

    def over_srun(self, nodes: Sequence[Node]) -> None:
        """One step over all nodes: srun feeds the program to each, and slurmctld is asked once."""
        allocated = self._defaults.allocated or slurm_nodes.allocation()
        if allocated is None:
            raise InvalidSpec(
                "`via: srun` works inside a Slurm job, and this is none.",
                advice="Run this in `salloc -N NODES`, or leave out `via` to use ssh.",
            )
        inside = set(clustershell.expand(allocated))
        members = {node.name: node for node in nodes if node.name in inside}
        for node in nodes:
            if node.name not in inside:
                message = f"the allocation is {allocated}"
                self._add(_failed(node, self._stage, "not-in-allocation", message))
        if isinstance(self._programs, bytes):
            self._srun_steps(members, self._programs)
            return
        for node in members.values():
            self._srun_steps({node.name: node}, self._programs(node))

    def _srun_steps(self, nodes: Mapping[str, Node], program: bytes) -> None:
        """A node where srun cannot start anything, or whose slurmstepd is gone, ends the step for
        all (Slurm 22.05): the others get another one without it."""
        remaining = dict(nodes)
        while remaining:
            output = self._srun_step(remaining, program)
            documents = srun_documents(output.stdout, self._action)
            messages = srun_messages(output.stderr)
            causes = step_causes(messages, output.stderr) & set(remaining)
            for name, node in list(remaining.items()):
                if name in documents:
                    self._add(_answer_of_document(node, documents[name], output, self._stage))
                elif causes and name not in causes:
                    continue
                elif name in messages:
                    self._add(_failed(node, self._stage, *_srun_failure(messages[name]), output))
                else:
                    # The status of the step is that of a task which is named.
                    status = 0 if messages else output.status
                    reason, text = classify(status, "", _step_error(output.stderr))
                    self._add(_failed(node, self._stage, reason, text, output))
                del remaining[name]

    def _srun_step(self, nodes: Mapping[str, Node], program: bytes) -> NodeOutput:
        command = [
            *_SRUN,
            *self._defaults.srun_options,
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(nodes)}",
            "--label",
            "sh",
            "-c",
            # The shell stays, and reads what its command left. srun ends a step for all nodes, at
            # times before the others have answered, if a signal ends a task of one, or if it cannot
            # write to one (Slurm 22.05). A status does not.
            f"{self._command}; status=$?; cat >/dev/null; exit $status",
        ]
        [output] = clustershell.run(
            ["srun"],
            f"exec {shlex.join(command).replace('%', '%%')}",
            stdin=program,
            worker="exec",
            timeout_s=self._timeout_s + SRUN_EXTRA_S,
            most_bytes=codec.most_bytes(self._action),
            is_labeled=True,
        )
        return output

    def refuse_kubernetes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._add(_failed(node, self._stage, "not-run", REASONS["not-run"].meaning))

    def _add(self, answer: NodeAnswer) -> None:
        self.answers[answer.node.name] = answer
        if self._on_answer is not None:
            self._on_answer(answer)


def answer_of(node: Node, output: NodeOutput, stage: str, action: str) -> NodeAnswer:
    """What the node program answered in what it printed, or why there is no answer."""
    if output.is_cut:
        return _failed(node, stage, "bad-answer", codec.too_long(action), output)
    stdout = output.stdout.decode(errors="replace")
    text = codec.marked_text(stdout.split("\n"))
    if text is not None:
        try:
            return _answer_of_document(node, codec.decode(text, action), output, stage)
        except ValueError as error:
            # Else the connection may have broken within the answer.
            if output.status == 0:
                return _failed(node, stage, "bad-answer", str(error), output)
    return _failed(node, stage, *classify(output.status, stdout, output.stderr), output)


def _answer_of_document(
    node: Node, document: Mapping[str, Any], output: NodeOutput, stage: str
) -> NodeAnswer:
    failure = None
    if "error" in document:
        failure = NodeFailure(stage=stage, **document["error"])
    return NodeAnswer(
        node=node,
        result=document.get("result"),
        failure=failure,
        identity=tuple(document.get("identity", ())),
        sent=output.started,
        received=output.ended,
    )


def _failed(
    node: Node, stage: str, reason: str, message: str, output: NodeOutput | None = None
) -> NodeAnswer:
    return NodeAnswer(
        node=node,
        result=None,
        failure=NodeFailure(stage=stage, reason=reason, message=message),
        sent=output.started if output else 0.0,
        received=output.ended if output else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class SrunMessage:
    """What srun says about one node. status: of its task; None if the task could not be started.
    text: what the task printed to standard error, or srun's words. by_signal: srun may have sent it
    to end the step."""

    status: int | None
    text: str
    by_signal: bool = False


def srun_messages(stderr: str) -> dict[str, SrunMessage]:
    """What `srun --label` says about nodes whose task failed or could not be started.

    srun folds them: `srun: error: n[1,3]: tasks 0,2: Exited with exit code 2`.
    """
    printed: dict[str, list[str]] = {}
    for task, text in _SRUN_LABEL.findall(stderr):
        printed.setdefault(task, []).append(text)
    messages = {}
    for nodes, tasks, words in _SRUN_EXIT.findall(stderr):
        exit_code = re.search(r"exit code (\d+)", words)
        status = int(exit_code[1]) if exit_code else 128 + signal.SIGKILL
        for name, task in zip(clustershell.expand(nodes), clustershell.expand(f"[{tasks}]")):
            text = "\n".join(printed.get(task, [words]))
            messages[name] = SrunMessage(status=status, text=text, by_signal=exit_code is None)
    for name, words in _SRUN_LAUNCH.findall(stderr):
        messages[name] = SrunMessage(status=None, text=words)
    return messages


def step_causes(messages: Mapping[str, SrunMessage], stderr: str) -> set[str]:
    """The nodes because of which srun ended a step for all; empty if it did not, or does not say
    it."""
    if _SRUN_ABORTED.search(stderr):
        return {name for name, message in messages.items() if not message.by_signal}
    return {name for name, message in messages.items() if message.status is None}


def _srun_failure(message: SrunMessage) -> tuple[str, str]:
    if message.status is None:
        return "no-slurmd", message.text
    return classify(message.status, "", message.text)


def _step_error(stderr: str) -> str:
    """What srun says about the step as a whole, not about single nodes."""
    lines = [line for line in stderr.splitlines() if not _SRUN_EXIT.search(line)]
    return "\n".join(line for line in lines if line.startswith("srun: error"))


def srun_documents(stdout: bytes, action: str) -> dict[str, Mapping[str, Any]]:
    """The answers in what `srun --label` printed, by Slurm's name of the node. It breaks lines after
    1,024 bytes or so (22.05): `2: ` begins each piece of what task 2 printed.

    Without answers that are not valid, and without those of a name that several tasks claim.
    """
    pieces: dict[str, list[str]] = {}
    for task, text in _SRUN_LABEL.findall(stdout.decode(errors="replace")):
        pieces.setdefault(task, []).append(text)
    documents: dict[str, Mapping[str, Any]] = {}
    claimed: set[str] = set()
    for texts in pieces.values():
        text = codec.marked_text(texts)
        if text is None:
            continue
        try:
            document = codec.decode(text, action)
        except ValueError:
            continue
        name = str(document.get("slurm_node"))
        if name in claimed:
            documents.pop(name, None)
        else:
            documents[name] = document
        claimed.add(name)
    return documents
