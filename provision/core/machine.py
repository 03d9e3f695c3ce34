"""What this machine offers to CUDA programs: its NVIDIA driver and its GPUs, as nvidia-smi says. Asked only where nothing else says."""

from __future__ import annotations

import functools
import re

from provision.core import process
from provision.core.errors import TimedOut, ToolMissing
from provision.core.types import Machine

# The driver of a machine that sleeps needs seconds to wake its GPUs (no persistence mode); one that hangs must not hang us.
ANSWER_TIMEOUT_S = 30.0
ASK = ["nvidia-smi", "--format=csv,noheader"]
# A driver before 510 does not know compute_cap and answers nothing at all if it is asked for that.
FIELDS = ("driver_version,compute_cap,name", "driver_version,name")


@functools.cache
def this_machine() -> Machine:
    """Asked once per run: naming and planning must not see two answers."""
    why = ""
    for fields in FIELDS:
        try:
            answer = process.run(
                [*ASK, f"--query-gpu={fields}"], timeout_s=ANSWER_TIMEOUT_S, check=False
            )
        except ToolMissing:
            return Machine(why="there is no nvidia-smi on this machine")
        except TimedOut:
            return Machine(why=f"nvidia-smi did not answer within {ANSWER_TIMEOUT_S:.0f} s")
        found = parse(answer.stdout.strip() or answer.stderr)
        if found.gpus:
            return found
        why = found.why
    return Machine(why=why)


def parse(answer: str) -> Machine:
    """A machine from nvidia-smi's rows: driver, compute capability if it was asked for and is known, name."""
    rows = [
        [cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()
    ]
    whole = [row for row in rows if len(row) >= 2 and re.fullmatch(r"\d+(\.\d+){1,2}", row[0])]
    if not whole:
        said = " ".join(answer.split()) or "nothing"
        return Machine(why=f"nvidia-smi named no GPU; it said: {said}")
    return Machine(driver=whole[0][0], gpus=tuple(dict.fromkeys(_gpu(row) for row in whole)))


def _gpu(row: list[str]) -> str:
    """sm_90 where the capability is said, else the product's name."""
    capability = re.fullmatch(r"(\d+)\.(\d)", row[1])
    return f"sm_{capability[1]}{capability[2]}" if capability else row[-1]
