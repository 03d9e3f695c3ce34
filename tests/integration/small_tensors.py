"""Run by an interpreter that has torch (test_checkpoint_readers): a state dict of many small tensors.

Usage: small_tensors.py FOLDER. The last line is what it found, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from provision_runtime import checkpoint
from provision_runtime.checkpoint import catalog, progress
from provision_runtime.checkpoint.storage import Storage
from tests.checkpoints import manifest_of

COUNT = 1500


def state(value: int) -> dict[str, Any]:
    small = {f"s{number}": torch.full((4,), float(value + number)) for number in range(COUNT)}
    shared = torch.arange(3) * value
    return {
        "small": small,
        "one": shared,
        "same": shared,
        "turned": (torch.arange(6.0) * value).view(2, 3).t(),
        "scalar": torch.tensor(value, dtype=torch.int8),
        "flags": torch.tensor([value > 0, False, True]),
        "empty": torch.zeros(0, 2),
        "complex": torch.tensor([1j * value]),
        "step": value,
    }


def flat(content: dict[str, Any]) -> list[tuple[str, Any]]:
    leaves = {**content, **content["small"]}
    del leaves["small"]
    return sorted(
        (name, getattr(leaf, "tolist", lambda leaf=leaf: leaf)()) for name, leaf in leaves.items()
    )


def loaded(root: Path, **options: Any) -> list[tuple[str, Any]]:
    live = state(0)
    checkpoint.load(live, root, **options)
    return flat(live)


def main(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = checkpoint.save(state(7), root, step=1)
        checkpoint.save(state(8), root, step=2)
    found["warnings"] = [str(warning.message) for warning in caught]
    folder = Path(report.folder)
    found["times the tensors"] = (
        sum(path.stat().st_size for path in folder.iterdir()) / report.bytes
    )
    found["equal"] = [
        loaded(root, step=step) == flat(state(7 if step == 1 else 8)) for step in (1, 2)
    ]
    # One tensor changed: its pack is written again, nothing else.
    changed = state(8)
    changed["small"]["s3"].add_(1)
    report = checkpoint.save(changed, root, step=3)
    found["changed"] = [
        report.linked + report.written == report.bytes,
        loaded(root) == flat(changed),
    ]
    # Progress: a callback, and a line.
    seen: list[checkpoint.LoadProgress] = []
    loaded(root, progress=seen.append)
    found["progress"] = seen[-1].done == seen[-1].total > 0
    progress.LINE_S = 0.0
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        checkpoint.save(state(9), root, step=5)
        loaded(root)
    found["lines"] = sorted({line.partition(":")[0] for line in printed.getvalue().splitlines()})
    live = state(0)

    def refuse(_: object) -> None:
        raise RuntimeError("enough")

    try:
        checkpoint.load(live, root, progress=refuse)
    except RuntimeError as error:
        found["refused"] = [str(error), flat(live) == flat(state(0))]
    # Damage is found, and the tensors of the file are named.
    content = manifest_of(root, 5)
    [record] = content.tensors["small.s11"].records
    path = Path(checkpoint.path(root)) / record.file
    damaged = bytearray(path.read_bytes())
    damaged[record.at] ^= 1
    path.unlink()
    path.write_bytes(damaged)
    found["verify"] = ["small.s11" in damage.tensors for damage in checkpoint.verify(root)]
    try:
        checkpoint.load(live, root)
    except checkpoint.DamagedFile as error:
        found["load"] = ["small.s11" in error.tensors, flat(live) == flat(state(0))]
    assert catalog.latest(Storage(root))
    return found


if __name__ == "__main__":
    print("found", json.dumps(main(Path(sys.argv[1]) / "run")))
