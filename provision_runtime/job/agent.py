"""torchrun's agent on one node, in a separate process: imports torch, waits until every node has
done so, then starts the ranks.

So nobody waits at torch's own rendezvous for a node whose file system is cold.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def run(results: int, orders: int) -> None:
    """Write the seconds that the import took to the file descriptor `results`; then run torchrun
    with the arguments that come through `orders`, or end if none come.

    Ranks start with USR1 ignored, because ignored signals stay so in the programs that a process
    starts. A script that saves on USR1 sets a handler; any other continues.
    """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    started = time.monotonic()
    from torch.distributed import run as torchrun

    with os.fdopen(results, "w") as file:
        file.write(json.dumps({"import_s": time.monotonic() - started}))
    with os.fdopen(orders) as file:
        text = file.read()
    if not text:
        sys.exit(1)
    torchrun.main(json.loads(text))
