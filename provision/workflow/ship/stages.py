"""What shipments and activations share: stages over nodes, the state of each node, retries, the
decision whether to activate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from provision.cluster import actions
from provision.cluster.actions import Action, ResultT
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node, Nodes, NodeSelection
from provision.cluster.remote import Arguments, NodeReply, run_action, split_replies
from provision.core.dataclass import frozen
from provision.core.types import Progress
from provision.workflow.ship.states import (
    NodeState,
    State,
    is_transient,
    plan_waves,
    required_nodes,
)
from provision_runtime.node.results import Installation

Profile = Literal["quick", "default", "full"]
Verb = Literal["ship", "activate", "rollback"]
# A node is a straggler when it takes longer than the deadline and three times the median of the
# others.
STRAGGLER_FACTOR = 3.0
# How long ending a run may take on a node: what remains is a lease that runs out.
RELEASE_S = 20.0
# How long a node may see an older state of a shared file system: NFS caches names for 60 s.
SHARED_WAIT_S = 90.0
# As many nodes are tried for what one of them does for all of a shared store.
MOST_WRITERS = 8


@frozen
class ShipRequest:
    """What to do with an environment on nodes.

    minimum: how many nodes must be ready before any is activated (`required_nodes`). retries: of a
    stage on a node, after a failure that may pass. deadline_s: of a stage, without the time for
    copying. shared: all nodes see one store. tree: how many nodes fetch from one at the same time;
    0: every node gets its copy from here. boot_unit: nodes mount the environments again after a
    restart. allow_older: than the active one, where packs are signed. waves: which nodes are activated
    before others (`plan_waves`). module_folder: where nodes get modulefiles. smoke: the profile with
    which each wave is tested. left_out: nodes out of service.
    """

    name: str
    selection: NodeSelection
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
    dry_run: bool = False
    smoke: Profile | None = None
    left_out: tuple[Node, ...] = ()


class StageRun:
    """A run in stages, and what came of it. identity: as nodes record it (`run_identity`), with
    `signers` of the lab, whose packs alone they take.

    key: of the environment. halted: why a wave was the last. size: of the image. sent_bytes: by this
    machine.
    """

    key = halted = ""
    size = sent_bytes = copies_between_nodes = 0

    def __init__(
        self,
        request: ShipRequest,
        identity: Mapping[str, str],
        progress: Progress,
        verb: Verb = "ship",
    ) -> None:
        self.request, self.verb, self._progress = request, verb, progress
        self._defaults = request.selection.defaults
        run = {**identity, **self._defaults.rules}
        if request.allow_older:
            run["allow_older"] = "yes"
        self._path = str(self._defaults.path)
        # What every action on the store of an environment needs.
        self._common = {"path": self._path, "name": request.name, "run": run}
        self._nodes = {node.name: node for node in request.selection.nodes}
        self._leased: set[str] = set()
        self.states = {name: NodeState() for name in self._nodes}

    def install(
        self,
        candidates: Nodes,
        key: str,
        *,
        extra_s: float = 0.0,
        allowed: Sequence[str] = (),
        signed: Mapping[str, str] | None = None,
    ) -> None:
        """Put a verified image to its path on nodes, if it is not there. In a shared store one node
        does it, and the others use what it did. allowed: only these methods, if any are named."""
        arguments = {**self._common, "key": key, "allowed": list(allowed), "signed": signed}

        def install_on(nodes: Nodes) -> None:
            self._leased.update(node.name for node in nodes)
            self._reach_passed(nodes, actions.STORE_INSTALL, arguments, extra_s)

        rest = self._by_one_or_all("passed", candidates, install_on)
        self._attach(rest, key, active=False)

    def activate(self, candidates: Nodes, key: str) -> None:
        """Switch nodes to an environment. In a shared store one node does it for all."""
        arguments = {**self._common, "key": key, "is_shared": self.request.shared}

        def activate_on(nodes: Nodes) -> None:
            self._leased.update(node.name for node in nodes)
            results = self.ask(nodes, actions.STORE_ACTIVATE, arguments, stage="activate")
            for name, activation in results.items():
                self._leased.discard(name)
                state = self.states[name]
                state.reach("active")
                state.removed, state.in_use = activation["removed"], activation["in_use"]

        rest = self._by_one_or_all("active", candidates, activate_on)
        self._attach(rest, key, active=True)
        for node in self.in_state("passed", among=rest):
            self.states[node.name].reach("active")

    def _by_one_or_all(
        self, state: State, nodes: Nodes, step: Callable[[Nodes], None]
    ) -> list[Node]:
        """Take a step on all nodes; in a shared store on one after the other until one reaches a
        state, and a few at most. Returns the nodes after it."""
        if not self.request.shared:
            step(nodes)
            return []
        for index, writer in enumerate(nodes[:MOST_WRITERS]):
            step([writer])
            if self.states[writer.name].state == state:
                return list(nodes[index + 1 :])
        return []

    def _attach(self, nodes: Nodes, key: str, *, active: bool) -> None:
        arguments = {**self._common, "key": key, "active": active, "wait_s": SHARED_WAIT_S}
        self._reach_passed(nodes, actions.STORE_ATTACH, arguments, SHARED_WAIT_S)

    def _reach_passed(
        self,
        nodes: Nodes,
        action: Action[Installation],
        arguments: Arguments,
        extra_s: float,
    ) -> None:
        limit_s = self.request.deadline_s + extra_s
        results = self.ask(nodes, action, arguments, stage="install", limit_s=limit_s)
        for name, installation in results.items():
            state = self.states[name]
            state.reach("passed")
            state.method = installation["method"]
            state.note = installation.get("note", "")
            state.ends_at_boot = installation.get("ends_at_boot", False)

    def may_activate(self) -> bool:
        """Whether enough nodes are ready."""
        return len(self.in_state("passed", "active")) >= self.required()

    def can_be_ready(self) -> bool:
        """Whether enough nodes can still be ready."""
        return self.possible >= self.required()

    def required(self) -> int:
        """How many nodes must be ready. A number stays, also where one machine has two names."""
        minimum = self.request.minimum
        return int(minimum) if minimum.isdecimal() else required_nodes(minimum, len(self._nodes))

    @property
    def expected(self) -> int:
        """How many nodes should reach the goal: no more than are in the waves."""
        waves = plan_waves(self.request.waves, self.request.selection.nodes)
        return min(self.required(), sum(map(len, waves)))

    @property
    def possible(self) -> int:
        """How many nodes could be where they should be."""
        return len(self._nodes) - len(self.in_state("failed", "unknown"))

    @property
    def goal(self) -> State:
        """The state that nodes should reach."""
        return "passed" if self.request.stage_only else "active"

    @property
    def ready(self) -> int:
        """How many nodes are where they should be."""
        return len(self.in_state(self.goal, "active"))

    @property
    def succeeded(self) -> bool:
        """Whether enough nodes are; for a dry run, whether enough could be."""
        if self.request.dry_run:
            return self.possible >= self.expected
        return self.ready >= self.expected and not self.halted

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
            defaults=self._defaults,
        )

    def ask(
        self,
        nodes: Nodes,
        action: Action[ResultT],
        arguments: Arguments | str,
        *,
        stage: str,
        limit_s: float | None = None,
    ) -> dict[str, ResultT]:
        """The results of an action on nodes, by node. Failures become the states of their nodes."""
        replies = self.replies(nodes, action, arguments, stage=stage, limit_s=limit_s)
        results, failures = split_replies(replies)
        for name, failure in failures.items():
            self.record_failure(name, failure)
        return results

    def replies(
        self,
        nodes: Nodes,
        action: Action[ResultT],
        arguments: Arguments | str,
        *,
        stage: str,
        limit_s: float | None = None,
    ) -> list[NodeReply[ResultT]]:
        """The replies of nodes to an action, which runs again where it failed for a reason that may
        pass."""
        if not nodes:
            return []
        replies: dict[str, NodeReply[ResultT]] = {}
        remaining = list(nodes)
        with self._progress.meter(stage, len(nodes)) as meter:

            def on_reply(reply: NodeReply[ResultT]) -> None:
                if reply.node.name not in replies:
                    meter.advance(1)

            for _ in range(self.request.retries + 1):
                latest = run_action(
                    remaining,
                    action,
                    arguments,
                    stage=stage,
                    timeout_s=self.request.deadline_s if limit_s is None else limit_s,
                    straggler_factor=STRAGGLER_FACTOR,
                    defaults=self._defaults,
                    on_reply=on_reply,
                )
                replies.update((reply.node.name, reply) for reply in latest)
                remaining = [reply.node for reply in latest if is_transient(reply.failure)]
        return [replies[node.name] for node in nodes]

    def record_failure(self, name: str, failure: NodeFailure) -> None:
        """A machine that is listed under two names is used once."""
        if failure.reason == "same-node":
            self._progress.info(f"{failure.message}: it is used once")
            self._leased.discard(name)
            del self._nodes[name], self.states[name]
        else:
            self.states[name].fail(failure)

    def in_state(self, *states: State, among: Iterable[Node] | None = None) -> list[Node]:
        """The nodes in one of these states, without those that were left out."""
        nodes = self._nodes.values() if among is None else among
        members = [node for node in nodes if node.name in self._nodes]
        return [node for node in members if self.states[node.name].state in states]
