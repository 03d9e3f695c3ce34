"""Run by test_checkpoint_streams, on a GPU: what training's own stream still computes is saved as it will be, and does not overwrite
what is loaded.

Usage: streams.py FOLDER     (the last line printed: found JSON)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from provision_runtime import checkpoint

# Some tenths of a second of any GPU: far longer than a save of this state takes to come to it.
CYCLES = 1_000_000_000
SIZE = 1 << 20


def launched(stream: torch.cuda.Stream, tensors: list[torch.Tensor], value: float) -> None:
    """Fill them, on the stream, after a while."""
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        for tensor in tensors:
            tensor.fill_(value)


def on_a_stream(folder: Path, save: Callable[..., Any]) -> list[float]:
    """What is saved, and what is there after it was loaded again."""
    stream = torch.cuda.Stream()
    whole, columns = (
        torch.zeros(SIZE, device="cuda"),
        torch.zeros(1024, 2048, device="cuda")[:, ::2],
    )
    state = {"whole": whole, "columns": columns}
    torch.cuda.synchronize()
    launched(stream, [whole, columns], 1.0)
    with torch.cuda.stream(stream):
        save(state, folder, step=1)
    tensors = {"whole": torch.zeros(SIZE), "columns": torch.zeros(1024, 1024)}
    checkpoint.load(tensors, folder)
    launched(stream, [whole, columns], 2.0)
    with torch.cuda.stream(stream):
        checkpoint.load(state, folder)
        means = [whole.mean(), columns.mean()]
    torch.cuda.synchronize()
    return [
        *(float(tensor.mean()) for tensor in tensors.values()),
        *(float(item) for item in means),
        float(whole.mean()),
    ]


def main(folder: Path) -> dict[str, list[float]]:
    kinds: dict[str, Callable[..., Any]] = {
        "content": checkpoint.save,
        "behind": lambda *arguments, **named: checkpoint.save_async(*arguments, **named).result(),
    }
    return {name: on_a_stream(folder / name, save) for name, save in kinds.items()}


if __name__ == "__main__":
    print("found", json.dumps(main(Path(sys.argv[1]))), flush=True)
