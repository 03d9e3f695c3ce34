"""Whether nodes can store and run environments: judges the facts that they sent.

Pure: the same facts and needs give the same verdicts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from typing import Literal, TypeVar

from provision import catalog
from provision.adapters.kubernetes.nodes import KubernetesNode
from provision.catalog import Build, version_key
from provision.catalog.mismatches import code_mismatches, driver_mismatches
from provision.cluster.failures import REASONS, NodeFailure
from provision.cluster.inventory import Node
from provision.cluster.remote import NodeReply
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.platforms import Platform
from provision_runtime.node.results import FitnessFacts
from provision_runtime.report.text import format_bytes, format_count

# The result of `facts`, or another one with some of these facts.
ResultT = TypeVar("ResultT", bound=FitnessFacts)
# fit; unfit: something is certainly wrong; unknown: it did not respond, or not wholly; same: another
# name of a node that is judged already.
NodeVerdict = Literal["fit", "unfit", "unknown", "same"]
STAGE = "check"
PLATFORMS: dict[str, Platform] = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}
# Nodes with working NTP differ by milliseconds. With seconds, files seem to come from the future,
# and Munge and Kerberos refuse at 300.
MOST_CLOCK_SKEW_S = 5.0
CLOCK_SKEWS = (
    (86400.0, "a day"),
    (3600.0, "an hour"),
    (60.0, "a minute"),
    (MOST_CLOCK_SKEW_S, f"{MOST_CLOCK_SKEW_S:.0f} s"),
)
# Without these facts nobody knows whether the node is fit.
NEEDED_FACTS = ("system", "store", "gpus")


@frozen
class EnvironmentNeeds:
    """What an environment needs of a node. platforms: it has a build for each of them. cuda, build:
    None for a build without CUDA. store_bytes: 0 if it is not known yet. inodes: an image takes two,
    an unpacked environment of torch 36,000 (measured; torch 2.3.1+cu121)."""

    name: str = ""
    platforms: tuple[Platform, ...] = ()
    glibc: str | None = None
    cuda: str | None = None
    build: Build | None = None
    store_bytes: int = 0
    inodes: int = 100


NO_NEEDS = EnvironmentNeeds()


@frozen
class NodeFitness:
    """The judgment on one node. summary: its main facts in a line, equal for equal nodes."""

    node: Node
    verdict: NodeVerdict
    problems: tuple[NodeFailure, ...] = ()
    warnings: tuple[NodeFailure, ...] = ()
    summary: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


def judge(
    reply: NodeReply[ResultT],
    needs: EnvironmentNeeds = NO_NEEDS,
    needed: Sequence[str] = NEEDED_FACTS,
) -> NodeFitness:
    """Judge a node by its reply to the action `facts`, or to another one with the needed facts; a
    Kubernetes node by what its API server lists of it."""
    if reply.node.kubernetes is not None:
        return _judge_kubernetes(reply.node, reply.node.kubernetes, needs)
    if reply.failure is not None:
        return _judge_failure(reply.node, reply.failure)
    facts: FitnessFacts = reply.result or {"unread": {}}
    problems = [*_problems(facts, needs), *_clock_problems(clock_skew_s(reply))]
    warnings = [*_warnings(reply.node, facts, needs)]
    for problem in _store_problems(facts, needs):
        # Who may not ship there can use what others shipped.
        environment = facts.get("environment")
        is_usable = environment and environment["key"] and not environment["problem"]
        is_shippers = is_usable and problem.reason == "permission-denied"
        (warnings if is_shippers else problems).append(problem)
    unread = []
    for fact in needed:
        if fact not in facts:
            reason = facts["unread"].get(fact, "the node does not say it")
            unread.append(_problem("unread", f"{fact}: {reason}"))
    if "methods" in needed and facts.get("methods") == []:
        problems.append(_problem("no-method", "nothing there can mount or unpack the image"))
    verdict: NodeVerdict = "fit"
    if problems:
        verdict = "unfit"
    elif unread:
        verdict = "unknown"
    return NodeFitness(
        node=reply.node,
        verdict=verdict,
        problems=(*problems, *unread),
        warnings=tuple(warnings),
        summary=_summary(facts),
        facts=facts,
    )


def _summary(facts: FitnessFacts) -> str:
    """`x86_64, glibc 2.36, driver 550.54.15, 8 x NVIDIA H100 80GB HBM3`."""
    parts = []
    if "system" in facts:
        glibc = facts["system"]["glibc"]
        parts += [facts["system"]["arch"], f"glibc {glibc}" if glibc else "no glibc"]
    if "gpus" in facts:
        if facts["gpus"]["driver"]:
            parts.append(f"driver {facts['gpus']['driver']}")
        counts = Counter(facts["gpus"]["devices"])
        names = [f"{count} x {name}" for name, count in counts.items()]
        parts.append(" + ".join(names) or "no GPU")
    if "environment" in facts and not facts["environment"]["problem"]:
        key = facts["environment"]["key"]
        parts.append(f"{key} is active" if key else "the environment has not been shipped")
    return ", ".join(parts)


def _judge_failure(node: Node, failure: NodeFailure) -> NodeFitness:
    verdict: NodeVerdict = "unfit"
    if failure.reason == "same-node":
        verdict = "same"
    elif REASONS[failure.reason].is_unknown:
        verdict = "unknown"
    if not node.responds:
        state = f"{node.state} ({node.reason})" if node.reason else node.state
        failure = replace(failure, message=f"{failure.message}; {node.engine} says {state}")
    return NodeFitness(node=node, verdict=verdict, problems=(failure,))


def _judge_kubernetes(node: Node, facts: KubernetesNode, needs: EnvironmentNeeds) -> NodeFitness:
    """Images bring their own glibc and store, so only these matter."""
    conditions = (*([] if node.responds else [node.state]), *facts.faults)
    problems = [*_arch_problems(facts.arch, needs)]
    problems += [_problem("not-ready", f"Kubernetes says {condition}") for condition in conditions]
    if facts.driver:
        problems += _driver_problems(needs, facts.driver, PLATFORMS.get(facts.arch))
    driver = f"driver {facts.driver}" if facts.driver else ""
    whole = f"{node.gpus} x {node.gpu_type or 'GPU'}" if node.gpus else ""
    shares = f"shared as {', '.join(facts.gpu_shares)}" if facts.gpu_shares else ""
    gpus = " ".join(filter(None, (whole, shares))) or "no GPU"
    return NodeFitness(
        node=node,
        verdict="unfit" if problems else "fit",
        problems=tuple(problems),
        summary=", ".join(filter(None, (facts.arch, driver, gpus))),
        facts=asdict(facts),
    )


def _problems(facts: FitnessFacts, needs: EnvironmentNeeds) -> Iterator[NodeFailure]:
    if "system" in facts:
        glibc = facts["system"]["glibc"]
        yield from _arch_problems(facts["system"]["arch"], needs)
        if needs.glibc and glibc is None:
            yield _problem("old-glibc", f"no glibc; {needs.glibc} is needed")
        elif needs.glibc and glibc and version_key(glibc) < version_key(needs.glibc):
            yield _problem("old-glibc", f"glibc {glibc} < {needs.glibc}")
    if "gpus" in facts:
        gpus = facts["gpus"]
        devices, on_bus, driver = gpus["devices"], gpus["on_bus"], gpus["driver"]
        if on_bus and gpus["problem"]:
            yield _problem("gpu-driver", gpus["problem"])
        if devices and len(devices) < on_bus:
            yield _problem("gpu-missing", f"{len(devices)} of {on_bus} GPUs respond")
        if devices and driver and needs.platforms:
            yield from _driver_problems(needs, driver, needs.platforms[0])
            for name in dict.fromkeys(devices):
                yield from _code_problems(needs, name, driver)
    if "environment" in facts and facts["environment"]["problem"]:
        yield _problem(**facts["environment"]["problem"])
    if "host" in facts and not facts["host"]["addresses"]:
        name = facts["host"]["name"]
        yield _problem("no-own-name", f"its host name {name} does not resolve on the node")


def _arch_problems(arch: str, needs: EnvironmentNeeds) -> Iterator[NodeFailure]:
    if needs.platforms and PLATFORMS.get(arch) not in needs.platforms:
        built_for = [name for name, platform in PLATFORMS.items() if platform in needs.platforms]
        yield _problem("wrong-arch", f"{arch}; the environment is for {', '.join(built_for)}")


def _driver_problems(
    needs: EnvironmentNeeds, driver: str, platform: Platform | None
) -> Iterator[NodeFailure]:
    if needs.cuda and platform:
        for mismatch in driver_mismatches(needs.cuda, driver, platform):
            if mismatch.rules_out:
                yield _problem("old-driver", mismatch.fact)


def _code_problems(needs: EnvironmentNeeds, name: str, driver: str) -> Iterator[NodeFailure]:
    """name: of a GPU. The catalog does not have every product."""
    with suppress(InvalidSpec):
        gpu = catalog.find_gpu(name)
        for mismatch in code_mismatches(needs.build, gpu, driver) if needs.build else ():
            if mismatch.rules_out:
                yield _problem("gpu-unsupported", mismatch.fact)


def _store_problems(facts: FitnessFacts, needs: EnvironmentNeeds) -> Iterator[NodeFailure]:
    if "store" not in facts:
        return
    store = facts["store"]
    if store["problem"] is not None:
        yield _problem(**store["problem"])
        return
    existing, inodes = store["existing"], store["free_inodes"]
    if not store["is_executable"]:
        yield _problem("no-exec", f"{existing} is mounted with noexec")
    if store["free_bytes"] < needs.store_bytes:
        free, needed = format_bytes(store["free_bytes"]), format_bytes(needs.store_bytes)
        yield _problem("disk-full", f"{free} free in {existing}; {needed} are needed")
    if inodes is not None and inodes < needs.inodes:
        free = format_count(inodes, "free inode")
        yield _problem("no-inodes", f"{free} in {existing}; {needs.inodes} are needed")


def clock_skew_s(reply: NodeReply[ResultT]) -> float:
    """How far the node's clock is certainly off: 0 if its time lies between request and reply."""
    facts: FitnessFacts | None = reply.result
    if facts is None or "time" not in facts:
        return 0.0
    return facts["time"] - min(max(facts["time"], reply.sent), reply.received)


def _clock_problems(skew_s: float) -> Iterator[NodeFailure]:
    if abs(skew_s) >= MOST_CLOCK_SKEW_S:
        direction = "ahead of" if skew_s > 0 else "behind"
        # Not its own offset, so that nodes with one fault are one line.
        least = next(text for limit_s, text in CLOCK_SKEWS if abs(skew_s) >= limit_s)
        yield _problem("clock-skew", f"its clock is more than {least} {direction} this machine's")


def _warnings(node: Node, facts: FitnessFacts, needs: EnvironmentNeeds) -> Iterator[NodeFailure]:
    if "host" in facts and facts["host"]["is_loopback"]:
        addresses = ", ".join(facts["host"]["addresses"])
        yield _problem("loopback-name", f"its host name resolves only to {addresses}")
    if "gpus" in facts:
        count = len(facts["gpus"]["devices"])
        if node.gpus is not None and count < node.gpus:
            counted = format_count(node.gpus, "GPU")
            yield _problem("gpu-count", f"{node.engine} counts {counted}; {count} respond")
        elif needs.cuda and not count and not facts["gpus"]["on_bus"]:
            yield _problem("no-gpu", f"no GPU, and the environment is for CUDA {needs.cuda}")
    if "methods" in facts and not {"kernel", "fuse"}.intersection(facts["methods"]):
        yield _problem("no-mount", "no way to mount an image")


def _problem(reason: str, message: str) -> NodeFailure:
    return NodeFailure(stage=STAGE, reason=reason, message=message)
