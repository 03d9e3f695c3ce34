"""The flight recorder's answer, in the form of torch 2.3 to 2.9."""

from __future__ import annotations

import pickle
import sys
import threading
from types import ModuleType, SimpleNamespace

import pytest

from provision_runtime.smoke import flight_recorder

ENTRY = {
    "frames": [],
    "collective_seq_id": 7,
    "profiling_name": "nccl:all_reduce",
    "state": "scheduled",
    "input_sizes": [[4096]],
    "time_created_ns": 1,
}


def test_the_latest_calls_without_their_stacks() -> None:
    trace = pickle.dumps({"version": "2.3", "entries": [{**ENTRY, "collective_seq_id": 6}, ENTRY]})
    first, second = flight_recorder.entries(trace)
    assert first["collective_seq_id"] == 6
    assert second == {
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": 7,
        "state": "scheduled",
        "input_sizes": [[4096]],
    }


@pytest.mark.parametrize("document", [{"version": "1.4", "entries": 0}, {"version": "2.1"}])
def test_an_empty_recorder(document: dict[str, object]) -> None:
    assert flight_recorder.entries(pickle.dumps(document)) == []


def test_a_recorder_that_hangs_does_not_hang_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    recorder = SimpleNamespace(_dump_nccl_trace=threading.Event().wait)
    extension = SimpleNamespace(_distributed_c10d=recorder)
    monkeypatch.setattr(torch, "_C", extension, raising=False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert flight_recorder.latest(limit_s=0.01) == []
