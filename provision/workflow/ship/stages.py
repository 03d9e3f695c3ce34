"""What shipments and activations share: stages over nodes, the state of each node, retries, the
decision whether to activate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from provision.cluster import actions
from provision.cluster.actions import Action, ResultT
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.remote import Arguments, NodeReply, merge_same_nodes, run_action
from provision.core.types import Progress
from provision.workflow.ship.states import (
    TRANSIENT_REASONS,
    CommonFailure,
    NodeDetails,
    NodeState,
    State,
    common_failure,
    required_nodes,
    state_of_failure,
)
from provision_runtime.node.results import Installation

# A node is a straggler when it takes longer than the deadline and three times the median of the
# others.
STRAGGLER_FACTOR = 3.0
# How long ending a run may take on a node: what remains is a lease that runs out.
RELEASE_S = 20.0
# How long a node may see an older state of a shared file system: NFS caches names for 60 s.
SHARED_WAIT_S = 90.0


@dataclass(frozen=True, kw_only=True)
class ShipOptions:
    """minimum: how many nodes must be ready before any is activated (`required_nodes`). retries: of
    a stage on a node, after a failure that may pass. deadline_s: of a stage, without the time for
    copying. shared: all nodes see one store. tree: how many nodes fetch from one at the same time;
    0: every node gets its copy from here. boot_unit: nodes mount the environments again after a
    restart. allow_older: than the active one, where packs are signed. waves: which
    nodes are activated before others (`plan_waves`). module_folder: where nodes get modulefiles."""

    minimum: str = "all"
    retries: int = 2
    deadline_s: float = 120.0
    shared: bool = False
    tree: int = 2
    stage_only: bool = False
    boot_unit: bool = False
    allow_older: bool = False
    waves: tuple[str, ...] = ("all",)
    module_folder: str = ""


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """The run, as nodes record it. source: the machine, user and folder that it runs from, where
    one run of an environment is at work at a time. by: the same for people."""

    id: str
    source: str
    by: str


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """One run of an environment over nodes. signers: of the lab, whose packs alone nodes take."""

    name: str
    selection: NodeSelection
    identity: RunIdentity
    options: ShipOptions
    progress: Progress
    signers: str = ""


class StageRun:
    """A run in stages."""

    def __init__(self, setup: RunSetup) -> None:
        selection, name = setup.selection, setup.name
        self._selection, self.name, self._options = selection, name, setup.options
        self._progress = setup.progress
        self._run = {**asdict(setup.identity), **selection.defaults.rules}
        if setup.options.allow_older:
            self._run["allow_older"] = "yes"
        if setup.signers:
            self._run["signers"] = setup.signers
        self._nodes = {node.name: node for node in selection.nodes}
        self._path = str(selection.defaults.path)
        # What every action on the store of an environment needs.
        self._common = {"path": self._path, "name": name, "run": self._run}
        self._leased: set[str] = set()
        self._had_second_chance: set[str] = set()
        self.states = {name: NodeState(state="pending") for name in self._nodes}
        self.details = {name: NodeDetails() for name in self._nodes}
        self.stopped: CommonFailure | None = None

    def install(
        self,
        candidates: Sequence[Node],
        key: str,
        *,
        extra_s: float = 0.0,
        allowed: Sequence[str] = (),
        signed: Mapping[str, str] | None = None,
    ) -> None:
        """Put a verified image to its path on nodes, if it is not there. In a shared store one node
        does it, and the others use what it did. allowed: only these methods, if any are named."""
        arguments = {**self._common, "key": key, "allowed": list(allowed), "signed": signed}

        def install_on(nodes: Sequence[Node]) -> None:
            self._leased.update(node.name for node in nodes)
            self._reach_passed(nodes, actions.STORE_INSTALL, arguments, extra_s)

        if self._options.shared:
            rest = self._until_one_is("passed", candidates, install_on)
            self._attach(rest, key, active=False)
        else:
            install_on(candidates)

    def _until_one_is(
        self, state: State, nodes: Sequence[Node], step: Callable[[Sequence[Node]], None]
    ) -> list[Node]:
        """Take a step on one node after the other until one reaches a state; returns the nodes
        after it."""
        remaining = list(nodes)
        while remaining:
            writer = remaining.pop(0)
            step([writer])
            if self.states[writer.name].state == state:
                break
        return remaining

    def _attach(self, nodes: Sequence[Node], key: str, *, active: bool) -> None:
        arguments = {**self._common, "key": key, "active": active, "wait_s": SHARED_WAIT_S}
        self._reach_passed(nodes, actions.STORE_ATTACH, arguments, SHARED_WAIT_S)

    def _reach_passed(
        self,
        nodes: Sequence[Node],
        action: Action[Installation],
        arguments: Arguments,
        extra_s: float,
    ) -> None:
        results = self.ask(nodes, action, arguments, stage="install", extra_s=extra_s)
        for name, installation in results.items():
            self.details[name].method = installation["method"]
            self.details[name].note = installation.get("note", "")
            self.details[name].ends_at_boot = installation.get("ends_at_boot", False)
            self.record(name, NodeState(state="passed"))

    def may_activate(self) -> bool:
        """Whether enough nodes are ready, and the run was not stopped."""
        ready = len(self.in_state("passed", "active"))
        return not self.is_stopped() and ready >= self.required()

    def can_be_ready(self) -> bool:
        """Whether enough nodes can still be ready."""
        hopeless = len(self.in_state("failed", "unknown"))
        return len(self._nodes) - hopeless >= self.required()

    def required(self) -> int:
        return required_nodes(self._options.minimum, len(self._nodes))

    def activate(self, candidates: Sequence[Node], key: str) -> None:
        """Switch nodes to an environment. In a shared store one node does it for all."""

        def activate_on(nodes: Sequence[Node]) -> None:
            self._leased.update(node.name for node in nodes)
            arguments = {**self._common, "key": key, "is_shared": self._options.shared}
            results = self.ask(nodes, actions.STORE_ACTIVATE, arguments, stage="activate")
            for name, activation in results.items():
                self._leased.discard(name)
                self.record(name, NodeState(state="active"))
                self.details[name].removed = activation["removed"]
                self.details[name].in_use = activation["in_use"]

        if self._options.shared:
            rest = self._until_one_is("active", candidates, activate_on)
            self._attach(rest, key, active=True)
            for node in self.in_state("passed", among=rest):
                self.record(node.name, NodeState(state="active"))
        else:
            activate_on(candidates)

    def release(self) -> None:
        """Let other runs in where this one ended before the activation. Where nobody responds, the
        lease runs out by itself."""
        nodes = [self._nodes[name] for name in sorted(self._leased)]
        run_action(
            [node for node in nodes if self.states[node.name].state != "unknown"],
            actions.STORE_RELEASE,
            self._common,
            stage="release",
            timeout_s=RELEASE_S,
            defaults=self._selection.defaults,
        )

    def ask(
        self,
        nodes: Sequence[Node],
        action: Action[ResultT],
        arguments: Arguments | str,
        *,
        stage: str,
        deadline_s: float | None = None,
        extra_s: float = 0.0,
    ) -> dict[str, ResultT]:
        """The results of an action on nodes, by node. Failures become the states of their nodes."""
        deadline_s = self._options.deadline_s if deadline_s is None else deadline_s
        replies = self.replies(nodes, action, arguments, stage=stage, limit_s=deadline_s + extra_s)
        results = {}
        for reply in merge_same_nodes(replies):
            if reply.failure is not None:
                self.record_failure(reply, reply.failure)
            elif reply.result is not None:
                results[reply.node.name] = reply.result
        return results

    def replies(
        self,
        nodes: Sequence[Node],
        action: Action[ResultT],
        arguments: Arguments | str,
        *,
        stage: str,
        limit_s: float,
        retries: int | None = None,
    ) -> list[NodeReply[ResultT]]:
        """The replies of nodes to an action, which runs again where it failed for a reason that may
        pass."""
        replies: dict[str, NodeReply[ResultT]] = {}
        remaining = list(nodes)
        with self._progress.meter(stage, len(nodes)) as meter:

            def on_reply(reply: NodeReply[ResultT]) -> None:
                if reply.node.name not in replies:
                    meter.advance(1)

            for _ in range((self._options.retries if retries is None else retries) + 1):
                if not remaining:
                    break
                latest = run_action(
                    remaining,
                    action,
                    arguments,
                    stage=stage,
                    timeout_s=limit_s,
                    straggler_factor=STRAGGLER_FACTOR,
                    defaults=self._selection.defaults,
                    on_reply=on_reply,
                )
                replies.update((reply.node.name, reply) for reply in latest)
                remaining = [
                    reply.node
                    for reply in latest
                    if reply.failure is not None and reply.failure.reason in TRANSIENT_REASONS
                ]
        return [replies[node.name] for node in nodes]

    def record(self, name: str, state: NodeState) -> None:
        self.states[name] = state

    def record_failure(self, reply: NodeReply[ResultT], failure: NodeFailure) -> None:
        """A machine that is listed under two names is used once."""
        name = reply.node.name
        if failure.reason == "same-node":
            self._progress.info(f"{failure.message}: it is used once")
            self._leased.discard(name)
            del self._nodes[name], self.states[name], self.details[name]
        else:
            self.record(name, state_of_failure(failure))

    def is_stopped(self) -> bool:
        """Whether too many nodes failed for one reason. Stragglers do not count before their second
        chance."""
        if self.stopped is None:
            counted = {}
            for name, state in self.states.items():
                is_open = state.state == "unknown" and name not in self._had_second_chance
                counted[name] = NodeState(state="pending") if is_open else state
            self.stopped = common_failure(counted, self.required())
        return self.stopped is not None

    def in_state(self, *states: State, among: Iterable[Node] | None = None) -> list[Node]:
        """The nodes in one of these states, without those that were left out."""
        nodes = self._nodes.values() if among is None else among
        members = [node for node in nodes if node.name in self._nodes]
        return [node for node in members if self.states[node.name].state in states]
