"""Whether nodes can store and run environments: judges the facts that they answered.

Pure: the same answers and needs give the same verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from provision import catalog
from provision.catalog import Build, version_key
from provision.catalog.mismatches import code_mismatches, driver_mismatches
from provision.cluster.failures import NodeFailure
from provision.cluster.inventory import Node
from provision.cluster.remote import NodeAnswer
from provision.core.errors import InvalidSpec
from provision.core.platforms import Platform
from provision_runtime.report.text import format_bytes, format_count

# fit; unfit: something is certainly wrong; unknown: it did not answer, or not wholly; same: another
# name of a node that is judged already.
NodeVerdict = Literal["fit", "unfit", "unknown", "same"]
STAGE = "check"
ARCHITECTURES: dict[Platform, str] = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}
# Nodes with working NTP differ by milliseconds. With seconds, files seem to come from the future,
# and Munge and Kerberos refuse at 300.
MOST_CLOCK_SKEW_S = 5.0
# An image needs two, an unpacked environment of torch 36,000 (measured; torch 2.3.1+cu121).
LEAST_INODES = 100
# Without these answers nobody knows whether the node is fit.
NEEDED_FACTS = ("system", "store", "gpus")
# Failures that tell nothing about the node itself.
_UNKNOWN_REASONS = ("timed-out", "connection-lost", "killed", "bad-answer")


@dataclass(frozen=True, kw_only=True)
class EnvironmentNeeds:
    """What an environment needs of a node. platforms: it has a build for each of them. cuda, build:
    None for a build without CUDA. store_bytes: 0 if it is not known yet."""

    name: str
    platforms: tuple[Platform, ...]
    glibc: str | None
    cuda: str | None = None
    build: Build | None = None
    store_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """The judgment on one node. summary: its main facts in a line, equal for equal nodes."""

    node: Node
    verdict: NodeVerdict
    problems: tuple[NodeFailure, ...]
    warnings: tuple[NodeFailure, ...]
    summary: str
    facts: Mapping[str, Any]


def judge(
    answer: NodeAnswer,
    needs: EnvironmentNeeds | None = None,
    needed: Sequence[str] = NEEDED_FACTS,
) -> NodeReport:
    """Judge a node by its answer to the action `facts`, or to another one with the needed facts; a
    Kubernetes node by what its API server says about it."""
    if answer.node.engine == "kubernetes":
        return _judge_kubernetes(answer.node, needs)
    if answer.failure is not None:
        return _judge_failure(answer)
    facts = answer.result or {"unread": {}}
    problems = [
        *_system_problems(facts.get("system"), needs),
        *_store_problems(facts.get("store"), needs),
        *_gpu_problems(facts.get("gpus"), needs),
        *_host_problems(facts.get("host")),
        *_clock_problems(answer),
    ]
    unread = []
    for fact in needed:
        if fact not in facts:
            reason = facts["unread"].get(fact, "the node does not say it")
            unread.append(_problem("unread", f"{fact}: {reason}"))
    verdict: NodeVerdict = "fit"
    if problems:
        verdict = "unfit"
    elif unread:
        verdict = "unknown"
    return NodeReport(
        node=answer.node,
        verdict=verdict,
        problems=(*problems, *unread),
        warnings=tuple(_warnings(answer, facts, needs)),
        summary=summary(facts),
        facts=facts,
    )


def summary(facts: Mapping[str, Any]) -> str:
    """`x86_64, glibc 2.36, driver 550.54.15, 8 x NVIDIA H100 80GB HBM3`."""
    system, gpus = facts.get("system"), facts.get("gpus")
    parts = []
    if system:
        parts.append(system["arch"])
        parts.append(f"glibc {system['glibc']}" if system["glibc"] else "no glibc")
    if gpus and gpus["driver"]:
        parts.append(f"driver {gpus['driver']}")
    if gpus:
        parts.append(_devices_text(gpus["devices"]))
    return ", ".join(parts)


def _judge_failure(answer: NodeAnswer) -> NodeReport:
    failure = answer.failure
    assert failure is not None
    verdict: NodeVerdict = "unfit"
    if failure.reason == "same-node":
        verdict = "same"
    elif failure.reason in _UNKNOWN_REASONS:
        verdict = "unknown"
    node = answer.node
    if not node.answers:
        state_text = f"{node.engine} says {node.state}"
        if node.reason:
            state_text += f" ({node.reason})"
        failure = NodeFailure(
            stage=failure.stage, reason=failure.reason, message=f"{failure.message}; {state_text}"
        )
    return NodeReport(
        node=node, verdict=verdict, problems=(failure,), warnings=(), summary="", facts={}
    )


def _judge_kubernetes(node: Node, needs: EnvironmentNeeds | None) -> NodeReport:
    """Images bring their own glibc and store, so only these matter."""
    facts = node.engine_facts
    problems = [*_arch_problems(facts["arch"], needs)]
    if not node.answers:
        problems.append(_problem("not-ready", f"Kubernetes says {node.state}"))
    for condition in facts["pressure"]:
        problems.append(_problem("not-ready", f"Kubernetes says {condition}"))
    if needs and facts["driver"] and needs.cuda:
        problems += _driver_problems(needs, facts["driver"], _platform(facts["arch"]))
    parts = [facts["arch"]]
    if facts["driver"]:
        parts.append(f"driver {facts['driver']}")
    parts.append(f"{node.gpus} x {node.gpu_type or 'GPU'}" if node.gpus else "no GPU")
    return NodeReport(
        node=node,
        verdict="unfit" if problems else "fit",
        problems=tuple(problems),
        warnings=(),
        summary=", ".join(parts),
        facts=facts,
    )


def _system_problems(
    system: Mapping[str, Any] | None, needs: EnvironmentNeeds | None
) -> Iterator[NodeFailure]:
    if system is None or needs is None:
        return
    yield from _arch_problems(system["arch"], needs)
    glibc = system["glibc"]
    if needs.glibc is None:
        return
    if glibc is None:
        yield _problem("old-glibc", f"no glibc; {needs.glibc} is needed")
    elif version_key(glibc) < version_key(needs.glibc):
        yield _problem("old-glibc", f"glibc {glibc} < {needs.glibc}")


def _arch_problems(arch: str, needs: EnvironmentNeeds | None) -> Iterator[NodeFailure]:
    if needs is None:
        return
    built_for = [ARCHITECTURES[platform] for platform in needs.platforms]
    if arch not in built_for:
        yield _problem("wrong-arch", f"{arch}; the environment is for {', '.join(built_for)}")


def _store_problems(
    store: Mapping[str, Any] | None, needs: EnvironmentNeeds | None
) -> Iterator[NodeFailure]:
    if store is None:
        return
    problem = store["problem"]
    if problem is not None:
        yield _problem(problem["reason"], problem["message"])
        return
    if not store["is_executable"]:
        yield _problem("no-exec", f"{store['existing']} is mounted with noexec")
    needed_bytes = needs.store_bytes if needs else 0
    if store["free_bytes"] < needed_bytes:
        free, needed = format_bytes(store["free_bytes"]), format_bytes(needed_bytes)
        yield _problem("disk-full", f"{free} free in {store['existing']}; {needed} are needed")
    inodes = store["free_inodes"]
    if inodes is not None and inodes < LEAST_INODES:
        free = format_count(inodes, "free inode")
        yield _problem("no-inodes", f"{free} in {store['existing']}")


def _gpu_problems(
    gpus: Mapping[str, Any] | None, needs: EnvironmentNeeds | None
) -> Iterator[NodeFailure]:
    if gpus is None:
        return
    devices, on_bus = gpus["devices"], gpus["on_bus"]
    if on_bus and gpus["problem"]:
        yield _problem("gpu-driver", gpus["problem"])
    if devices and len(devices) < on_bus:
        yield _problem("gpu-missing", f"{len(devices)} of {on_bus} GPUs answer")
    if needs and needs.cuda and gpus["driver"] and devices:
        yield from _driver_problems(needs, gpus["driver"], needs.platforms[0])
        yield from _code_problems(needs, gpus)


def _driver_problems(
    needs: EnvironmentNeeds, driver: str, platform: Platform | None
) -> Iterator[NodeFailure]:
    if needs.cuda is None or platform is None:
        return
    for mismatch in driver_mismatches(needs.cuda, driver, platform):
        if mismatch.certain:
            yield _problem("old-driver", mismatch.why)


def _code_problems(needs: EnvironmentNeeds, gpus: Mapping[str, Any]) -> Iterator[NodeFailure]:
    if needs.build is None:
        return
    for name in dict.fromkeys(device["name"] for device in gpus["devices"]):
        try:
            gpu = catalog.find_gpu(name)
        except InvalidSpec:  # a product that the catalog does not know: nothing is known of it
            continue
        for mismatch in code_mismatches(needs.build, gpu, gpus["driver"]):
            if mismatch.certain:
                yield _problem("gpu-unsupported", mismatch.why)


def _host_problems(host: Mapping[str, Any] | None) -> Iterator[NodeFailure]:
    if host is not None and not host["addresses"]:
        yield _problem("no-own-name", f"its own name {host['name']} does not resolve there")


def clock_skew_s(answer: NodeAnswer) -> float:
    """How far the node's clock is certainly off: 0 if its time lies between question and answer."""
    node_time = (answer.result or {}).get("time")
    if node_time is None:
        return 0.0
    if node_time > answer.received:
        return float(node_time - answer.received)
    return min(0.0, float(node_time - answer.sent))


def _clock_problems(answer: NodeAnswer) -> Iterator[NodeFailure]:
    skew = clock_skew_s(answer)
    if abs(skew) >= MOST_CLOCK_SKEW_S:
        direction = "ahead of" if skew > 0 else "behind"
        yield _problem("clock-skew", f"its clock is {abs(skew):.0f} s {direction} this machine's")


def _warnings(
    answer: NodeAnswer, facts: Mapping[str, Any], needs: EnvironmentNeeds | None
) -> Iterator[NodeFailure]:
    host, gpus, limits = facts.get("host"), facts.get("gpus"), facts.get("limits")
    if host and host["is_loopback"]:
        addresses = ", ".join(host["addresses"])
        yield _problem("loopback-name", f"its own name resolves only to {addresses}")
    if gpus:
        yield from _gpu_warnings(answer.node, gpus, needs)
    if "mounting" in facts and "tools" in facts and not mount_way(facts):
        yield _problem("no-mount", "no way to mount an image")
    if limits and limits["infiniband"]["adapters"] and limits["memlock"] is not None:
        yield _problem("memlock", f"locked memory is limited to {format_bytes(limits['memlock'])}")


def _gpu_warnings(
    node: Node, gpus: Mapping[str, Any], needs: EnvironmentNeeds | None
) -> Iterator[NodeFailure]:
    count = len(gpus["devices"])
    if node.gpus is not None and count < node.gpus:
        yield _problem(
            "gpu-count", f"{node.engine} counts {format_count(node.gpus, 'GPU')}; {count} answer"
        )
    elif needs and needs.cuda and not count and not gpus["on_bus"]:
        yield _problem("no-gpu", f"no GPU, and the environment is for CUDA {needs.cuda}")


def mount_way(facts: Mapping[str, Any]) -> Literal["kernel", "fuse"] | None:
    """How this node can mount a squashfs image; None if it has to be unpacked."""
    mounting, tools = facts["mounting"], facts["tools"]
    if mounting["may_mount"] and mounting["squashfs"] and mounting["squashfs_zstd"] is not False:
        return "kernel"
    has_squashfuse = "squashfuse" in tools or "squashfuse_ll" in tools
    if mounting["fuse"] and has_squashfuse and ("fusermount3" in tools or "fusermount" in tools):
        return "fuse"
    return None


def _platform(arch: str) -> Platform | None:
    for platform, name in ARCHITECTURES.items():
        if name == arch:
            return platform
    return None


def _devices_text(devices: Iterable[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = {}
    for device in devices:
        counts[device["name"]] = counts.get(device["name"], 0) + 1
    return " + ".join(f"{count} x {name}" for name, count in counts.items()) or "no GPU"


def _problem(reason: str, message: str) -> NodeFailure:
    return NodeFailure(stage=STAGE, reason=reason, message=message)
