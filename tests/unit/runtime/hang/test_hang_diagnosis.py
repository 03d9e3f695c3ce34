"""What the states of ranks come to: a verdict, the rank that differs, and a cause with its line."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.hang import diagnosis, model, page, state
from provision_runtime.hang.model import Collective, Frame, RankError, RankState, Snapshot, Thread
from provision_runtime.hang.stacks import frame_at
from provision_runtime.report.findings import CATALOG

C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
PROGRAM = """\
    def train(data):
        for batch in data:
            step(batch)
            if batch is None:
                return
        dist.barrier()
    if rank == 0:
        dist.all_reduce(loss)
    train(data)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        save_checkpoint(model)
    """


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return str(path)


def rank_state(
    number: int, kind: str, frames: list[Frame] | None = None, **fields: Any
) -> RankState:
    frames = frames or []
    line = next((frame for frame in frames if frame.is_user), None)
    fields = {"line": line, "threads": [Thread("MainThread", True, frames)], **fields}
    if kind == model.COLLECTIVE and "collective" not in fields:
        fields["collective"] = Collective(op=frames[0].function, line=line)
    identity: dict[str, Any] = {"rank": number, "world_size": 2, "local_rank": number}
    identity.update(
        local_size=2, launcher=1, pid=10 + number, job="n1:29500", host="n1", directory="/"
    )
    return RankState(**identity, kind=kind, **fields)


def diagnose(*states: RankState) -> diagnosis.HangDiagnosis:
    [result] = diagnosis.diagnose([Snapshot(model.SCHEMA, "n1", 0.0, list(states))])
    return result


def waits(program: str, op: str, *lines: tuple[str, int]) -> list[Frame]:
    return [Frame(op, C10D, 9), *(frame_at(name, program, line, "") for name, line in lines)]


@pytest.mark.parametrize(
    ("one", "other", "id", "culprit", "line"),
    [
        pytest.param(
            [("train", 6), ("<module>", 9)], [("<module>", 10)], "early-return", 1, 5, id="return"
        ),
        pytest.param(
            [("train", 3), ("<module>", 9)],
            [("train", 6), ("<module>", 9)],
            "uneven-batches",
            1,
            3,
            id="loop",
        ),
        pytest.param(
            [("<module>", 8)], [("<module>", 10)], "collective-on-one-rank", 0, 8, id="condition"
        ),
        pytest.param(
            [("save_checkpoint", 10), ("<module>", 12)],
            [("<module>", 10)],
            "checkpoint-on-one-rank",
            0,
            12,
            id="checkpoint",
        ),
    ],
)
def test_cause_of_ranks_that_wait_in_different_places(
    program: str,
    one: list[tuple[str, int]],
    other: list[tuple[str, int]],
    id: str,
    culprit: int,
    line: int,
) -> None:
    result = diagnose(
        rank_state(0, model.COLLECTIVE, waits(program, "barrier", *one)),
        rank_state(1, model.COLLECTIVE, waits(program, "all_reduce", *other)),
    )
    [cause] = result.causes
    assert (result.verdict, cause.id, cause.ranks) == (diagnosis.HANG, id, [culprit])
    assert cause.line is not None and (cause.line.file, cause.line.line) == (program, line)
    assert [group.ranks for group in result.groups if group.is_culprit] == [[culprit]]


PATHS = """\
    def train(data):
        for batch in data:
            step(batch)
    def score(batch):
        if batch is None:
            return
        gather(batch)
    def gather(batch):
        dist.all_reduce(batch)
    def main():
        for epoch in range(9):
            for batch in data:
                if loss.isnan():
                    continue
                loss.backward()
            dist.all_reduce(x)
        while True:
            dist.all_reduce(x)
        try:
            train(data)
        except ValueError:
            dist.barrier()
        if is_main:
            gather(x)
        if x.isnan():
            dist.broadcast(x)
        if args.rank >= 0:
            dist.barrier()
        for batch in data:
            if batch.is_last:
                sys.exit(0)
            score(batch)
    main()
    """


@pytest.mark.parametrize(
    ("one", "other", "id", "culprit", "line"),
    [
        pytest.param([3, 20], [28], "uneven-batches", 1, 3, id="loop of a function"),
        pytest.param([15], [16], "step-skipped", 1, 13, id="inner loop"),
        pytest.param([18], [28], "uneven-batches", 1, 18, id="while"),
        pytest.param([3, 20], [22], "exception-handled", 1, 22, id="handler"),
        pytest.param([9, 24], [28], "collective-on-one-rank", 0, 24, id="name"),
        pytest.param([26], [28], "collective-on-one-rank", 0, 26, id="other condition"),
        pytest.param([9, 7, 32], [28], "early-return", 1, 6, id="return of a caller"),
        pytest.param([28], [28], "collective-on-one-rank", None, 24, id="one line"),
    ],
)
def test_cause_by_the_lines_that_lead_to_a_call(
    tmp_path: Path, one: list[int], other: list[int], id: str, culprit: int | None, line: int
) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(PATHS))
    functions = {3: "train", 7: "score", 9: "gather"}

    def stack(lines: list[int]) -> list[Frame]:
        named = [(functions.get(number, "main"), number) for number in lines]
        return waits(str(path), "all_reduce", *named, ("<module>", 33))

    result = diagnose(
        rank_state(0, model.COLLECTIVE, stack(one)), rank_state(1, model.COLLECTIVE, stack(other))
    )
    [cause] = result.causes
    assert (cause.id, cause.ranks) == (id, [] if culprit is None else [culprit])
    assert cause.line is not None and cause.line.line == line
    # A rank that ended is to blame, whatever leads to the call of the others.
    ended = diagnose(rank_state(0, model.COLLECTIVE, stack(one)), rank_state(1, model.ENDED))
    by_exit = {9: "early-exit", 15: "step-skipped", 3: "uneven-batches", 18: "uneven-batches"}
    assert ended.causes[0].id == by_exit.get(one[0], "early-exit")


def test_rank_that_ended_while_others_were_in_the_loop_of_a_library(program: str) -> None:
    loop = Frame("advance", "/env/lib/python3.11/site-packages/lightning/pytorch/loops/fit.py", 9)
    frames = [Frame("run_backward", C10D, 9), loop, frame_at("<module>", program, 9, "")]
    ended = rank_state(1, model.ENDED, detail="came to its end")
    [cause] = diagnose(rank_state(0, model.COLLECTIVE, frames), ended).causes
    assert (cause.id, cause.ranks) == ("early-exit", [1])
    assert "in lightning: by fewer batches, or a callback that stopped it alone" in cause.message


BRANCHES = """\
    def main():
        for batch in data:
            loss = model(batch)
            if not torch.isfinite(loss):
                continue
            clip_grad_norm_(model)
        if rank == 0:
            dist.all_reduce(a)
        else:
            dist.all_reduce(b)
    main()
    """


@pytest.mark.parametrize(
    ("one", "other", "id", "culprit", "line"),
    [
        pytest.param(6, 3, "step-skipped", 1, 4, id="a step that a rank skips"),
        pytest.param(8, 10, "calls-differ", 0, 8, id="branches of one condition"),
        pytest.param(10, 8, "calls-differ", 0, 10, id="its else"),
    ],
)
def test_cause_of_ranks_in_one_function(
    tmp_path: Path, one: int, other: int, id: str, culprit: int, line: int
) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(BRANCHES))
    stacks = [waits(str(path), "all_reduce", ("main", at), ("<module>", 11)) for at in (one, other)]
    [cause] = diagnose(
        *(rank_state(number, model.COLLECTIVE, frames) for number, frames in enumerate(stacks))
    ).causes
    assert (cause.id, cause.ranks, cause.line and cause.line.line) == (id, [culprit], line)


def test_sends_and_steps_of_a_constructor_are_not_compared_with_other_calls(program: str) -> None:
    for one, other in (("send", "recv"), ("_sync_module_states", "broadcast")):
        result = diagnose(
            rank_state(0, model.COLLECTIVE, waits(program, one, ("<module>", 8))),
            rank_state(1, model.COLLECTIVE, waits(program, other, ("<module>", 9))),
        )
        ids = [cause.id for cause in result.causes]
        assert ids == (["collective-on-one-rank"] if one.startswith("_") else [])


@pytest.mark.parametrize(
    ("kind", "id"),
    [
        (model.WAITING, "waits-outside"),
        (model.STOPPED, "rank-stopped"),
        (model.DEBUGGER, "breakpoint"),
        (model.DISK, "stuck-file"),
        (model.DATA_LOADER, "stuck-data-loader"),
        (model.EXCEPTION, "exception-handled"),
        (model.GONE, "rank-gone"),
        (model.ENDED, "early-exit"),
    ],
)
def test_cause_of_a_rank_that_does_not_come(program: str, kind: str, id: str) -> None:
    waiting = rank_state(0, model.COLLECTIVE, waits(program, "all_reduce", ("<module>", 10)))
    absent = rank_state(1, kind, waits=[model.Worker(99, "D", "/data/a", "nfs")])
    result = diagnose(waiting, absent)
    assert (result.verdict, result.causes[0].id) == (diagnosis.HANG, id)
    assert result.causes[0].ranks == [1]


def test_ranks_that_all_were_ended_are_all_named() -> None:
    """By an end of the job, such as `--on-hang end`: none of them is the first."""
    result = diagnose(*(rank_state(number, model.GONE, detail="ended") for number in range(2)))
    assert (result.verdict, result.causes[0].ranks) == (diagnosis.FAILURE, [0, 1])


@pytest.mark.parametrize(
    ("type", "message", "function", "id"),
    [
        ("FileExistsError", "[Errno 17] File exists: 'runs'", "makedirs", "makedirs-race"),
        ("RuntimeError", "... finished its bootstrapping phase.", "__init__", "launch-in-init"),
        ("RuntimeError", "params[0] in this process with sizes [17, 8]", "f", "parameters-differ"),
        ("OutOfMemoryError", "CUDA out of memory. Tried ...", "forward", "gpu-memory-full"),
        ("ValueError", "bad batch", "step", "rank-failed"),
    ],
)
def test_first_error_that_did_not_only_lose_a_peer(
    program: str, type: str, message: str, function: str, id: str
) -> None:
    frames = [frame_at(function, program, 3, "")]
    lost = RankError("RuntimeError", "Connection closed by peer [127.0.0.1]:1", 1.0, frames)
    states = [
        rank_state(0, model.FAILED, frames, detail="RuntimeError: " + lost.message, error=lost),
        rank_state(
            1,
            model.FAILED,
            frames,
            detail=f"{type}: {message}",
            error=RankError(type, message, 2.0, frames),
        ),
    ]
    result = diagnose(*states)
    assert (result.verdict, result.causes[0].id) == (diagnosis.FAILURE, id)
    assert result.causes[0].ranks == [1]


def test_abort_in_a_collective_is_a_difference_of_calls(program: str) -> None:
    frames = waits(program, "all_gather", ("<module>", 10))
    aborted, lost = (
        RankError(type, message, time, frames)
        for type, message, time in (("crash", "Aborted", 1.0), ("RuntimeError", "Read error", 2.0))
    )
    result = diagnose(
        rank_state(0, model.FAILED, frames, detail="crash: Aborted", error=aborted),
        rank_state(1, model.FAILED, frames, detail="RuntimeError: Read error", error=lost),
    )
    assert [(cause.id, cause.ranks) for cause in result.causes] == [("calls-differ", [0])]


def test_parameters_that_differ_are_named(program: str) -> None:
    frames = [frame_at("<module>", program, 3, "")]
    states = []
    for number, size in enumerate((16, 17)):
        shapes = {"0.weight": [size, 8], "1.bias": [4]}
        error = RankError("RuntimeError", "params[0] in this process", 1.0, frames, shapes)
        detail = f"RuntimeError: {error.message}"
        states.append(rank_state(number, model.FAILED, frames, detail=detail, error=error))
    assert "0.weight [16, 8], not [17, 8] as on rank 1" in diagnose(*states).causes[0].message


def test_healthy_and_unknown_ranks_are_no_hang(program: str) -> None:
    waiting = rank_state(0, model.COLLECTIVE, waits(program, "barrier", ("train", 6)))
    working = rank_state(1, model.RUNNING, waits(program, "f", ("<module>", 10))[1:])
    result = diagnose(waiting, working)
    assert (result.verdict, result.causes) == (diagnosis.NO_HANG, [])
    assert diagnose(waiting, rank_state(1, model.UNKNOWN)).verdict == diagnosis.UNKNOWN
    # The other rank is on a node that was not examined.
    assert diagnose(waiting).verdict == diagnosis.UNKNOWN


def test_first_recorded_call_that_differs(program: str) -> None:
    def calls(*ops: str) -> list[Collective]:
        return [Collective(op, "record", n, "", [2], "float32") for n, op in enumerate(ops, 1)]

    frames = waits(program, "all_reduce", ("step", 3))
    one = rank_state(0, model.COLLECTIVE, frames, calls=calls("all_reduce", "broadcast"))
    two = rank_state(
        1, model.COLLECTIVE, frames, calls=calls("all_reduce", "all_reduce", "barrier")
    )
    result = diagnose(one, two)
    assert [cause.id for cause in result.causes] == ["calls-differ"]
    assert "broadcast #2" in result.differences[0] and "all_reduce #2" in result.differences[0]
    assert "rank 0 made 1 fewer" in result.differences[1]
    assert any("broadcast #2" in line for line in page.lines(result, 80))
    assert max(len(line) for line in page.lines(result, 80) if "train.py" not in line) <= 80


RECORDED = [Collective("barrier", model.RECORD, 1)]


def test_record_says_that_it_lacks_gradients(program: str) -> None:
    states = [
        rank_state(0, model.COLLECTIVE, waits(program, "barrier", ("train", 6)), calls=RECORDED),
        rank_state(1, model.COLLECTIVE, waits(program, state.GRADIENTS, ("train", 3))),
    ]
    assert diagnosis.NOT_RECORDED in diagnose(*states).notes


def test_every_cause_has_advice() -> None:
    assert CATALOG.keys() >= {id for id, _ in diagnosis._KINDS.values()}


def test_snapshot_is_read_back(program: str) -> None:
    state = rank_state(0, model.COLLECTIVE, waits(program, "barrier", ("train", 6)))
    snapshot = Snapshot(model.SCHEMA, "n1", 1.0, [state], ["a note"])
    assert model.from_json(model.to_json(snapshot)) == snapshot
    with pytest.raises(ValueError, match="schema"):
        model.from_json({**model.to_json(snapshot), "schema": "other/1"})
