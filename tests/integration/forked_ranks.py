"""Runs a script as ranks that share one import of torch: it is imported here, and each rank is a
fork.

Usage: forked_ranks.py WORLD_SIZE OUTPUTS SCRIPT [ARGUMENT...]. What rank N prints is in the file N of
the folder OUTPUTS. SIGUSR2 makes each rank print its stacks.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys

import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401


def main() -> None:
    faulthandler.register(signal.SIGUSR2)
    world_size, outputs, script = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            output = os.open(os.path.join(outputs, str(rank)), os.O_WRONLY | os.O_CREAT)  # noqa: PTH118
            os.dup2(output, 1)
            os.environ["RANK"] = str(rank)
            sys.argv = sys.argv[3:]
            runpy.run_path(script, run_name="__main__")
            return
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
