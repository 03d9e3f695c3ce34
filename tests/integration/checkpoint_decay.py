"""A run whose files decay: after each save, a bit of each file in turn is flipped, and a new process
continues from what is there. The program that test_checkpoint_decay.py runs, with torch.

Usage: checkpoint_decay.py FOLDER SAVES KEEP. Prints, as JSON, how often each outcome was seen.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from provision_runtime import checkpoint
from tests.checkpoints import flip

BIG = 300_000


def state(step: int) -> dict[str, Any]:
    """Frozen weights in a file of their own and in a pack, and trained ones."""
    return {
        "frozen": torch.arange(BIG) if step else torch.zeros(BIG, dtype=torch.int64),
        "small": torch.ones(5) * bool(step),
        "trained": torch.full((BIG,), float(step)),
        "step": step,
    }


def restored(root: Path, keep: int) -> int:
    """The step from which a new process goes on. Its state must be exactly that of this step."""
    loaded = state(0)
    manager = checkpoint.CheckpointManager(root, loaded, every=1, keep=keep, on_signal=False)
    step = manager.restore()
    assert step, "a first start"
    expected = state(step)
    for name in ("frozen", "small", "trained"):
        assert torch.equal(loaded[name], expected[name]), f"{name} of step {step} is wrong"
    assert loaded["step"] == step
    return step


def in_a_fork(root: Path, keep: int) -> int:
    """A process of its own: what this one knows of damage must not help."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        code = restored(root, keep)
    except BaseException:
        traceback.print_exc()
        code = 255
    os._exit(code)


def main(root: Path, saves: int, keep: int) -> dict[str, int]:
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    contents = state(1)
    manager = checkpoint.CheckpointManager(root, contents, every=1, keep=keep, on_signal=False)
    for step in range(1, saves + 1):
        contents.update(state(step))
        manager.save(step)
        manager._rehash.wait()
        files = {path.stat().st_ino: path for path in root.glob("*/*")}
        for path in [*files.values(), root / "latest"]:
            intact = path.read_bytes()
            flip(path)
            at = in_a_fork(root, keep)
            is_whole = path.read_bytes() == intact
            kind = path.suffix if path.parent.name.startswith("step-") else path.parent.name
            assert at == step or (keep > 1 and at == step - 1), f"{path}, saved {step}: {at}"
            outcomes["newest" if at == step else "previous"] += 1
            outcomes[f"{kind} {'healed' if is_whole else 'left'}"] += 1
            if not is_whole:
                path.write_bytes(intact)
    assert checkpoint.list_steps(root) == list(range(max(1, saves - keep + 1), saves + 1))
    return dict(outcomes)


if __name__ == "__main__":
    warnings.simplefilter("ignore", checkpoint.CheckpointWarning)
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
