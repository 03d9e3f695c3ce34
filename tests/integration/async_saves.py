"""Background saves, run in a process with torch by test_checkpoint_async.py.

Usage: python async_saves.py cases|exit|rank FOLDER [RANK]     (the last line printed: found JSON)
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from provision_runtime.checkpoint import (
    NotCommitted,
    SaveProgress,
    latest,
    list_steps,
    load,
    save,
    save_async,
    saver,
    verify,
)
from provision_runtime.checkpoint.async_save import BackgroundSave
from provision_runtime.checkpoint.items import MAX_PIECE_BYTES
from provision_runtime.comm import ranks

MIB = 1 << 20
CASES: list[Callable[[Path], None]] = []


def case(function: Callable[[Path], None]) -> Callable[[Path], None]:
    CASES.append(function)
    return function


def tensor(mib: int = 1) -> torch.Tensor:
    return torch.randn(mib * MIB // 4)


def loaded(root: Path, state: dict[str, Any], **options: Any) -> dict[str, Any]:
    empty = {
        name: torch.zeros_like(value) if torch.is_tensor(value) else None
        for name, value in state.items()
    }
    load(empty, root, **options)
    return empty


def is_as(root: Path, state: dict[str, Any]) -> bool:
    loaded_state = loaded(root, state)
    return all(
        torch.equal(loaded_state[name], value)
        if torch.is_tensor(value)
        else loaded_state[name] == value
        for name, value in state.items()
    )


@case
def the_state_at_the_call_is_what_is_saved(root: Path) -> None:
    state = {
        "a": tensor(2),
        "turned": torch.randn(300, 400).t(),
        "tiny": torch.ones(3),
        "conjugate": torch.randn(9, dtype=torch.cfloat).conj(),
    }
    for step in range(3):
        before = {name: value.clone() for name, value in state.items()}
        future = save_async(state, root, step=step)
        for value in state.values():
            value.add_(1)
        future.result()
        assert is_as(root, before), step


@case
def what_did_not_change_is_linked_and_memory_is_used_again(root: Path) -> None:
    state = {"big": tensor(2 * MAX_PIECE_BYTES // MIB), "frozen": tensor(), "moving": tensor()}
    assert save_async(state, root, step=1).result().linked == 0
    addresses = {box_key: memory.data_ptr() for box_key, memory in saver.SNAPSHOT._memory.items()}
    for step, end in ((2, 0), (3, -1)):
        state["big"][end] += 1
        state["moving"][end] += 1
        report = save_async(state, root, step=step).result()
        assert (report.written, report.linked) == (MAX_PIECE_BYTES + MIB, MAX_PIECE_BYTES + MIB), (
            report
        )
        assert is_as(root, state)
    assert addresses == {
        box_key: memory.data_ptr() for box_key, memory in saver.SNAPSHOT._memory.items()
    }
    assert verify(root) == []


@case
def objects_have_the_value_of_each_call(root: Path) -> None:
    """Also under a name that was a tensor before, or is one again."""
    frozen, values = tensor(), [torch.tensor(1.0), "text", torch.tensor(2.0), "other"]
    for step, value in enumerate(values):
        state = {
            "frozen": frozen,
            "step": step,
            "lr": step / 10,
            "some": {"list": [step, "a"]},
            "turns": value,
        }
        save_async(state, root, step=step).result()
        loaded_state = {
            "frozen": torch.zeros_like(frozen),
            "step": -1,
            "lr": -1.0,
            "some": {"list": []},
        }
        loaded_state["turns"] = torch.zeros(()) if torch.is_tensor(value) else ""
        load(loaded_state, root)
        assert torch.equal(loaded_state.pop("frozen"), frozen) and loaded_state == {
            name: state[name] for name in loaded_state
        }, loaded_state


@case
def a_failure_reaches_the_future_and_nothing_after_it(root: Path) -> None:
    state = {"a": tensor(), "b": tensor()}
    save_async(state, root, step=1).result()
    state["a"].add_(1)
    (root / "file").touch()
    failed = save_async(state, root / "file", step=2)
    state["b"].add_(1)
    report = save_async(state, root, step=3).result()
    assert isinstance(failed.exception(), NotCommitted)
    assert (report.written, list_steps(root)) == (2 * MIB, [1, 3]), report
    assert is_as(root, state)


@case
def a_failure_that_nobody_asked_for_is_warned_of(root: Path) -> None:
    def fail(_: SaveProgress) -> None:
        raise ValueError("no progress")

    with warnings.catch_warnings(record=True) as recorded_warnings:
        warnings.simplefilter("always")
        save_async({"a": tensor()}, root, step=1, progress=fail)
        save_async({"a": tensor()}, root, step=2).result()
        future = save_async({"a": tensor()}, root, step=3, progress=fail)
        future.exception()
        save({"a": tensor()}, root, step=4)
    messages = [
        str(warning.message)
        for warning in recorded_warnings
        if "background" in str(warning.message)
    ]
    assert (
        len(messages) == 1
        and "step 1 was not committed" in messages[0]
        and "no progress" in messages[0]
    ), messages
    assert [path.name for path in root.glob(".tmp*")] == []


@case
def a_state_that_cannot_be_copied_is_an_error_of_the_save(root: Path) -> None:
    try:
        save_async({"a": torch.zeros(1).expand(1 << 50)}, root, step=1).result()
    except NotCommitted as error:
        assert "memory" in str(error), error
    else:
        raise AssertionError("it was saved")
    save_async({"a": tensor()}, root, step=2).result()
    assert latest(root) == 2


@case
def an_interrupted_save_leaves_nothing(root: Path) -> None:
    state = {"a": tensor()}
    save(state, root, step=1)

    def interrupt(_: SaveProgress) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    try:
        save({"a": tensor()}, root, step=2, progress=interrupt)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("it was not interrupted")
    assert sorted(path.name for path in root.iterdir()) == ["latest", "step-000000000001"]
    assert is_as(root, state)
    save(state, root, step=2)


@case
def progress_counts_every_byte_once(root: Path) -> None:
    state = {"a": tensor(3), "b": tensor(), "tiny": torch.ones(3)}
    for step, written in ((1, 4 * MIB + 12), (2, MIB)):
        steps: list[SaveProgress] = []
        state["b"].add_(1)
        report = save(state, root, step=step, progress=steps.append)
        assert (steps[-1].total, steps[-1].written, steps[-1].written + steps[-1].linked) == (
            4 * MIB + 12,
            written,
            4 * MIB + 12,
        ), steps[-1]
        assert (report.bytes, report.written) == (4 * MIB + 12, written), report
        assert steps[-1].rate > 0


def in_a_fork(root: Path) -> None:
    """What a process does that was forked while a save was under way."""
    state = {"forked": tensor()}
    save_async(state, root, step=1).result(60)
    save(state, root, step=2)
    assert is_as(root, state)


@case
def a_fork_has_no_save_under_way_and_ends(root: Path) -> None:
    """Workers of a DataLoader are forks."""
    forked = threading.Event()
    future = save_async(
        {"a": tensor()}, root, step=1, progress=lambda _: assert_that(forked.wait(120))
    )
    child = multiprocessing.get_context("fork").Process(target=in_a_fork, args=(root / "fork",))
    child.start()
    child.join(60)
    ended = not child.is_alive()
    child.kill()
    forked.set()
    assert ended and child.exitcode == 0, child.exitcode
    assert list_steps(root / "fork") == [1, 2]
    future.result()


def assert_that(true: bool) -> None:
    assert true


@case
def the_callers_modes_do_not_reach_the_copy(root: Path) -> None:
    state = {"inferred": tensor(), "small and inferred": torch.ones(3)}
    with torch.inference_mode():
        save_async(state, root, step=1).result()
    for value in state.values():
        value.add_(1)
    save_async(state, root, step=2).result()
    assert is_as(root, state)
    if not hasattr(torch, "set_default_device"):  # it came with torch 2.0
        return
    state = {"elsewhere": tensor(2), "small and elsewhere": torch.ones(3)}
    torch.set_default_device("meta")
    try:
        save_async(state, root, step=3).result()
    finally:
        torch.set_default_device("cpu")
    assert is_as(root, state)


def run_cases(folder: Path) -> dict[str, Any]:
    problems = {}
    for function in CASES:
        saver.BACKGROUND = BackgroundSave()
        root = folder / function.__name__
        root.mkdir()
        try:
            function(root)
        except BaseException:
            problems[function.__name__] = traceback.format_exc()
    return {"problems": problems, "cases": len(CASES)}


def end_at_once(folder: Path) -> dict[str, Any]:
    """The save has hardly begun when the process has nothing more to do."""
    single_process = ranks.single_process()

    def exchange(name: str, payload: Any) -> list[Any]:
        time.sleep(0.5 if name == "checkpoint/open" else 0)
        return single_process.exchange(name, payload)

    save_async({"a": tensor(8)}, folder, step=1, ranks=ranks.Ranks(0, 1, exchange))
    return {}


def one_rank(folder: Path, rank: int) -> dict[str, Any]:
    """Rank 1's state cannot be copied; the next one can."""
    store = torch.distributed.FileStore(str(folder / "store"), 2)
    us = ranks.through_store(store, rank, 2, 60)
    state = {f"{rank}": torch.zeros(1).expand(1 << 50) if rank else tensor()}
    failure = save_async(state, folder / "root", step=1, ranks=us).exception()
    assert isinstance(failure, NotCommitted), failure
    save_async({f"{rank}": tensor()}, folder / "root", step=2, ranks=us).result()
    return {"failed": list(failure.ranks), "steps": list_steps(folder / "root")}


def main(what: str, folder: str, rank: str = "") -> None:
    if what == "cases":
        result: dict[str, Any] = run_cases(Path(folder))
    elif what == "exit":
        result = end_at_once(Path(folder))
    else:
        result = one_rank(Path(folder), int(rank))
    print("found", json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
