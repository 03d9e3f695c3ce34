"""The nodes of a job as processes of this machine: how they end together, and how a training that
is stopped goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from provision_runtime.job.connection import candidate_ports
from provision_runtime.job.node import KEY_VARIABLE
from tests.conftest import ROOT
from tests.integration.waiting import PATIENCE_S, eventually

# A command that says when it runs, and how it ends.
WAITING = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
if "saves" in sys.argv:
    signal.signal(signal.SIGUSR1, save)
print("running", flush=True)
time.sleep(600)
"""


KEY = "0123456789abcdef" * 4


class Nodes:
    """`python -m provision_runtime job` for each node of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []

    def start(
        self,
        count: int,
        *words: str,
        options: tuple[str, ...] = (),
        variables: Mapping[int, Mapping[str, str]] | None = None,
        only: tuple[int, ...] | None = None,
    ) -> None:
        """variables: more environment variables, by the number of the node. only: these nodes."""
        for number in only or range(count):
            command = [sys.executable, "-m", "provision_runtime", "job"]
            command += [f"--id={self.folder}", f"--nodes={count}", f"--node={number}"]
            command += [
                f"--name=n{number}",
                "--head=127.0.0.1",
                "--wait=60",
                *options,
                "--",
                *words,
            ]
            more = {KEY_VARIABLE: KEY, **(variables or {}).get(number, {})}
            env = {**os.environ, "PYTHONPATH": str(ROOT), **more}
            self.processes.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=env,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )

    def wait_until_running(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"

    def ends(self) -> list[tuple[int, str, str]]:
        """Exit code, output and messages of each node."""
        ends = []
        for process in self.processes:
            out, err = process.communicate(timeout=PATIENCE_S)
            ends.append((process.returncode, out, err))
        return ends

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.kill()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_commands_of_all_nodes_know_where_node_0_is(nodes: Nodes) -> None:
    text = 'echo "$NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT over $GLOO_SOCKET_IFNAME"'
    nodes.start(3, "sh", "-c", text)
    ends = nodes.ends()
    assert [status for status, _, _ in ends] == [0, 0, 0]
    port = ends[0][1].partition("127.0.0.1:")[2].split()[0]
    assert [out for _, out, _ in ends] == [
        f"{number} of 3 at 127.0.0.1:{port} over lo\n" for number in range(3)
    ]
    assert "3 nodes compared: alike" in ends[0][2]


def test_a_node_that_differs_ends_the_job_by_name(nodes: Nodes) -> None:
    nodes.start(4, "echo", "ran", variables={2: {"NCCL_IB_DISABLE": "1"}})
    for status, out, messages in nodes.ends():
        assert (status, out) == (1, "")
        assert "NCCL_IB_DISABLE: 1 on n2, not set on the other 3; the job ends here" in messages


def test_a_node_without_the_gpus_or_the_script_ends_the_job_by_name(nodes: Nodes) -> None:
    nodes.start(
        2,
        "train.py",
        options=("--ranks=2", "--gpus=2"),
        variables={0: {"CUDA_VISIBLE_DEVICES": "0,1"}, 1: {"CUDA_VISIBLE_DEVICES": "0"}},
    )
    for status, out, messages in nodes.ends():
        assert (status, out) == (1, "")
        assert "n1: 1 of 2 GPUs are visible" in messages
        assert f"n0: there is no {nodes.folder}/train.py" in messages


def test_nodes_without_a_key_do_not_start(nodes: Nodes) -> None:
    short = {KEY_VARIABLE: KEY[:16]}
    nodes.start(2, "echo", "ran", variables={0: short, 1: short})
    for status, out, messages in nodes.ends():
        assert (status, out) == (2, "")
        assert KEY_VARIABLE in messages


def test_the_command_does_not_get_the_key(nodes: Nodes) -> None:
    nodes.start(2, "env")
    for status, out, _ in nodes.ends():
        assert status == 0
        assert "NNODES=2" in out
        assert KEY not in out


def test_strangers_end_no_job_and_are_counted(nodes: Nodes) -> None:
    """With the job's id too, which squeue shows, and where the port would be known."""
    nodes.start(2, "echo", "ran", only=(0,))
    port = candidate_ports(KEY.encode(), str(nodes.folder))[0]
    eventually(lambda: listens(port))
    greeting = {"job": str(nodes.folder), "node": 1, "nodes": 2, "name": "n1"}
    for text in (b"[" * 200_000 + b"\n", json.dumps(greeting).encode() + b"\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(text)
    nodes.start(2, "echo", "ran", only=(1,))
    ends = nodes.ends()
    assert [(status, out) for status, out, _ in ends] == [(0, "ran\n")] * 2
    assert "without the job's key dropped, from 127.0.0.1" in ends[0][2]


def test_a_missing_node_is_named(nodes: Nodes) -> None:
    nodes.start(2, "echo", "ran", options=("--names=n0,n1,n2",), variables={})
    for status, _, messages in nodes.ends():
        assert status == 2
        assert "--names has 3 names for 2 nodes" in messages


def test_one_failing_command_ends_the_others(nodes: Nodes) -> None:
    nodes.start(3, "sh", "-c", "test $NODE_RANK != 1 || exit 7; exec sleep 600")
    ends = nodes.ends()
    assert [status for status, _, _ in ends] == [1, 7, 1]
    assert all("n1: the command ended with status 7" in messages for _, _, messages in ends)


def test_a_killed_node_ends_the_others_and_its_own_command(nodes: Nodes) -> None:
    nodes.start(3, sys.executable, "-c", WAITING)
    nodes.wait_until_running()
    nodes.processes[2].kill()
    ends = nodes.ends()  # waits until the commands, too, have closed their output
    assert [status for status, _, _ in ends] == [1, 1, -signal.SIGKILL]
    assert "n2 is gone" in ends[0][2]


@pytest.mark.parametrize("node", [0, 2])
def test_usr1_on_one_node_lets_all_commands_save(nodes: Nodes, node: int) -> None:
    nodes.start(3, sys.executable, "-c", WAITING, "saves", options=("--saves",))
    nodes.wait_until_running()
    nodes.processes[node].send_signal(signal.SIGUSR1)
    assert [(status, out) for status, out, _ in nodes.ends()] == [(0, "saved\n")] * 3


@pytest.mark.parametrize("node", [0, 2])
def test_sigterm_on_one_node_lets_all_commands_save(nodes: Nodes, node: int) -> None:
    """As when a scheduler evicts one pod: none may count as completed."""
    nodes.start(3, sys.executable, "-c", WAITING, "saves", options=("--saves",))
    nodes.wait_until_running()
    nodes.processes[node].terminate()
    assert [(status, out) for status, out, _ in nodes.ends()] == [(143, "saved\n")] * 3


def test_sigterm_ends_commands_that_save_nothing(nodes: Nodes) -> None:
    nodes.start(2, sys.executable, "-c", WAITING)
    nodes.wait_until_running()
    nodes.processes[1].terminate()
    assert [(status, out) for status, out, _ in nodes.ends()] == [(143, "")] * 2


def test_usr1_that_comes_late_kills_nothing(nodes: Nodes) -> None:
    """Also while Python ends, when it has reset its handlers."""
    nodes.start(1, sys.executable, "-c", WAITING, "saves", options=("--saves",))
    nodes.wait_until_running()
    [process] = nodes.processes
    while process.poll() is None:
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.0005)
    assert [(status, out) for status, out, _ in nodes.ends()] == [(0, "saved\n")]


def test_a_command_that_does_not_exist_is_named(nodes: Nodes) -> None:
    nodes.start(2, "no-such-command")
    for status, _, messages in nodes.ends():
        assert status == 1
        assert "`no-such-command` cannot be started: No such file or directory" in messages


@pytest.mark.parametrize(("number", "status"), [(signal.SIGUSR1, 0), (signal.SIGTERM, 143)])
def test_a_node_that_is_stopped_while_it_waits_starts_nothing(
    nodes: Nodes, number: signal.Signals, status: int
) -> None:
    nodes.start(2, "echo", "ran", only=(0,))
    [process] = nodes.processes
    eventually(lambda: listens(candidate_ports(KEY.encode(), str(nodes.folder))[0]))
    process.send_signal(number)
    [(exit_code, out, messages)] = nodes.ends()
    assert (exit_code, out) == (status, "")
    assert f"n0: stopped by signal {number.value} before" in messages


# With torch


def start_training(
    python: Path, folder: Path, *words: str, options: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    """examples/train.py on two ranks, with the options of one node of a job."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.Popen(
        [
            python, "-s", "-m", "provision_runtime", "job", "--saves", *(options or ("--ranks=2",)),
            "--", ROOT / "examples" / "train.py", *words,
        ],
        cwd=folder,
        env={**env, "OMP_NUM_THREADS": "1", KEY_VARIABLE: KEY},
        text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip


def train(python: Path, folder: Path, *words: str, options: tuple[str, ...] = ()) -> str:
    with start_training(python, folder, *words, options=options) as process:
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out
    return out


def saved_content(python: Path, folder: Path) -> object:
    """Every tensor of the latest checkpoint with the SHA-256 of its bytes."""
    shown = subprocess.run(
        [python, "-m", "provision_runtime", "checkpoint", "show", folder / "checkpoints"],
        capture_output=True,
        check=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    document = json.loads(shown.stdout)
    return [(tensor["name"], tensor["files"]) for tensor in document["tensors"]]


@pytest.mark.exhaustive
@pytest.mark.torch
def test_training_stopped_by_usr1_goes_on_where_it_was(
    runtime_python: Path, tmp_path: Path
) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    for folder in (stopped, straight):
        folder.mkdir()
    rank = ("--ranks=1",)
    words = ("--steps=1000000", "--save-every=20")
    with start_training(runtime_python, stopped, *words, options=rank) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("step 20: ")
        process.send_signal(signal.SIGUSR1)
        lines = process.stdout.read().splitlines()
        assert process.wait(PATIENCE_S) == 0
    assert lines[-1] == "stopped by a signal; the next run goes on here"
    last_step = int(lines[-2].split()[1].rstrip(":"))
    steps = f"--steps={last_step + 30}"
    assert train(runtime_python, stopped, steps, options=rank).startswith(
        f"loaded step {last_step}\n"
    )
    train(runtime_python, straight, steps, options=rank)
    assert saved_content(runtime_python, stopped) == saved_content(runtime_python, straight)


@pytest.mark.torch
def test_two_nodes_train_together(runtime_python: Path, tmp_path: Path) -> None:
    """Rank 0 is on node 0. The checkpoint is that of two ranks on one node."""
    options = ("--ranks=1", f"--id={tmp_path}", "--nodes=2", "--head=127.0.0.1")
    processes = [
        start_training(
            runtime_python, tmp_path, "--steps=20", options=(*options, f"--node={number}")
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0].startswith("step 20: ")
    assert outputs[1] == ""


@pytest.mark.torch
def test_an_import_of_torch_that_fails_ends_the_job(runtime_python: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken')")
    completed = subprocess.run(
        [
            runtime_python,
            "-m",
            "provision_runtime",
            "job",
            "--ranks=1",
            "--name=n1",
            "--",
            "-m",
            "x",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert completed.returncode == 1
    assert "n1: torch cannot be imported, see above; the job ends here" in completed.stderr
    assert "broken" in completed.stderr
