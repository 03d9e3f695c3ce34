"""One bit is flipped at random places of every file of a checkpoint: the program that test_checkpoint_faults.py runs, with torch.
By turns with the package xxhash, where it is, and as if it were not.

Prints, as JSON, how many flips of which file were refused by its name, with nothing of the state dict changed.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch

from provision_runtime import checkpoint
from provision_runtime.checkpoint import hashes
from tests.integration.checkpoint_faults import state

WITH_OR_WITHOUT = (hashes.XXH3_128, None)


def untouched() -> dict[str, object]:
    loaded_state = state(-1)
    loaded_state["stays"].zero_()
    return loaded_state


def flips(root: Path, path: Path, draw: random.Random, count: int) -> int:
    content = path.read_bytes()
    loaded_state, before = untouched(), untouched()
    for number in range(count):
        hashes.XXH3_128 = WITH_OR_WITHOUT[number % 2]
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        with path.open("r+b") as file:
            file.seek(place)
            file.write(bytes([content[place] ^ 1 << bit]))
        try:
            step = checkpoint.load(
                untouched() if path.name == "latest" else loaded_state, root
            ).step
            # Of `latest` nothing is lost: the manifests say which step it is.
            assert path.name == "latest" and step == 1, (
                f"bit {bit} of byte {place} of {path.name} was flipped, and nobody noticed"
            )
        except checkpoint.DamagedFile as error:
            assert Path(error.path).name == path.name, error
            assert (
                path.suffix != ".distcp"
                or ("its CRC-32" if hashes.XXH3_128 is None else "its XXH128") in error.problem
            ), error
        with path.open("r+b") as file:
            file.seek(place)
            file.write(content[place : place + 1])
    assert all(same(loaded_state[name], before[name]) for name in before), (
        "a refused load changed the state dict"
    )
    return count


def same(first: object, other: object) -> bool:
    if isinstance(first, dict) and isinstance(other, dict):
        return first.keys() == other.keys() and all(same(first[key], other[key]) for key in first)
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return bool(torch.equal(first, other))
    return first == other


def main(place: Path, count: int) -> dict[str, int]:
    root = place / "root"
    checkpoint.save(state(4), root, step=0)
    saved = Path(checkpoint.save(state(5), root, step=1).folder)
    draw = random.Random(0)
    outcomes = {
        path.name: flips(root, path, draw, count)
        for path in [root / "latest", *sorted(saved.iterdir())]
    }
    assert checkpoint.verify(root) == []
    return outcomes


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
