"""Jobs on a host, by their records: a damaged one costs itself only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provision_runtime.comm import processes
from provision_runtime.node import jobs

HOST = os.uname().nodename


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 200_000,
        json.dumps({"host": HOST}),
        json.dumps({"host": HOST, "identity": 7}),
        json.dumps({"host": HOST, "identity": ["boot", "first", "1"]}),
        json.dumps({"host": HOST, "identity": ["boot", None, "1"]}),
    ],
)
def test_a_damaged_record_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    whole = json.dumps({"host": HOST, "identity": processes.this_process()})
    for name, content in (("node-0", whole), ("node-1", text), ("node-first", whole)):
        folder = jobs.jobs_folder() / "train" / name
        folder.mkdir(parents=True)
        (folder / jobs.PROCESS).write_text(content)
        (folder / jobs.LOG).write_text("step 1\n")
    running = {"id": "train", "node": 0, "state": "running", "status": None}
    assert jobs.list_jobs() == {"jobs": [running]}
    for start, text in ((0, "step 1\n"), (5, "1\n"), (7, "")):
        log = {"node": 0, "text": text, "end": 7, "state": "running"}
        assert jobs.read_logs("train", {"0": start}) == {"logs": [log]}
