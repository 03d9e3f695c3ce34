"""What a signal to a job means for its command: time to save first, where it saves. The command is a
real process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from provision_runtime.job import agent, node
from provision_runtime.job.channel import Channel

SAVES = """
import signal, sys
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("running", flush=True)
signal.pause()
"""
# Stands for torchrun: its children are the ranks.
STARTS_RANKS = f"""
import signal, subprocess, sys
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
sys.exit(subprocess.call([sys.executable, "-c", {SAVES!r}]))
"""


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    numbers = (*agent.STOPPING, signal.SIGUSR1, signal.SIGCHLD)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("ranks", [0, 1])
@pytest.mark.parametrize(
    ("number", "saves", "out", "status"),
    [
        (signal.SIGTERM, True, "saved\n", 143),
        (signal.SIGINT, True, "saved\n", 130),
        (signal.SIGUSR1, True, "saved\n", 0),
        (signal.SIGUSR1, False, "saved\n", 0),
        (signal.SIGTERM, False, "", 143),
    ],
)
def test_signal_lets_a_command_that_saves_save(
    number: signal.Signals, saves: bool, out: str, status: int, ranks: int
) -> None:
    options = node.JobOptions(id="1", command=("train",), name="n0", ranks=ranks, saves=saves)
    with contextlib.closing(Channel()) as channel:
        script = STARTS_RANKS if ranks else SAVES
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdout is not None
        with child.stdout as output:
            assert output.readline() == b"running\n"
            supervisor = node._Supervisor(options, channel, child)
            signal.raise_signal(number)
            assert supervisor.wait() == status
            with contextlib.suppress(ProcessLookupError):  # a rank outlives a parent that was ended
                os.killpg(child.pid, signal.SIGKILL)
            assert output.read().decode() == out
