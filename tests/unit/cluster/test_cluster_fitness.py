"""Whether nodes are fit, by the facts that they sent."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest

from provision import catalog
from provision.adapters.kubernetes.nodes import KubernetesNode
from provision.cluster.failures import REASONS, NodeFailure
from provision.cluster.fitness import EnvironmentNeeds, NodeFitness, clock_skew_s, judge
from provision.cluster.inventory import Node
from provision.cluster.remote import NodeReply, merge_same_nodes
from provision_runtime.node.results import FitnessFacts

GIB = 1 << 30
H100 = "NVIDIA H100 80GB HBM3"
BUILD = next(build for build in catalog.releases()["2.3.1"].wheels if build.cuda == "12.1")
NEEDS = EnvironmentNeeds(
    name="train",
    platforms=("linux-64",),
    glibc="2.28",
    cuda="12.1",
    build=BUILD,
    store_bytes=10 * GIB,
)


def node(name: str = "n1", **fields: Any) -> Node:
    return Node(name=name, engine="ssh", address=name, **fields)


def facts(**changes: Any) -> dict[str, Any]:
    """The facts of a fit node, with some changed: `store={"free_bytes": 0}`."""
    document: dict[str, Any] = {
        "host": {"name": "n1", "addresses": ["10.0.0.1"], "is_loopback": False},
        "system": {"arch": "x86_64", "kernel": "6.1", "glibc": "2.36", "os": "Debian 12"},
        "store": {
            "path": "/opt/provision",
            "existing": "/opt",
            "free_bytes": 100 * GIB,
            "free_inodes": 1_000_000,
            "is_executable": True,
            "problem": None,
        },
        "gpus": {"driver": "550.54.15", "devices": [H100, H100], "on_bus": 2, "problem": None},
        "methods": ["fuse", "tree"],
        "unread": {},
        "time": 1000.5,
    }
    for name, change in changes.items():
        document[name] = {**document[name], **change} if isinstance(change, dict) else change
    return document


def reply(document: dict[str, Any] | None = None, **fields: Any) -> NodeReply[FitnessFacts]:
    values: dict[str, Any] = {
        "node": node(),
        "result": document if document is not None else facts(),
        "failure": None,
        "identity": ("n1", "boot"),
        "sent": 1000.0,
        "received": 1001.0,
    }
    return NodeReply(**{**values, **fields})


def reasons(report: NodeFitness) -> list[str]:
    return [problem.reason for problem in report.problems]


def test_fit_node() -> None:
    report = judge(reply(), NEEDS)
    assert (report.verdict, report.problems, report.warnings) == ("fit", (), ())
    assert report.summary == "x86_64, glibc 2.36, driver 550.54.15, 2 x NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        (
            {"system": {"arch": "aarch64"}},
            "wrong-arch",
            "aarch64; the environment is for x86_64",
        ),
        ({"system": {"glibc": "2.17"}}, "old-glibc", "glibc 2.17 < 2.28"),
        ({"system": {"glibc": None}}, "old-glibc", "no glibc; 2.28 is needed"),
        (
            {"gpus": {"driver": "470.82.01"}},
            "old-driver",
            "CUDA 12.1 needs driver 525.60.13 or later, and the driver is 470.82.01",
        ),
        (
            {"gpus": {"devices": ["Tesla K80"], "on_bus": 1}},
            "gpu-unsupported",
            "K80 is sm_37",
        ),
        (
            {"store": {"free_bytes": 3 * GIB}},
            "disk-full",
            "3 GiB free in /opt; 10 GiB are needed",
        ),
    ],
)
def test_needs_of_an_environment(
    changes: Mapping[str, Mapping[str, Any]], reason: str, message: str
) -> None:
    report = judge(reply(facts(**changes)), NEEDS)
    assert report.verdict == "unfit"
    assert reasons(report) == [reason]
    assert message in report.problems[0].message
    assert judge(reply(facts(**changes))).verdict == "fit"


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        (
            {"store": {"problem": {"reason": "read-only", "message": "/opt: Read-only"}}},
            "read-only",
            "/opt: Read-only",
        ),
        ({"store": {"is_executable": False}}, "no-exec", "/opt is mounted with noexec"),
        ({"store": {"free_inodes": 1}}, "no-inodes", "1 free inode in /opt"),
        (
            {"gpus": {"problem": "NVML: Driver/library version mismatch", "devices": []}},
            "gpu-driver",
            "mismatch",
        ),
        ({"gpus": {"devices": [H100]}}, "gpu-missing", "1 of 2 GPUs respond"),
        ({"host": {"addresses": []}}, "no-own-name", "n1 does not resolve"),
    ],
)
def test_problems_of_any_node(
    changes: Mapping[str, Mapping[str, Any]], reason: str, message: str
) -> None:
    report = judge(reply(facts(**changes)))
    assert report.verdict == "unfit"
    assert reasons(report) == [reason]
    assert message in report.problems[0].message
    assert report.problems[0].stage == "check"


@pytest.mark.parametrize(
    ("changes", "node_fields", "reason"),
    [
        ({"host": {"addresses": ["127.0.1.1"], "is_loopback": True}}, {}, "loopback-name"),
        ({"methods": ["tree"]}, {}, "no-mount"),
        ({}, {"gpus": 4}, "gpu-count"),
        ({"gpus": {"devices": [], "on_bus": 0, "driver": None}}, {}, "no-gpu"),
    ],
)
def test_warnings_do_not_make_a_node_unfit(
    changes: Mapping[str, Mapping[str, Any]], node_fields: Mapping[str, Any], reason: str
) -> None:
    report = judge(reply(facts(**changes), node=node(**node_fields)), NEEDS)
    assert report.verdict == "fit"
    assert [warning.reason for warning in report.warnings] == [reason]


@pytest.mark.parametrize(
    ("time", "skew"),
    [(1000.0, 0), (1001.0, 0), (999.0, -1.0), (1101.0, 100.0), (400.0, -600.0)],
)
def test_clock_is_wrong_only_beyond_request_and_reply(time: float, skew: float) -> None:
    document = {**facts(), "time": time}
    assert clock_skew_s(reply(document)) == skew
    report = judge(reply(document))
    assert (reasons(report) == ["clock-skew"]) is (abs(skew) >= 5)
    # Nodes with nearly the same skew have the same message, and are one line.
    texts = {100.0: "more than a minute ahead of", -600.0: "more than a minute behind"}
    assert all(texts[skew] in problem.message for problem in report.problems)


def test_slow_reply_is_no_wrong_clock() -> None:
    document = {**facts(), "time": 1050.0}
    assert judge(reply(document, received=1100.0)).verdict == "fit"


def test_unread_fact_is_unknown() -> None:
    document = facts()
    del document["store"]
    document["unread"] = {"store": "no answer within 20 s"}
    report = judge(reply(document))
    assert report.verdict == "unknown"
    assert report.problems[0].message == "store: no answer within 20 s"


def test_unread_fact_that_decides_nothing() -> None:
    document = facts()
    del document["methods"]
    document["unread"] = {"methods": "no answer within 20 s"}
    assert judge(reply(document)).verdict == "fit"


def test_a_node_that_cannot_install_an_image_is_unfit_for_a_ship() -> None:
    """`nodes check` warns of it."""
    needed = ("system", "store", "methods")
    assert reasons(judge(reply(facts(methods=[])), NEEDS, needed)) == ["no-method"]
    assert judge(reply(facts(methods=[])), NEEDS).verdict == "fit"
    unpacked = dataclasses.replace(NEEDS, inodes=36_000)
    report = judge(reply(facts(store={"free_inodes": 20_000})), unpacked, needed)
    assert report.problems[0].message == "20000 free inodes in /opt; 36000 are needed"


@pytest.mark.parametrize("fact", ["system", "store", "gpus"])
def test_a_fact_that_a_node_does_not_say_is_unknown(fact: str) -> None:
    document = facts()
    del document[fact]
    report = judge(reply(document))
    assert report.verdict == "unknown"
    assert [problem.reason for problem in report.problems] == ["unread"]
    assert judge(reply({"unread": {}, "time": 1000.5})).verdict == "unknown"


@pytest.mark.parametrize(
    ("glibc", "needed", "verdict"),
    [("2.9", "2.17", "unfit"), ("2.100", "2.28", "fit"), ("2.28", "2.28", "fit")],
)
def test_glibc_is_compared_by_its_numbers(glibc: str, needed: str, verdict: str) -> None:
    needs = EnvironmentNeeds(name="train", platforms=("linux-64",), glibc=needed)
    assert judge(reply(facts(system={"glibc": glibc})), needs).verdict == verdict


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [
        ("timed-out", "unknown"),
        ("bad-answer", "unknown"),
        ("refused", "unfit"),
        ("same-node", "same"),
    ],
)
def test_verdict_of_a_failure(reason: str, verdict: str) -> None:
    failure = NodeFailure(stage="check", reason=reason, message="words")
    report = judge(reply(None, result=None, failure=failure))
    assert report.verdict == verdict
    assert report.problems == (failure,)


def test_engine_explains_a_silent_node() -> None:
    failure = NodeFailure(stage="check", reason="connect-timeout", message="timed out")
    silent = Node(
        name="n1",
        engine="slurm",
        address="n1",
        state="down*",
        reason="bad fan",
        responds=False,
    )
    report = judge(reply(None, node=silent, result=None, failure=failure))
    assert report.problems[0].message == "timed out; slurm says down* (bad fan)"


def kubernetes_node(**fields: Any) -> Node:
    facts: dict[str, Any] = dict.fromkeys(
        field.name for field in dataclasses.fields(KubernetesNode)
    )
    facts.update(
        {"arch": "x86_64", "driver": "550.54.15", "faults": (), "gpu_shares": (), **fields}
    )
    return Node(
        name="k1",
        engine="kubernetes",
        address="k1",
        state="Ready",
        gpus=8,
        gpu_type="NVIDIA-H100",
        kubernetes=KubernetesNode(**facts),
    )


def test_kubernetes_node_is_judged_by_its_api_server() -> None:
    failure = NodeFailure(stage="check", reason="not-run", message="")
    report = judge(reply(None, node=kubernetes_node(), result=None, failure=failure), NEEDS)
    assert report.verdict == "fit"
    assert report.summary == "x86_64, driver 550.54.15, 8 x NVIDIA-H100"
    full = kubernetes_node(faults=("DiskPressure",), driver="470.1")
    report = judge(reply(None, node=full, result=None, failure=failure), NEEDS)
    assert reasons(report) == ["not-ready", "old-driver"]


def test_every_reason_is_in_the_registry() -> None:
    import inspect

    from provision.cluster import fitness

    used = set(re.findall(r'_problem\(\s*"([a-z-]+)"', inspect.getsource(fitness)))
    assert len(used) > 10
    assert used <= set(REASONS)


def test_machine_under_two_names_is_judged_once() -> None:
    first = reply()
    second = reply(node=node("alias"))
    other = reply(node=node("n2"), identity=("n2", "boot"))
    failed = NodeFailure(stage="check", reason="refused", message="")
    silent = [
        reply(None, node=node(name), result=None, failure=failed, identity=())
        for name in ("n3", "n4")
    ]
    merged = merge_same_nodes([first, second, other, *silent])
    verdicts = {item.node.name: judge(item).verdict for item in merged}
    assert verdicts == {"n1": "fit", "alias": "same", "n2": "fit", "n3": "unfit", "n4": "unfit"}
    failure = merged[1].failure
    assert failure is not None
    assert failure.message == "alias and n1 are the same machine"


@pytest.mark.parametrize(
    ("environment", "store_reason", "verdict", "named"),
    [
        ({"key": "lab-1", "problem": None}, "permission-denied", "fit", []),
        ({"key": "lab-1", "problem": None}, "disk-full", "unfit", ["disk-full"]),
        ({"key": None, "problem": None}, "permission-denied", "unfit", ["permission-denied"]),
        (
            {"key": "lab-1", "problem": {"reason": "not-installed", "message": "no file"}},
            "",
            "unfit",
            ["not-installed"],
        ),
    ],
)
def test_who_may_not_ship_may_use(
    environment: dict[str, Any], store_reason: str, verdict: str, named: list[str]
) -> None:
    document = facts()
    document["environment"] = environment
    if store_reason:
        document["store"]["problem"] = {"reason": store_reason, "message": "refused"}
    report = judge(reply(document))
    assert (report.verdict, reasons(report)) == (verdict, named)
