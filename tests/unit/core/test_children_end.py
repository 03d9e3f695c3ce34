"""A child of ours ends when we are killed (SIGKILL), which nobody can clean up after."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import write_program

# Far beyond what a busy machine needs: only a test that fails waits so long.
PATIENCE_S = 60

RUNTIME_RANKS = """
import pathlib, sys, types
from provision_runtime.smoke.launched_ranks import LaunchedRanks
options = types.SimpleNamespace(out=pathlib.Path(OUT), timeout_s=1000, fault=lambda *_: False)
sys.executable = CHILD
LaunchedRanks(options, [], ranks=1, port=1)
"""
NODE_RANKS = """
from provision_runtime.node.smoke_ranks import _Ranks
node = dict(python=CHILD, first_rank=0, ranks=1, world_size=1, address="127.0.0.1", port=1)
_Ranks(node, [], OUT)
"""
# How each of them starts a program, CHILD, which writes its number into FIFO and stays.
STARTS = {
    "a tool of the host": "from provision.core.process import run; run([CHILD])",
    "a job's command": "import os; from provision_runtime.job.agent import start\n"
    "start([CHILD], dict(os.environ))",
    "the ranks of a smoke test": RUNTIME_RANKS,
    "the ranks of a node": NODE_RANKS,
}


@pytest.mark.parametrize("start", STARTS)
def test_it_ends_with_its_parent(start: str, tmp_path: Path) -> None:
    fifo, child = tmp_path / "fifo", tmp_path / "child"
    os.mkfifo(fifo)
    write_program(child, f"#!/bin/sh\necho $$ > '{fifo}'\nexec sleep 1000\n")
    names = f"CHILD, FIFO, OUT = {str(child)!r}, {str(fifo)!r}, {str(tmp_path)!r}\n"
    code = f"{names}{STARTS[start]}\nimport signal; signal.pause()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    try:
        number = int(_line_of(fifo))
    finally:
        parent.kill()
        parent.wait()
    assert has_ended(number), f"process {number} lives"


def _line_of(fifo: Path) -> str:
    """What somebody writes into a pipe; empty if nobody does."""
    descriptor = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        select.select([descriptor], [], [], PATIENCE_S)
        return os.read(descriptor, 100).decode()
    except BlockingIOError:
        return ""
    finally:
        os.close(descriptor)


def has_ended(number: int) -> bool:
    """Wait for the end of a process that is not our child; one that stays is killed."""
    try:
        descriptor = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        if select.select([descriptor], [], [], PATIENCE_S)[0]:
            return True
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return False
    finally:
        os.close(descriptor)
