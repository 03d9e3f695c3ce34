"""Smoke tests over nodes: what a group's verdict follows from, and the report with every node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from provision.cluster.failures import REASONS, NodeFailure
from provision.cluster.inventory import Node, NodeSelection
from provision.cluster.remote import NodeReply
from provision.core.paths import default_folders
from provision.core.schema import schema_error
from provision.verbs.smoke.output import smoke_nodes_lines
from provision.workflow.context import Context
from provision.workflow.passport import record_smoke_over_nodes
from provision.workflow.plan import BuildRequest, make_plan
from provision.workflow.smoke import node_groups as groups
from provision.workflow.smoke import nodes as smoke_nodes
from provision.workflow.smoke import nodes_report as smoke_nodes_report
from provision.workflow.smoke.isolation import Isolation
from provision.workflow.smoke.node_groups import (
    GroupResult,
    PreparedNode,
)
from provision.workflow.smoke.nodes_report import NodesResult, Round
from provision_runtime.node.results import RanksResult
from provision_runtime.report import findings as catalog
from provision_runtime.report.findings import NODE_FAULTS
from tests import evidence
from tests.paths import DATA
from tests.progress import Recorder

REPORT = json.loads((DATA / "smoke-report.json").read_text())
RANKS = {"n1": (0,), "n2": (1,)}


def node(name: str, **fields: Any) -> Node:
    return Node(name=name, engine="slurm", address=name, **fields)


def passing_report(**changes: Any) -> dict[str, Any]:
    """A report of two ranks that pass."""
    phase = {"verdict": "pass", "duration_s": 1.0, "message": "", "data": {}, "findings": []}
    names = ("facts", "rendezvous")
    report = {
        **REPORT,
        "world_size": 2,
        "verdict": "pass",
        "hosts": ["n1", "n2"],
        "phases": [{"name": name, **phase} for name in names],
    }
    return {**report, **changes}


def failing_report(id: str, ranks: list[int]) -> dict[str, Any]:
    finding = {"id": id, "verdict": "fail", "ranks": ranks, "message": "why", "advice": "do"}
    phase = {"name": "facts", "verdict": "fail", "duration_s": 1.0, "message": "", "data": {}}
    return passing_report(verdict="fail", phases=[{**phase, "findings": [finding]}])


def unfinished_report() -> dict[str, Any]:
    """As rank 0 leaves it that is killed."""
    phase = {"name": "facts", "verdict": "unknown", "duration_s": 0.0, "message": "not finished"}
    return passing_report(verdict="unknown", phases=[{**phase, "data": {}, "findings": []}])


def reply(name: str, report: Any = None, status: int = 0, **fields: Any) -> NodeReply[RanksResult]:
    result: Any = {
        "statuses": {str(rank): status for rank in RANKS[name]},
        "ended_because": "",
        "report": report,
        "states": {},
        "logs": {},
        **fields,
    }
    return NodeReply(node=node(name), result=result, failure=None)


def unreachable(name: str) -> NodeReply[RanksResult]:
    failure = NodeFailure(stage="smoke", reason="unreachable", message="no route")
    return NodeReply(node=node(name), result=None, failure=failure)


def judge(*replies: NodeReply[RanksResult]) -> GroupResult:
    return groups.judge(("n1", "n2"), RANKS, replies)


def last_state(rank: int, *ids: str) -> dict[str, Any]:
    findings = [{"id": id, "ranks": [], "message": "why", "advice": "do"} for id in ids]
    position = {"phase": "rendezvous"}
    return {"rank": rank, "position": position, "outcome": {"findings": findings}}


def test_report_of_all_ranks_that_ended_well_is_a_pass() -> None:
    result = judge(reply("n1", passing_report()), reply("n2"))
    assert (result.verdict, result.problem, result.findings) == ("pass", "", ())


@pytest.mark.parametrize(
    ("replies", "problem"),
    [
        ([reply("n1", passing_report()), reply("n2", status=1)], "rank 1 on n2 ended"),
        ([reply("n1", passing_report()), unreachable("n2")], "n2 did not respond: no route"),
        ([reply("n1", passing_report(world_size=1)), reply("n2")], "of 1 ranks instead of 2"),
        ([reply("n1", passing_report(verdict="warn")), reply("n2")], "n1 is not valid"),
        ([reply("n1", {"verdict": "pass"}), reply("n2")], "n1 is not valid"),
        ([reply("n1"), reply("n2")], "no rank wrote a report"),
        ([reply("n1", ended_because="still running"), reply("n2")], "n1: still running"),
        ([unreachable("n1"), unreachable("n2")], "n1 did not respond"),
    ],
)
def test_what_is_not_proved_is_unknown(replies: list[NodeReply[RanksResult]], problem: str) -> None:
    result = judge(*replies)
    assert result.verdict == "unknown"
    assert problem in result.problem


def named(result: GroupResult) -> list[tuple[str, tuple[str, ...]]]:
    assert result.verdict == "fail"
    return [(finding.id, finding.nodes) for finding in result.findings]


def test_findings_name_nodes() -> None:
    result = judge(reply("n1", failing_report("wrong-value", [1]), status=1), reply("n2"))
    assert named(result) == [("wrong-value", ("n2",))]


def test_rank_that_does_not_reach_the_store_says_why() -> None:
    """Rank 0 knows only that it is missing."""
    missing = reply("n1", failing_report("rank-missing", [1]), status=1)
    state = {"rank1.last-state.json": last_state(1, "store-filtered", "store-lost")}
    result = judge(missing, reply("n2", status=1, states=state))
    assert named(result) == [("rank-missing", ("n2",)), ("store-filtered", ("n2",))]


def test_crash_before_any_report_is_named() -> None:
    result = judge(reply("n1", status=1), reply("n2", status=-11))
    assert named(result) == [("rank-died", ("n2",))]


def test_report_of_a_node_that_lost_rank_0_counts() -> None:
    result = judge(unreachable("n1"), reply("n2", failing_report("rank-silent", [0]), status=1))
    assert named(result) == [("rank-silent", ("n1",))]


def test_a_crash_explains_an_unfinished_report() -> None:
    result = judge(reply("n1", unfinished_report(), status=-9), reply("n2", status=1))
    assert named(result) == [("rank-died", ("n1",))]


def test_faults_of_nodes_are_findings_of_the_catalog_and_fail() -> None:
    for id in NODE_FAULTS:
        assert catalog.CATALOG[id].verdict == "fail"


def test_reasons_of_preparing_are_registered() -> None:
    assert {"no-environment", "no-address"} <= set(REASONS)


def nodes_result(**fields: Any) -> NodesResult:
    usual: dict[str, Any] = {
        "name": "lab",
        "selection": NodeSelection(text="slurm:gpu", nodes=()),
        "verdict": "unknown",
        "started_at": "2026-01-01T00:00:00Z",
        "duration_s": 1.0,
        "job": None,
        "tested": (),
        "left_out": (),
        "failures": {},
        "whole": None,
        "rounds": (),
        "isolation": None,
        "without_folder": (),
        "evidence": Path("/evidence"),
    }
    return NodesResult(**{**usual, **fields})


REFUSED = NodeFailure(stage="prepare", reason="refused", message="no sshd")


def test_nodes_with_the_same_problem_share_a_line_that_says_what_to_do() -> None:
    failures = dict.fromkeys(("n1", "n2", "n3"), REFUSED)
    lines = smoke_nodes_lines(nodes_result(failures=failures))
    rows = [line.split() for line in lines if "no sshd" in line]
    assert rows == [["n[1-3]", "untested", "refused:", "no", "sshd"]]
    assert sum(REASONS["refused"].advice in line for line in lines) == 1


def failed_result() -> NodesResult:
    """The result of a test on four nodes: one bad, one left out, one that did not respond."""
    whole = judge(reply("n1", failing_report("wrong-value", [1]), status=1), reply("n2"))
    tested = tuple(
        PreparedNode(node=node(name), python="/p", host=f"host-{name}", address="", port=1, gpus=0)
        for name in ("n1", "n2")
    )
    return nodes_result(
        verdict="fail",
        job="7",
        tested=tested,
        left_out=(node("n3", state="drained", reason="fan"),),
        failures={"n4": REFUSED},
        whole=whole,
        rounds=(Round(purpose="all together", results={whole.group: whole}),),
        isolation=Isolation(bad_nodes=("n2",)),
    )


def nodes_document() -> dict[str, Any]:
    return smoke_nodes_report.document(failed_result())


def test_command_that_drains_a_bad_node_is_printed_for_faults_of_nodes_only() -> None:
    command = "scontrol update NodeName=n2 State=DRAIN Reason='provision smoke: wrong-value'"
    assert f"to drain it: {command}" in smoke_nodes_lines(failed_result())
    slow = judge(reply("n1", failing_report("rank-missing", [1]), status=1), reply("n2"))
    result = replace(failed_result(), whole=slow, rounds=())
    assert "scontrol" not in " ".join(smoke_nodes_lines(result))


STATES = {"n1": "tested", "n2": "bad", "n3": "left out", "n4": "untested"}


def test_report_has_every_node_and_follows_its_schema() -> None:
    document = nodes_document()
    assert schema_error(document, "smoke-nodes") is None
    assert {row["node"]: row["state"] for row in document["nodes"]} == STATES
    assert document["nodes"][3]["message"] == "drained (fan)"
    assert document["nodes"][2]["message"] == "refused: no sshd"


def test_passport_and_page_say_which_nodes_passed_and_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    context = Context(folders=default_folders(tmp_path), progress=Recorder())
    folder = context.folders.passport("lab")
    path = evidence.write(folder / "passport.json", evidence.passport(name="lab"))
    before = path.read_bytes()
    lock = json.loads(before)["lock"]["sha256"]
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "spec.yml").write_text('torch: "2.6"\ncuda: "12.4"\npython_from: channel\n')
    plan = make_plan(context, BuildRequest(name="lab"))
    document = nodes_document()
    record_smoke_over_nodes(context, plan, document, "0" * 64)
    assert path.read_bytes() == before  # nodes had another lock
    record_smoke_over_nodes(context, plan, {**document, "verdict": "pass"}, None)
    assert path.read_bytes() == before  # it is unknown which lock passed
    record_smoke_over_nodes(context, plan, document, lock)
    passport = json.loads(path.read_text())
    assert schema_error(passport, "passport") is None
    entry = passport["smoke_nodes"]
    assert (entry["on"], entry["verdict"], entry["job"]) == ("slurm:gpu", "fail", "7")
    assert entry["started_at"] == "2026-01-01T00:00:00Z"
    assert {row["node"]: row["state"] for row in entry["nodes"]} == STATES
    shown = CliRunner().invoke(cli, ["passport", "show", "lab", "--envs", str(tmp_path)])
    assert "smoke test over nodes: fail on slurm:gpu, 2026-01-01T00:00:00Z" in shown.output
    assert "  n2: bad" in shown.output
    page = CliRunner().invoke(cli, ["report", str(path)])
    assert page.exit_code == 0, page.output
    for text in ("lab on slurm:gpu", "host-n2", "drained (fan)", "2026-01-01T00:00:00Z"):
        assert text in page.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pairs"], "--pairs needs --on"),
        (["--nodes", "2"], "--nodes needs --on"),
        (["--on", "ssh:h1", "--image"], "--image cannot be combined with --on"),
        (["--on", "ssh:h1", "--set", "only=checkpoint"], "needs a folder that all of them share"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "spec.yml").write_text('torch: "2.6"\ncuda: "12.4"\n')
    result = CliRunner().invoke(cli, ["smoke", "lab", "--envs", str(tmp_path), *options])
    assert result.exit_code == 3, result.output
    assert message in " ".join(result.output.split())


def test_nodes_on_which_no_job_would_start_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    states = ("idle", "mixed", "drained", "maint", "reserved", "inval", "failing")
    nodes = tuple(node(state, state=state) for state in states)
    request = smoke_nodes.NodesRequest(selection=NodeSelection(text="slurm:gpu", nodes=nodes))
    monkeypatch.delenv("SBATCH_RESERVATION", raising=False)
    usable, left_out = smoke_nodes._usable_nodes(request)
    assert [each.name for each in usable] == ["idle", "mixed"]
    assert len(left_out) == 5
    monkeypatch.setenv("SBATCH_RESERVATION", "course")
    assert [each.name for each in smoke_nodes._usable_nodes(request)[0]][-1] == "reserved"
