"""What nodes print, decoded: right replies of every action, and what is no reply."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.adapters.clustershell import NodeOutput
from provision.cluster import actions, replies
from provision.cluster.actions import Action
from provision.cluster.failures import NodeFailure, message_line
from provision.cluster.inventory import Node, NodeDefaults, select_nodes
from provision.cluster.remote import reply_of, run_action
from provision.core.schema import schema_document
from provision_runtime.node.program import ACTIONS, MARK
from tests.programs import write_program

IDENTITY = ["n1", "boot"]
HISTORY = {"active": "a-1", "previous": None, "installed": ["a-1"]}
LOG = {"node": 0, "end": 9, "state": "running"}
RANKS = {"statuses": {"0": 0}, "ended_because": "", "report": None, "states": {}, "logs": {}}


def decoded(result: Any, action: str) -> Any:
    text = json.dumps({"identity": IDENTITY, "result": result})
    return replies.decode(text, action)["result"]


def changed(**changes: Any) -> dict[str, Any]:
    return {**HISTORY, **changes}


def test_every_action_is_described() -> None:
    results = schema_document("node-reply")["properties"]["result"]["properties"]
    assert set(results) == {*ACTIONS, actions.PROBE.name}


@pytest.mark.parametrize(
    ("action", "arguments"),
    [
        ("facts", {"path": "/tmp/none", "rules": {}}),
        ("doctor", {"prefix": None, "only": ["shm-small"], "rules": {}}),
        ("store-history", {"path": "/tmp/none", "name": "lab"}),
        ("job-list", {}),
        ("job-log", {"id": "none", "starts": {}}),
        ("job-cancel", {"id": "none"}),
        ("job-ranks", {"id": "none"}),
        ("drift-facts", {"path": "/tmp/none", "name": "lab"}),
        ("smoke-prepare", {"environments": [sys.prefix], "rules": {}}),
    ],
)
def test_what_the_program_prints_is_valid(action: str, arguments: dict[str, Any]) -> None:
    [reply] = run_action(
        select_nodes("local").nodes,
        Action[object](action),
        arguments,
        stage="check",
        timeout_s=60,
        defaults=NodeDefaults(),
    )
    assert reply.failure is None and reply.result is not None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "7",
        "null",
        '"fit"',
        "[" * 200_000,
        '{"a":' * 100_000,
        '{"identity": ["n1", "b"], "result": ' + "[" * 300 + "]" * 300 + "}",
        '{"identity": ["n1", "b"]}',
        '{"identity": ["n1", "b"], "result": {}}',
        '{"identity": ["n1", "b"], "result": []}',
        '{"identity": ["n1", "b"], "result": NaN}',
        '{"result": {"active": null, "previous": null, "installed": []}}',
        '{"identity": ["n1", "b"], "error": {"reason": "all-is-well", "message": ""}}',
        '{"identity": ["n1", "b"], "error": {"reason": "in-use"}}',
        '{"identity": ["n1", "b"], "error": {"reason": "in-use", "message": 7}}',
        '{"identity": ["n1", "b"], "error": {"reason": "in-use", "message": "", "stage": "x"}}',
        '{"identity": ["n1", "b"], "error": null, "result": {}}',
        "",
    ],
)
def test_what_is_no_reply(text: str) -> None:
    with pytest.raises(ValueError):
        replies.decode(text, "store-history")


@pytest.mark.parametrize(
    ("action", "result"),
    [
        ("store-history", changed(active=7)),
        ("store-history", changed(installed="a-1")),
        ("store-history", changed(installed=[None])),
        ("store-install", {"method": "magic"}),
        ("store-activate", {"active": "a-1", "removed": [], "in_use": {}}),
        ("smoke-prepare", {"python": "bin/python", "host": "n1", "address": "a", "port": 1, "gpus": 0}),
        ("smoke-prepare", {"python": "/p", "host": "n1", "address": "a b", "port": 1, "gpus": 0}),
        ("smoke-prepare", {"python": "/p", "host": "n1", "address": "a", "port": 0, "gpus": 0}),
        ("smoke-prepare", {"python": "/p", "host": "n1", "address": "a", "port": 1, "gpus": 10**9}),
        ("smoke-run", {**RANKS, "statuses": {"0": None}}),
        ("smoke-run", {**RANKS, "statuses": {"first": 0}}),
        ("smoke-run", {**RANKS, "logs": {"../../.bashrc": "x"}}),
        ("smoke-run", {**RANKS, "logs": {"rank0.log/../x": "x"}}),
        ("smoke-run", {**RANKS, "states": {"rank0.last-state.json": {"rank": 0}}}),
        ("smoke-run", {**RANKS, "report": []}),
        ("drift-facts", {"facts": {"cpus": ["8"]}, "unread": {}, "settings": {}}),
        ("drift-facts", {"facts": {"distribution:torch": "2"}, "unread": {}, "settings": {}}),
        ("job-list", {"jobs": [{"id": "a", "node": -1, "state": "done", "status": 0}]}),
        ("job-list", {"jobs": [{"id": "a", "node": 0, "state": "done", "status": 0, "host": "n2"}]}),
        ("job-log", {"logs": [{"node": "0", "text": "x"}]}),
    ],
)  # fmt: skip
def test_results_that_are_not_of_their_action(action: str, result: Any) -> None:
    with pytest.raises(ValueError):
        decoded(result, action)


def test_a_reason_within_a_fact_is_a_reason_too() -> None:
    store = {
        "path": "/s",
        "existing": "/s",
        "free_bytes": 1,
        "free_inodes": 1,
        "is_executable": True,
        "is_network": False,
        "type": "ext4",
        "source": "/dev/sda1",
        "problem": {"reason": "all-is-well", "message": ""},
    }
    with pytest.raises(ValueError, match="all-is-well"):
        decoded({"unread": {}, "time": 1.0, "store": store}, "facts")


def test_numbers_are_those_of_json() -> None:
    """8.0 is an integer there, and must not become a float here."""
    text = '{"identity": ["n1", "b"], "result": {"statuses": {"0": 8.0}, "ended_because": "", '
    text += '"report": {"a": 1.5}, "states": {}, "logs": {}}}'
    result = replies.decode(text, "smoke-run")["result"]
    assert repr(result["statuses"]) == "{'0': 8}"
    assert result["report"] == {"a": 1.5}


def test_texts_are_lines_without_controls() -> None:
    hostile = "x\n\x1b[2Jn9  fit: all\u202e\r\ud800" + "y" * 1000
    [key] = decoded(changed(installed=[hostile]), "store-history")["installed"]
    assert key.isprintable()
    assert len(key) == 500
    assert key.startswith("x\\n\\x1b[2Jn9  fit: all\\u202e\\r\\ud800yyy")
    [other] = decoded(changed(installed=[hostile + "z"]), "store-history")["installed"]
    assert other != key
    facts = {"facts": {}, "unread": {hostile: hostile}, "settings": {}, "started": 1, "ended": 1}
    [unread] = decoded(facts, "drift-facts")["unread"].items()
    assert unread == (key, key)


def test_logs_keep_their_lines() -> None:
    text = "step 1\n\x1b[31mstep 2\n" + "z" * 1000
    [row] = decoded({"logs": [{**LOG, "text": text}]}, "job-log")["logs"]
    assert row["text"] == text.replace("\x1b", "\\x1b")


def test_a_message_is_one_line() -> None:
    failure = NodeFailure(stage="check", reason="in-use", message="a\nb\x07" + "c" * 1000)
    assert failure.message.startswith("a\\nb\\x07ccc")
    assert len(failure.message) == len(message_line("c" * 501)) == 500
    assert message_line("plain words") == "plain words"


def test_the_mark_in_a_log_begins_no_reply() -> None:
    [node] = select_nodes("local").nodes
    log = f"{MARK}{{}}\n"
    document = {"identity": IDENTITY, "result": {"logs": [{**LOG, "text": f"x {log}"}]}}
    stdout = f"Welcome\n{log}\n{MARK}{json.dumps(document)}\nBye\n"
    assert printed(node, stdout.encode(), "job-log").result == document["result"]


def printed(node: Node, stdout: bytes, action: str, **fields: Any) -> Any:
    output = NodeOutput(
        **{"node": "n1", "status": 0, "stdout": stdout, "stderr": "", "started": 1.0, "ended": 2.0, **fields}
    )  # fmt: skip
    return reply_of(node, output, "check", Action[object](action))


@pytest.mark.parametrize(
    ("stdout", "fields", "reason"),
    [
        (b"provision-node: []\n", {}, "bad-answer"),
        (b"provision-node: " + b"[" * 200_000, {}, "bad-answer"),
        (b"provision-node: \xff\xfe\n", {}, "bad-answer"),
        (b"provision-node: {", {"status": 255, "stderr": "Connection to n1 closed"}, "connection-lost"),
        (b"provision-node: {", {"status": None}, "timed-out"),
        (b"", {"is_cut": True}, "bad-answer"),
    ],
)  # fmt: skip
def test_a_wrong_reply_is_the_failure_of_its_node(
    stdout: bytes, fields: dict[str, Any], reason: str
) -> None:
    [node] = select_nodes("local").nodes
    reply = printed(node, stdout, "facts", **fields)
    assert (reply.result, reply.failure.reason) == (None, reason)


def test_nothing_is_read_beyond_the_limit(tmp_path: Path) -> None:
    """Of a node that prints 64 MiB; the others go on."""
    script = tmp_path / "python"
    flood = "if [ $1 = n1 ]; then yes | head -c 67108864; exit; fi"
    write_program(script, f'#!/bin/sh\n{flood}\nshift\nexec python3 "$@"\n')
    (tmp_path / "nodes.yml").write_text(f"schema: 1\ndefaults: {{python: \"'{script}' %h\"}}\n")
    selection = select_nodes("exec:n[1-2]", tmp_path / "nodes.yml")
    flooding, other = run_action(
        selection.nodes,
        actions.JOB_LIST,
        {},
        stage="jobs",
        timeout_s=60,
        defaults=selection.defaults,
    )
    assert flooding.failure is not None and flooding.failure.reason == "bad-answer"
    assert flooding.failure.message == "it printed more than 1 MiB"
    assert other.failure is None
