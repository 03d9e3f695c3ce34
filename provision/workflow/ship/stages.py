"""What shipments and activations share: stages over nodes, the state of each node, retries, the
decision whether to activate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.remote import NodeAnswer, OnAnswer, run_action, run_script
from provision.core.types import Progress
from provision.workflow.ship.journal import ShipJournal
from provision.workflow.ship.states import (
    TRANSIENT_REASONS,
    CommonFailure,
    NodeState,
    State,
    common_failure,
    required_nodes,
    state_of_failure,
)

# A node is late when it takes longer than the deadline and three times the median of the others.
LATE_FACTOR = 3.0
# How long ending a run may take on a node: what remains is a lease that runs out.
RELEASE_S = 20.0
# How long a node may see an older state of a shared file system: NFS caches names for 60 s.
SHARED_WAIT_S = 90.0


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """minimum: how many nodes must be ready before any is activated (`required_nodes`). retries: of
    a stage on a node, after a failure that may pass. deadline_s: of a stage, without the time for
    copying. shared: all nodes see one store."""

    minimum: str = "all"
    retries: int = 2
    deadline_s: float = 120.0
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What nodes are told of a run. source: the machine, user and folder that it runs from, where
    one run of an environment is at work at a time. by: the same for people."""

    id: str
    source: str
    by: str


class StageRun:
    """One run over nodes. finished: those that an earlier part of this run activated, and that are
    not asked again. journal: None for a run that changes nothing."""

    def __init__(
        self,
        selection: NodeSelection,
        name: str,
        identity: RunIdentity,
        options: StageOptions,
        journal: ShipJournal | None,
        progress: Progress,
        finished: Iterable[str] = (),
    ) -> None:
        self._selection, self.name, self._options = selection, name, options
        self._journal, self._progress = journal, progress
        self._run = {
            "id": identity.id,
            "source": identity.source,
            "by": identity.by,
            **selection.defaults.rules,
        }
        self._nodes = {node.name: node for node in selection.nodes}
        self._path = str(selection.defaults.path)
        self._leased: set[str] = set()
        self._had_second_chance: set[str] = set()
        self.states = {name: NodeState(state="pending") for name in self._nodes}
        for finished_name in finished:
            self.states[finished_name] = NodeState(state="active")
        self.ways: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.removed: dict[str, list[str]] = {}
        self.in_use: dict[str, list[str]] = {}
        self.stopped: CommonFailure | None = None

    def install(
        self,
        candidates: Sequence[Node],
        key: str,
        *,
        extra_s: float = 0.0,
        allowed: Sequence[str] = (),
    ) -> None:
        """Put a verified image to its path on nodes, if it is not there. In a shared store one node
        does it, and the others use what it did. allowed: only these ways, if any are named."""
        arguments = {"path": self._path, "name": self.name, "key": key, "run": self._run}
        action = partial(
            self._reach_passed,
            action="store-install",
            arguments={**arguments, "allowed": list(allowed)},
            extra_s=extra_s,
        )
        if not self._options.shared:
            self._leased.update(node.name for node in candidates)
            action(candidates)
            self.sync()
            return
        remaining = list(candidates)
        while remaining:
            writer = remaining.pop(0)
            self._leased.add(writer.name)
            action([writer])
            if self.states[writer.name].state == "passed":
                break
        self._attach(remaining, key, active=False)
        self.sync()

    def _attach(self, nodes: Sequence[Node], key: str, *, active: bool) -> None:
        arguments = {
            "path": self._path,
            "name": self.name,
            "key": key,
            "active": active,
            "wait_s": SHARED_WAIT_S,
            "run": self._run,
        }
        self._reach_passed(nodes, action="store-attach", arguments=arguments, extra_s=SHARED_WAIT_S)

    def _reach_passed(
        self, nodes: Sequence[Node], *, action: str, arguments: Mapping[str, Any], extra_s: float
    ) -> None:
        with self._progress.meter("installing", len(nodes)) as meter:
            answers = self.ask(
                nodes,
                action,
                arguments,
                stage="install",
                extra_s=extra_s,
                on_each=lambda: meter.advance(1),
            )
        for answer in answers:
            if answer.failure is not None:
                self.record_failure(answer)
                continue
            assert answer.result is not None
            self.ways[answer.node.name] = answer.result["way"]
            self._take_note(answer)
            self.record(answer.node.name, NodeState(state="passed"))

    def _take_note(self, answer: NodeAnswer) -> None:
        assert answer.result is not None
        if answer.result.get("note"):
            self.notes[answer.node.name] = answer.result["note"]

    def may_activate(self) -> bool:
        """Whether enough nodes are ready, and the run was not stopped."""
        ready = self.count("passed", "active")
        return not self.is_stopped() and ready >= self.required()

    def required(self) -> int:
        return required_nodes(self._options.minimum, len(self._nodes))

    def activate(self, candidates: Sequence[Node], key: str) -> None:
        """Switch nodes to an environment. In a shared store one node does it for all."""
        if not self._options.shared:
            self._activate_on(candidates, key)
            return
        remaining = list(candidates)
        while remaining:
            writer = remaining.pop(0)
            self._activate_on([writer], key)
            if self.states[writer.name].state == "active":
                break
        self._attach(remaining, key, active=True)
        for node in self.in_state("passed", among=remaining):
            self.record(node.name, NodeState(state="active"))
        self.sync()

    def _activate_on(self, candidates: Sequence[Node], key: str) -> None:
        self._leased.update(node.name for node in candidates)
        arguments = {
            "path": self._path,
            "name": self.name,
            "key": key,
            "run": self._run,
            "is_shared": self._options.shared,
        }
        for answer in self.ask(candidates, "store-activate", arguments, stage="activate"):
            name = answer.node.name
            if answer.failure is not None:
                self.record_failure(answer)
                continue
            assert answer.result is not None
            self._leased.discard(name)
            self.record(name, NodeState(state="active"))
            self.removed[name] = answer.result["removed"]
            self.in_use[name] = answer.result["in_use"]
        self.sync()

    def release(self) -> None:
        """Let other runs in where this one ended before the activation. Where nobody answers, the
        lease runs out by itself."""
        nodes = [self._nodes[name] for name in sorted(self._leased)]
        nodes = [node for node in nodes if self.states[node.name].state != "unknown"]
        arguments = {"path": self._path, "name": self.name, "run": self._run}
        if nodes:
            run_action(
                nodes,
                "store-release",
                arguments,
                stage="release",
                timeout_s=RELEASE_S,
                defaults=self._selection.defaults,
            )

    def ask(
        self,
        nodes: Sequence[Node],
        action: str,
        arguments: Mapping[str, Any],
        *,
        stage: str,
        retries: int | None = None,
        deadline_s: float | None = None,
        extra_s: float = 0.0,
        on_each: Callable[[], None] = lambda: None,
    ) -> list[NodeAnswer]:
        """Run an action on nodes; again where it failed for a reason that may pass.

        retries, deadline_s: those of the options, unless given. extra_s: what it may take beyond the
        deadline.
        """
        if deadline_s is None:
            deadline_s = self._options.deadline_s
        limit_s = deadline_s + extra_s

        def run(remaining: Sequence[Node], on_answer: OnAnswer) -> list[NodeAnswer]:
            return run_action(
                remaining,
                action,
                arguments,
                stage=stage,
                timeout_s=limit_s,
                late_factor=LATE_FACTOR,
                defaults=self._selection.defaults,
                on_answer=on_answer,
            )

        return self._ask(nodes, run, self._options.retries if retries is None else retries, on_each)

    def ask_script(
        self,
        nodes: Sequence[Node],
        script: str,
        *,
        stage: str,
        timeout_s: float,
        on_each: Callable[[], None],
    ) -> list[NodeAnswer]:
        """The same for the script of `probe.py`. timeout_s: how long it may take."""

        def run(remaining: Sequence[Node], on_answer: OnAnswer) -> list[NodeAnswer]:
            return run_script(
                remaining,
                script,
                stage=stage,
                timeout_s=timeout_s,
                late_factor=LATE_FACTOR,
                defaults=self._selection.defaults,
                on_answer=on_answer,
            )

        return self._ask(nodes, run, self._options.retries, on_each)

    def _ask(
        self,
        nodes: Sequence[Node],
        run: Callable[[Sequence[Node], OnAnswer], list[NodeAnswer]],
        retries: int,
        on_each: Callable[[], None],
    ) -> list[NodeAnswer]:
        answers: dict[str, NodeAnswer] = {}
        counted: set[str] = set()

        def on_answer(answer: NodeAnswer) -> None:
            if answer.node.name not in counted:
                counted.add(answer.node.name)
                on_each()

        remaining = list(nodes)
        for _ in range(retries + 1):
            if not remaining:
                break
            for answer in run(remaining, on_answer):
                answers[answer.node.name] = answer
            remaining = [
                answer.node
                for answer in answers.values()
                if answer.failure is not None and answer.failure.reason in TRANSIENT_REASONS
            ]
        return [answers[node.name] for node in nodes]

    def leave_out(self, answer: NodeAnswer) -> None:
        """A machine that is listed under two names is used once."""
        assert answer.failure is not None
        self._progress.say(f"{answer.failure.message}: it is used once")
        del self._nodes[answer.node.name], self.states[answer.node.name]

    def record(self, name: str, state: NodeState) -> None:
        if self.states[name] != state:
            self.states[name] = state
            if self._journal is not None:
                self._journal.record(name, state)

    def record_failure(self, answer: NodeAnswer, stage: str | None = None) -> None:
        failure = answer.failure
        assert failure is not None
        if stage is not None:
            failure = NodeFailure(stage=stage, reason=failure.reason, message=failure.message)
        self.record(answer.node.name, state_of_failure(failure))

    def sync(self) -> None:
        if self._journal is not None:
            self._journal.sync()

    def is_stopped(self) -> bool:
        """Whether too many nodes failed for one reason. Late nodes do not count before their second
        chance."""
        if self.stopped is None:
            states = {}
            for name, state in self.states.items():
                is_open = state.state == "unknown" and name not in self._had_second_chance
                states[name] = NodeState(state="pending") if is_open else state
            self.stopped = common_failure(states, self.required())
        return self.stopped is not None

    def count(self, *states: State) -> int:
        return len(self.in_state(*states))

    def in_state(self, *states: State, among: Iterable[Node] | None = None) -> list[Node]:
        """The nodes in one of these states, without those that were left out."""
        nodes = self._nodes.values() if among is None else among
        members = [node for node in nodes if node.name in self._nodes]
        return [node for node in members if self.states[node.name].state in states]
