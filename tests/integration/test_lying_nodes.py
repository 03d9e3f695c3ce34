"""Nodes that answer wrongly cost their own answers, and nothing else: no verb ends in a traceback,
no such node is a success, and the others are shown.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from provision.workflow.ship.activation import ActivationRun
from provision_runtime.comm import processes
from tests.integration.conftest import Home, make_home
from tests.lying_nodes import MALFORMED, with_result, write_python
from tests.node_stores import NAME, pack_toy
from tests.results import parse_result
from tests.ship_runs import SOURCE, Notes, SimulatedNodes, ship_request, shipment, write_image

# One of each kind, for verbs that other lies cannot tell apart.
SOME_LIES = ("list", "deep list", "nan", "result is a list", "unknown reason", "other action")
HONEST = ("n01", "n02")
# More than this was read of a node, or kept.
MOST_MEMORY = 400 << 20


@pytest.fixture
def user(short_path: Path) -> Home:
    return make_home(short_path / "user")


def lying(user: Home, lies: Mapping[str, str]) -> dict[str, str]:
    """The lying nodes, with what they do, behind honest ones. Writes nodes.yml."""
    nodes = {f"n{number:02}": lie for number, lie in enumerate(lies, start=len(HONEST) + 1)}
    script = user.root / "node-python"
    write_python(script, [(node, lies[lie]) for node, lie in nodes.items()])
    (user.envs.parent / "nodes.yml").write_text(
        f"schema: 1\ndefaults: {{path: {user.root}/stores/%h, python: '{script} %h', fanout: 4}}\n"
    )
    return nodes


def words_on(nodes: Mapping[str, str], *words: str) -> tuple[str, ...]:
    return (*words, "--on", f"exec:n[01-{len(HONEST) + len(nodes):02}]")


def run(user: Home, nodes: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    result = user.run(*words_on(nodes, *words))
    assert "Traceback" not in result.stderr, result.stderr
    assert result.returncode == 1, (result.stdout, result.stderr)
    return result


def test_no_answer_but_a_right_one_is_fit(user: Home) -> None:
    nodes = lying(user, MALFORMED)
    words = words_on(nodes, "nodes", "check", "--json")
    result, memory = user.most_memory(*words)
    assert "Traceback" not in result.stderr, result.stderr
    assert result.returncode == 1, (result.stdout, result.stderr)
    document = parse_result(result.stdout)
    verdicts = {each["name"]: each["verdict"] for each in document["nodes"]}
    assert verdicts == {**dict.fromkeys(HONEST, "fit"), **dict.fromkeys(nodes, "unknown")}
    for each in document["nodes"]:
        if each["name"] in nodes:
            assert [problem["reason"] for problem in each["problems"]] == ["bad-answer"]
            [message] = [problem["message"] for problem in each["problems"]]
            assert message.isprintable()
            assert len(message) <= 500
    # Three of them print a gigabyte.
    assert memory < MOST_MEMORY


@pytest.mark.parametrize("lies", [SOME_LIES, tuple(MALFORMED)])
def test_every_verb_keeps_the_others(user: Home, lies: tuple[str, ...]) -> None:
    nodes = lying(user, {lie: MALFORMED[lie] for lie in lies})
    reasons = dict.fromkeys(nodes, "bad-answer")

    doctor = parse_result(run(user, nodes, "doctor", "--only", "nccl-setting", "--json").stdout)
    assert tuple(doctor["nodes"]) == HONEST
    assert {node: each["reason"] for node, each in doctor["failures"].items()} == reasons

    prefix = user.root / "prefix"
    (prefix / "bin").mkdir(parents=True)
    words = ("drift", "lab", "--prefix", str(prefix), "--json")
    drift = parse_result(run(user, nodes, *words).stdout)
    assert {each["name"]: each.get("failure") for each in drift["nodes"]} == {
        **dict.fromkeys(HONEST),
        **reasons,
    }

    jobs = run(user, nodes, "jobs", "list", "--json")
    assert parse_result(jobs.stdout)["jobs"] == []
    assert all(f"{node}: " in jobs.stderr for node in nodes)


def test_what_a_node_leaves_out_is_unknown(user: Home) -> None:
    """An answer that is right but for its facts."""
    nothing = '{"facts": {}, "unread": {}, "settings": {}}'
    nodes = lying(user, {"nothing": with_result(nothing)})
    prefix = user.root / "prefix"
    (prefix / "bin").mkdir(parents=True)
    drift = parse_result(run(user, nodes, "drift", "lab", "--prefix", str(prefix), "--json").stdout)
    [said_nothing] = [each for each in drift["nodes"] if each["name"] == "n03"]
    assert said_nothing["verdict"] == "unknown"
    assert {"environment", "files", "driver", "kernel"} <= set(said_nothing["unread"])

    nodes = lying(user, {"nothing": with_result('{"unread": {}, "time": 1}')})
    check = parse_result(run(user, nodes, "nodes", "check", "--json").stdout)
    [unfit] = [each for each in check["nodes"] if each["name"] == "n03"]
    problems = [problem["reason"] for problem in unfit["problems"]]
    assert problems == ["clock-skew", "unread", "unread", "unread"]


def test_a_diagnosis_that_contradicts_itself_is_no_success(user: Home) -> None:
    """It says pass, and has a finding that is a fault."""
    finding = dict.fromkeys(("message", "breaks", "advice", "command", "source"), "x")
    document = {
        "schema": 1,
        "kind": "doctor",
        "verdict": "pass",
        "host": "n1",
        "prefix": None,
        "duration_s": 1,
        "notes": [],
        "probes": 0,
        "findings": [{**finding, "id": "shm-small", "verdict": "fail", "evidence": []}],
    }
    nodes = lying(user, {"nothing": with_result(json.dumps(document))})
    assert "shm-small" in run(user, nodes, "doctor", "--only", "nccl-setting").stdout


def test_a_job_of_a_node_that_lies_is_neither_read_nor_canceled_in_silence(user: Home) -> None:
    """n01 has a job; what n03 would say of it is not known."""
    folder = user.root / "state" / "provision" / "jobs" / "train" / "node-0"
    folder.mkdir(parents=True)
    host = subprocess.run(["uname", "-n"], capture_output=True, text=True).stdout.strip()
    with subprocess.Popen(["sleep", "600"]) as child:
        record = {"identity": processes.identity(child.pid), "host": host}
        (folder / "process.json").write_text(json.dumps(record))
        (folder / "log").write_text("step 1\n")
        home = Home(root=user.root, env={**user.env, "XDG_STATE_HOME": str(user.root / "state")})
        nodes = lying(home, {"list": MALFORMED["list"]})
        log = run(home, nodes, "jobs", "log", "train")
        assert "step 1" in log.stdout
        assert "n03: the top level: [] is not of type" in log.stderr
        canceled = run(home, nodes, "jobs", "cancel", "train")
        assert "n03" in canceled.stderr
        child.kill()


@pytest.mark.parametrize("question", [2, 0, 1, 3])
def test_a_ship_goes_on_without_nodes_that_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: int
) -> None:
    """From their first question on, or from a later one: check, copy, install, activate."""
    lies = {f"lie{number}": MALFORMED[lie] for number, lie in enumerate(SOME_LIES)}
    faults: dict[str, str] = {}
    for name, lie in lies.items():
        count = f"{tmp_path}/{name}.count"
        honest = f"[ $(cat {count} 2>/dev/null | wc -l) -lt {question} ]"
        faults[name] = f"if {honest}; then echo >>{count}; else {lie}; exit 0; fi"
    names = f"ok[1-2],lie[0-{len(lies) - 1}]"
    nodes = SimulatedNodes(root=tmp_path / "nodes", names=names, faults=faults)
    monkeypatch.setenv("PATH", nodes.path)
    toy = pack_toy(tmp_path, "1")
    shipped = shipment(nodes, write_image(tmp_path, toy), minimum="2", retries=0, deadline_s=20)
    shipped.ship()
    reached = {name: str(state) for name, state in shipped.states.items()}
    assert [reached["ok1"], reached["ok2"]] == ["active", "active"]
    for name in lies:
        assert reached[name].startswith("unknown:") and reached[name].endswith(":bad-answer")

    request = ship_request(nodes, NAME, minimum="2", retries=0)
    activation = ActivationRun(request, SOURCE, Notes())
    activation.select(toy.key, activation.ask_history())
    activation.switch(toy.key)
    assert str(activation.states["ok1"]) == "active"
    assert {str(activation.states[name]) for name in lies} == {"unknown:check:bad-answer"}


def test_a_smoke_test_of_nodes_that_lie_is_no_success(user: Home) -> None:
    (user.envs / "lab").mkdir(parents=True)
    (user.envs / "lab" / "spec.yml").write_text("torch: '2.3'\ncuda: '12.1'\npython: '3.11'\n")
    nodes = lying(user, {lie: MALFORMED[lie] for lie in SOME_LIES})
    result = run(user, nodes, "smoke", "lab", "--json")
    rows = {row["node"]: row for row in parse_result(result.stdout)["nodes"]}
    assert set(rows) == {*HONEST, *nodes}
    for node in nodes:
        assert rows[node]["state"] == "untested"
        assert rows[node]["message"].startswith("bad-answer: ")
    for node in HONEST:
        assert rows[node]["message"].startswith("no-environment: ")
