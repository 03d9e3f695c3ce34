"""torch's flight recorder: the latest calls of NCCL on this rank, and whether each has ended.

Our log holds the collective that a rank is in; the recorder also knows which of them the GPU has
started and finished. torch has it since 2.3, for builds with NCCL.
"""

from __future__ import annotations

import pickle
import sys
import threading

# A GPU that hangs can block the recorder's own query of its events.
LIMIT_S = 2.0
REPORTED_ENTRIES = 10
KEYS = ("profiling_name", "collective_seq_id", "state", "input_sizes")


def latest(limit_s: float = LIMIT_S) -> list[dict[str, object]]:
    """The last calls, oldest first; empty if there is no recorder, or if it does not respond."""
    torch = sys.modules.get("torch")
    dump = getattr(getattr(torch, "_C", None), "_distributed_c10d", None)
    dump = getattr(dump, "_dump_nccl_trace", None)
    if dump is None:
        return []
    traces: list[bytes] = []

    def ask() -> None:
        try:
            traces.append(dump())
        except Exception:  # whatever torch raises, the report must not fail for this
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(limit_s)
    return entries(traces[0]) if traces else []


def entries(trace: bytes) -> list[dict[str, object]]:
    """From torch's own pickle, made in this process."""
    document = pickle.loads(trace)
    recorded = document.get("entries") or []
    return [{key: entry.get(key) for key in KEYS} for entry in recorded[-REPORTED_ENTRIES:]]
