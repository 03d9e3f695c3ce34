"""What this machine offers to CUDA programs: its NVIDIA driver and its GPUs, from nvidia-smi. Used
only where no request says it."""

from __future__ import annotations

import functools
import re

from provision.core import process
from provision.core.errors import TimedOut, ToolMissing
from provision.core.types import Machine

# The driver of a machine that sleeps needs seconds to wake its GPUs (no persistence mode); one that
# hangs must not hang us.
ANSWER_TIMEOUT_S = 30.0
COMMAND = ["nvidia-smi", "--format=csv,noheader"]
# A driver before 510 does not know compute_cap, and prints nothing at all if that is queried.
FIELDS = ("driver_version,compute_cap,name", "driver_version,name")


@functools.cache
def this_machine() -> Machine:
    """Runs nvidia-smi once per process: naming and planning must not see two answers."""
    machine = Machine()
    for fields in FIELDS:
        try:
            result = process.run(
                [*COMMAND, f"--query-gpu={fields}"], timeout_s=ANSWER_TIMEOUT_S, check=False
            )
        except ToolMissing:
            return Machine(why="there is no nvidia-smi on this machine")
        except TimedOut:
            return Machine(why=f"nvidia-smi did not answer within {ANSWER_TIMEOUT_S:.0f} s")
        machine = parse(result.stdout.strip() or result.stderr)
        if machine.gpus:
            break
    return machine


def parse(output: str) -> Machine:
    """A machine from nvidia-smi's rows: driver, compute capability where it was queried, name."""
    rows = []
    for line in output.splitlines():
        row = [cell.strip() for cell in line.split(",")]
        if len(row) >= 2 and re.fullmatch(r"\d+(\.\d+){1,2}", row[0]):
            rows.append(row)
    if not rows:
        message = " ".join(output.split()) or "nothing"
        return Machine(why=f"nvidia-smi named no GPU; it printed: {message}")
    gpus = []
    for row in rows:
        # sm_90 from the capability, else the product's name.
        capability = re.fullmatch(r"(\d+)\.(\d)", row[1])
        gpus.append(f"sm_{capability[1]}{capability[2]}" if capability else row[-1])
    return Machine(driver=rows[0][0], gpus=tuple(dict.fromkeys(gpus)))
