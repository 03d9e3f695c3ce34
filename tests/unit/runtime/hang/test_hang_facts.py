"""Where the facts come from: stacks, what the hook leaves, the record, and the flight recorder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.hang import (
    ended,
    flight_recorder,
    folder,
    model,
    record,
    spawned,
    stacks,
    state,
)
from provision_runtime.hang import processes as rank_processes
from provision_runtime.hang.collect import ProcessSelection, collect
from provision_runtime.hang.model import Frame, Rank, Thread
from provision_runtime.hang.processes import Activity
from provision_runtime.hang.state import Look
from provision_runtime.hang.variables import rank_variables
from tests.conftest import ROOT
from tests.integration.waiting import eventually
from tests.paths import DATA

TORCH = "/env/lib/python3.11/site-packages/torch"
RANK = Rank(0, 2, 0, 2, 1, 10, "n1:29500", "n1", "/srv/exp")
FAULT_HANDLER = """\
Thread 0x00007f1 [pt_autograd] (most recent call first):
  File "/env/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
  File "{torch}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "train.py", line 16 in evaluate
"""


def frame(name: str, file: str, line: int = 1) -> Frame:
    return stacks.frame_at(name, file, line, "/srv/exp")


def judge(first: list[Frame], last: list[Frame], cpu_s: float = 0.0, letter: str = "S") -> Any:
    looks = [
        Look(10, Activity(letter, spent, 0), [Thread("MainThread", True, frames)], "", [])
        for frames, spent in ((first, 0.0), (last, cpu_s))
    ]
    return state.judge(RANK, looks[0], looks[1], [], 2.0)


USER = frame("train", "/srv/exp/train.py", 7)
WAIT = frame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py")
WRAPPER = frame("wrapper", f"{TORCH}/distributed/c10d_logger.py")
BACKWARD = frame("_engine_run_backward", f"{TORCH}/autograd/graph.py")
LOADER = frame("_get_data", f"{TORCH}/utils/data/dataloader.py")
REDUCER = Frame("c10d::Reducer::finalize_backward", "libtorch_cpu.so", 0)


@pytest.mark.parametrize(
    ("frames", "kind", "op"),
    [
        ([WRAPPER, WAIT, USER], model.COLLECTIVE, "all_reduce"),
        ([frame("f", f"{TORCH}/_library/autograd.py"), WAIT, USER], model.COLLECTIVE, "all_reduce"),
        ([BACKWARD, USER], model.COLLECTIVE, state.GRADIENTS),
        ([REDUCER, USER], model.COLLECTIVE, state.GRADIENTS),
        ([frame("poll", "/env/lib/python3.11/selectors.py"), LOADER, USER], model.DATA_LOADER, ""),
        ([frame("interaction", "/env/lib/python3.11/pdb.py"), USER], model.DEBUGGER, ""),
        ([frame("acquire", "/env/lib/python3.11/threading.py"), USER], model.WAITING, ""),
        ([], model.UNKNOWN, ""),
    ],
)
def test_kind_of_a_rank_that_stays_where_it_is(frames: list[Frame], kind: str, op: str) -> None:
    result = judge(frames, frames)
    assert (result.kind, result.collective.op if result.collective else "") == (kind, op)
    assert result.line == (USER if frames else None)
    assert judge(frames, frames, letter="T").kind == model.STOPPED


def test_rank_that_moves_or_computes_goes_on() -> None:
    other = frame("train", "/srv/exp/train.py", 8)
    # What could be read only once has not been seen to move.
    assert judge([], [WAIT, USER]).kind == model.UNKNOWN
    assert judge([frame("C.train", "/srv/exp/train.py", 7)], [USER]).kind == model.WAITING
    assert judge([WAIT, USER], [WAIT, other]).kind == model.RUNNING
    assert judge([USER], [USER], cpu_s=1.9).kind == model.RUNNING
    assert judge([WAIT, USER], [WAIT, USER], cpu_s=1.9).detail == state.TRANSFERS
    # torch.distributed imports pdb.
    importing = [frame("<module>", "/env/lib/python3.11/pdb.py"), USER]
    assert judge(importing, importing).kind == model.WAITING


@pytest.mark.parametrize(
    ("rest", "kind"),
    [
        ("os.path.exists(path)", model.WAITING),
        ("dist.all_reduce(x)", model.RUNNING),
        ("loss.backward()", model.RUNNING),
    ],
)
@pytest.mark.parametrize("loop", ["for i in x", "while x"])
def test_a_loop_that_only_sleeps_and_looks_waits(
    tmp_path: Path, loop: str, rest: str, kind: str
) -> None:
    (tmp_path / "train.py").write_text(f"{loop}:\n    time.sleep(9)\n    {rest}\n")
    sleeping, other = (stacks.frame_at("f", "train.py", n, str(tmp_path)) for n in (2, 3))
    assert judge([sleeping], [sleeping]).kind == kind
    # It may have been caught while it looked.
    assert judge([other], [sleeping]).kind == kind
    assert judge([other], [sleeping], cpu_s=1.9).kind == model.RUNNING


def look(frames: list[Frame], *threads: list[Frame], waits: Any = ()) -> Look:
    others = [Thread("", False, thread) for thread in threads]
    main = Thread("MainThread", True, frames)
    return Look(10, Activity("S", 0.0, 0), [main, *others], "", list(waits))


@pytest.mark.parametrize(
    ("source", "kind"), [("with lock:", model.DATA_LOADER), ("time.sleep(30)", model.RUNNING)]
)
def test_worker_of_a_loader_is_named_by_its_line(source: str, kind: str) -> None:
    dataset = Frame("__getitem__", "/srv/exp/data.py", 3, source, True)
    loop = frame("_worker_loop", f"{TORCH}/utils/data/_utils/worker.py")
    # A forked worker has the stack of its parent below.
    assert state.line_of_worker(look([dataset, loop, USER]).threads) == dataset
    assert state.line_of_worker(look([loop, USER]).threads) is None
    waiting = look([LOADER, USER], waits=[model.Worker(99, "S", line=dataset)])
    result = state.judge(RANK, waiting, waiting, [], 2.0)
    assert (result.kind, "worker 99 stays at data.py:3" in result.detail) == (kind, True)


@pytest.mark.parametrize(("completed", "kind"), [(7, model.DISK), (8, model.RUNNING)])
def test_a_disk_that_completes_requests_is_slow_only(completed: int, kind: str) -> None:
    first, last = (
        look([USER], waits=[model.Worker(10, "D", "/data/a", "ext4", completed=number)])
        for number in (7, completed)
    )
    assert state.judge(RANK, first, last, [], 2.0).kind == kind


def test_question_and_collective_of_a_thread() -> None:
    question = Frame("train", "/srv/exp/train.py", 7, "ok = input('overwrite? ')", True)
    assert judge([question], [question]).kind == model.DEBUGGER
    joining = [frame("join", "/env/lib/python3.11/threading.py"), USER]
    work = Frame("train", "/srv/exp/train.py", 7, "for w in works: w.wait()", True)
    assert judge([work], [work]).kind == model.COLLECTIVE
    evaluating = [WAIT, frame("evaluate", "/srv/exp/train.py", 12)]
    result = state.judge(RANK, look(joining, evaluating), look(joining, evaluating), [], 2.0)
    assert (result.kind, result.line) == (model.COLLECTIVE, evaluating[1])


# torch is a file that is mapped; a process that has its name and is no Python cannot be read.
SPAWNING = """\
import mmap, multiprocessing, os, shutil, signal, time
def train(rank):
    with open("libtorch.so", "rb") as file:
        torch = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 2:
        os.execv("libtorch/sleep", ["python", "600"])
    time.sleep(600)
if __name__ == "__main__":
    for rank in range(3):
        multiprocessing.get_context("fork").Process(target=train, args=(rank,)).start()
"""


def test_spawned_ranks_that_are_stopped_or_cannot_be_read_are_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "libtorch.so").write_bytes(b"x")
    (tmp_path / "libtorch").mkdir()
    shutil.copy(shutil.which("sleep") or "", tmp_path / "libtorch" / "sleep")
    (tmp_path / "train.py").write_text(SPAWNING)
    with subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path) as parent:
        children: list[int] = []

        def are_ready() -> bool:
            children[:] = rank_processes.descendants(
                parent.pid, set(), rank_processes.parents_of_all()
            )
            return (
                len(children) == 3
                and all("/libtorch" in rank_processes.read(pid, "maps") for pid in children)
                and any(rank_processes.activity(pid, []).state == "T" for pid in children)
                and any("600" in rank_processes.entries(pid, "cmdline") for pid in children)
            )

        try:
            eventually(are_ready, daemons=[parent])
            selection = ProcessSelection(pid=parent.pid)
            snapshot = collect(selection, observed_s=0.1, timeout_s=120)
            assert [(rank.rank, rank.kind) for rank in snapshot.ranks] == [
                (0, model.RUNNING),
                (1, model.STOPPED),
                (2, model.UNKNOWN),
            ]
            assert snapshot.notes == [spawned.FREE_NUMBERS]
            assert snapshot.ranks[2].detail.startswith("py-spy failed")
        finally:
            for pid in children:
                os.kill(pid, signal.SIGKILL)


def test_stacks_of_faulthandler_and_of_py_spy_are_alike() -> None:
    [other, main] = stacks.parse_fault_handler(FAULT_HANDLER.format(torch=TORCH), "/srv/exp")
    assert not other.is_main and main.is_main
    printed = [
        {"name": f.function, "filename": f.file.replace("/srv/exp/", ""), "line": f.line}
        for f in main.frames
    ]
    entry = {"pid": 7, "os_thread_id": 7, "thread_name": "MainThread", "frames": printed}
    assert stacks.parse_py_spy([entry], "/srv/exp") == [main]
    assert stacks.user_frame(main.frames) == frame("evaluate", "/srv/exp/train.py", 16)
    assert frame("poll", "selectmodule.c", 655).line == 0


@pytest.fixture
def rank_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the ranks of this test."""
    path = tmp_path / "ranks"
    monkeypatch.setattr(folder, "rank_folder", lambda user=None: str(path))
    return path


def run_rank(rank_folder: Path, code: str, **variables: str) -> subprocess.Popen[str]:
    """A process with the variables of torchrun, and the hook as the .pth file starts it."""
    start = (
        f"from provision_runtime.hang import folder; folder.rank_folder = lambda: {str(rank_folder)!r}"
        "; import provision_runtime.hang.hook\n"
    )
    env = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "PYTHONPATH": str(ROOT)}
    env.update(MASTER_ADDR="n1", MASTER_PORT="29500", **variables)
    return subprocess.Popen(
        [sys.executable, "-c", start + code], env=env, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("start,ranks", [("1", []), ("99999999999", [3])])
def test_a_record_of_a_process_whose_number_is_used_again_is_not_ours(
    rank_folder: Path, start: str, ranks: list[int]
) -> None:
    """Processes count to 32,768 on many systems, and begin again."""
    own, ended = os.getpid(), 99_999_999
    for launcher, rank in ((own, own - 1), (ended, own)):
        stem = Path(folder.ensure_folder()) / f"3,4,3,4,{launcher},{rank},{start},n1:29500"
        Path(f"{stem}.stacks").write_text("/srv\n")
        assert [rank.rank for rank in collect(ProcessSelection(pid=own)).ranks] == ranks
        Path(f"{stem}.stacks").unlink()


def end_of(process: subprocess.Popen[str]) -> int:
    process.communicate()
    return process.returncode


def test_hook_writes_how_a_rank_ended(rank_folder: Path, tmp_path: Path) -> None:
    torch_file = tmp_path / "error.json"
    failing = run_rank(rank_folder, "int('x')", TORCHELASTIC_ERROR_FILE=str(torch_file))
    assert end_of(failing) == 1
    [(stem, rank)] = ended.records().items()
    assert (rank.rank, rank.world_size, rank.job, rank.pid) == (1, 2, "n1:29500", failing.pid)
    error = ended.error(stem, rank)
    assert error is not None and error.type == "ValueError"
    assert json.loads(torch_file.read_text())["message"]["message"].startswith("ValueError")
    assert rank_folder.stat().st_mode & 0o777 == 0o700

    crashing = run_rank(rank_folder, "import os; os.abort()")
    assert end_of(crashing) == -6
    [(stem, rank)] = [item for item in ended.records().items() if item[1].pid == crashing.pid]
    crash = ended.error(stem, rank)
    assert crash is not None and (crash.type, crash.message) == ("crash", "Aborted")

    assert end_of(run_rank(rank_folder, "")) == 0
    [last, *_] = ended.missing([], ended.records())
    assert last.kind == model.ENDED


def test_hook_uses_no_folder_that_others_can_write(rank_folder: Path) -> None:
    rank_folder.mkdir()
    rank_folder.chmod(0o777)
    assert end_of(run_rank(rank_folder, "")) == 0
    assert list(rank_folder.iterdir()) == []


def test_hook_answers_the_signal(rank_folder: Path) -> None:
    process = run_rank(rank_folder, "print('ready', flush=True); import time; time.sleep(60)")
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        [rank] = [rank for rank in rank_processes.rank_processes() if rank.rank.pid == process.pid]
        threads = stacks._dump_by_signal(process.pid, rank.stem, "/", 120.0)
        assert threads[-1].is_main and threads[-1].frames[0].line == 2
    finally:
        process.kill()
        process.communicate()


def test_only_a_rank_that_handles_the_signal_gets_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (tmp_path / "x.stacks").write_text("/\n")
        with pytest.raises(stacks.StacksUnreadable, match="handler"):
            stacks._dump_by_signal(process.pid, str(tmp_path / "x"), "/", 1.0)
        process.communicate(b"\n")
        assert process.returncode == 0


def test_hook_starts_in_ranks_only() -> None:
    line = (ROOT / "provision_runtime/hang/provision_runtime.pth").read_text()
    code = f"import sys, os; os.environ.update(%r)\n{line}\nprint('provision_runtime.hang.hook' in sys.modules)"
    for variables, is_rank in (({}, False), ({"WORLD_SIZE": "2"}, False)):
        result = subprocess.run(
            [sys.executable, "-c", code % variables], capture_output=True, text=True, cwd=ROOT
        )
        assert result.stdout == f"{is_rank}\n"


def test_record_keeps_the_last_calls(tmp_path: Path) -> None:
    calls = record.CallRecord(str(tmp_path / "calls"))
    for number in range(record.LINES + 2):
        at = calls.begin("barrier", None, None, sys._getframe())
        if number < record.LINES + 1:
            calls.end(at)
    kept = record.read(str(tmp_path / "calls"), "/")
    assert [call.sequence for call in kept] == list(range(3, record.LINES + 3))
    assert [call.is_complete for call in kept][-2:] == [True, False]
    assert (
        kept[-1].line is not None and kept[-1].line.function == "test_record_keeps_the_last_calls"
    )


ENTRY = {
    "profiling_name": "nccl:all_reduce",
    "collective_seq_id": 12,
    "process_group": ("0", "default_pg"),
    "input_sizes": [[16, 8]],
    "input_dtypes": ["Float"],
    "state": "scheduled",
    "frames": [{"name": "train", "filename": "/srv/exp/train.py", "line": 7}],
}


@pytest.mark.parametrize("document", [[ENTRY], {"version": "2.10", "entries": [ENTRY]}])
def test_dump_of_the_flight_recorder(document: Any) -> None:
    [call] = flight_recorder.parse(pickle.dumps(document, protocol=2), "/srv/exp")
    assert (call.op, call.sequence, call.shape, call.dtype) == ("all_reduce", 12, [16, 8], "float")
    assert (call.group, call.is_complete, call.line) == ("default_pg", False, USER)


def test_point_to_point_calls_have_no_number_to_compare(tmp_path: Path) -> None:
    entry = {**ENTRY, "is_p2p": True, "p2p_seq_id": 3}
    [call] = flight_recorder.parse(pickle.dumps([entry], protocol=2), "/")
    calls = record.CallRecord(str(tmp_path / "calls"))
    for op in ("send", "barrier"):
        calls.begin(op, None, None, sys._getframe())
    recorded = record.read(str(tmp_path / "calls"), "/")
    assert [call.sequence, *(call.sequence for call in recorded)] == [None, None, 1]


def test_real_dump_of_the_flight_recorder() -> None:
    """Written on an H100 by one rank: three all_reduce, a broadcast and a barrier."""
    content = (DATA / "flight-recorder" / "torch-2.11-nccl-2.28.pickle").read_bytes()
    calls = flight_recorder.parse(content, "/home/user/code")
    assert [(call.op, call.sequence) for call in calls] == [
        *(("all_reduce", number) for number in (1, 2, 3)),
        ("broadcast", 4),
        ("all_reduce_barrier", 5),
    ]
    assert all(call.is_complete and call.shape in ([1], [1 << 20]) for call in calls)
    assert [call.line.line for call in calls if call.line is not None] == [8, 8, 8, 9, 10]


@pytest.mark.parametrize("content", [pickle.dumps(os.getcwd, 2), b"no pickle", pickle.dumps(3, 2)])
def test_pickles_of_other_things_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        flight_recorder.parse(content, "/")


def test_flight_recorder_is_asked_through_its_pipe(tmp_path: Path) -> None:
    environ = {**rank_variables(str(tmp_path))}
    process = rank_processes.RankProcess(RANK, environ, "", "", "")
    assert flight_recorder.ask(process) == ""
    pipe = tmp_path / f"flight-recorder-{os.getpid()}-0.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    path = flight_recorder.ask(process)
    assert os.read(reader, 9) == b"1"
    os.close(reader)
    with pytest.raises(FileNotFoundError):
        flight_recorder.read(path, time.time(), 0.0, "/")


@pytest.mark.parametrize(
    "content",
    [b"", b"[1", b"[" * 99_999, b'{"frames": [[1]]}', b'{"frames": [], "type": 1}', b"[1,2]", b"7"],
)
def test_damaged_files_of_ranks_say_nothing(tmp_path: Path, content: bytes) -> None:
    stem = str(tmp_path / "0,2")
    (tmp_path / "0,2.stacks").write_bytes(b"/srv/exp\n")
    (tmp_path / "0,2.error").write_bytes(content)
    (tmp_path / "0,2.calls").write_bytes(b"1" + content)
    assert ended.error(stem, RANK) is None
    assert record.read(f"{stem}.calls", "/") == []


def test_links_pipes_and_the_rest_of_big_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "MAX_BYTES", 5)
    (tmp_path / "big").write_bytes(b"0123456789")
    assert folder.read(str(tmp_path / "big"), 2) == b"23456"
    (tmp_path / "link").symlink_to("big")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError):
            folder.read(str(tmp_path / name))


def test_deep_stacks_keep_both_ends_and_the_main_thread() -> None:
    frames = [{"name": f"f{n}", "filename": "/srv/exp/a.py", "line": n} for n in range(500)]
    entry = {"pid": 7, "os_thread_id": 8, "thread_name": "x", "frames": frames}
    threads = stacks.parse_py_spy([entry] * 70 + [{**entry, "os_thread_id": 7}], "/")
    assert [thread.is_main for thread in threads] == [True] + [False] * (stacks.MAX_THREADS - 1)
    lines = [frame.line for frame in threads[0].frames]
    assert (lines[0], lines[-1], len(lines)) == (0, 499, 2 * stacks.MAX_FRAMES)


def test_the_main_thread_of_a_stopped_process_is_known_by_its_name() -> None:
    """As py-spy prints Python 3.8 to 3.10 with --nonblocking."""
    frames = [{"name": "f", "filename": "/srv/exp/a.py", "line": 1}]
    entry = {"pid": 7, "os_thread_id": None, "thread_name": "Thread-1", "frames": frames}
    threads = stacks.parse_py_spy([entry, {**entry, "thread_name": "MainThread"}], "/")
    assert [(thread.name, thread.is_main) for thread in threads] == [
        ("MainThread", True),
        ("Thread-1", False),
    ]


def test_variables_have_the_names_of_all_releases() -> None:
    """Since 2.8 they are named for all backends; the pipe needs the old name of the size, too."""
    variables = rank_variables("/tmp/ranks")
    prefix = f"/tmp/ranks/flight-recorder-{os.getpid()}-"
    assert variables == {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix,
        "TORCH_FR_DUMP_TEMP_FILE": prefix,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": prefix,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }
    assert rank_variables("/tmp/ranks", record=True) == {**variables, "PROVISION_RECORD": "1"}


def test_a_rank_that_was_never_seen_may_still_start() -> None:
    def other_rank(pid: int) -> str:
        rank = Rank(1, 2, 1, 2, 1, pid, "host:1", "n01", "/")
        [state] = ended.missing([model.RankState(**vars(rank), kind=model.RUNNING)], {})
        assert state.rank == 0
        return state.kind

    with subprocess.Popen(["sleep", "60"]) as sibling:
        assert other_rank(sibling.pid) == model.UNKNOWN
        sibling.kill()
    assert other_rank(1) == model.GONE  # it has run for long
