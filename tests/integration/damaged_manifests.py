"""Run by an interpreter that has torch (test_checkpoint_manifests): manifests that a program wrote with other numbers.

Usage: damaged_manifests.py FOLDER. Each has a digest that fits. The last line is how the loads ended, and what loaded
other values than were saved.
"""

from __future__ import annotations

import collections
import copy
import hashlib
import json
import math
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from provision_runtime import checkpoint
from provision_runtime.checkpoint import manifest

MUTATIONS = 250
NUMBERS = [-1, 0, 1, 2, 4, 7, 64, 1000, 2**31, 2**63, 10**400, True, False, None, 1.5, math.nan]
TEXTS = ["", "x", "../x", "/etc/passwd", ".", "0" * 64, "torch.float16", "torch.float32"]
TEXTS += ["torch.int32", "torch.int64", "torch.bool", "torch.load", "torch", "\ud800", "a\0b"]


def state(value: int) -> dict[str, Any]:
    torch.manual_seed(value)
    return {
        "model": nn.Linear(5, 3),
        "big": torch.full((600, 600), float(value)),
        "integers": torch.arange(4, dtype=torch.int32) * value,
        "floats": torch.arange(4.0) * value,
        "more": torch.arange(4.0) * value + 100,
        "same as more": torch.arange(4.0) * value + 100,
        "bits": torch.tensor([value > 0, False]),
        "empty": torch.zeros(0),
        "step": value,
        "texts": ["a", str(value)],
    }


def flat(content: dict[str, Any]) -> dict[str, Any]:
    parts: dict[str, Any] = dict(content["model"].state_dict())
    for name, value in content.items():
        if name != "model":
            parts[name] = value
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in parts.items()
    }


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    for name, value in first.items():
        other = second[name]
        same = torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
        if not same:
            return False
    return True


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, (dict, list)):
        return [path]
    paths = [path] if path else []
    for key in value if isinstance(value, dict) else range(len(value)):
        paths += places(value[key], (*path, key))
    return paths


def mutated(document: dict[str, Any], draw: random.Random) -> tuple[Any, dict[str, Any]]:
    """One value is another one, gone, there twice, or has changed places with its like."""
    document = copy.deepcopy(document)
    paths = places(document)
    path = draw.choice(paths)
    container: Any = document
    for key in path[:-1]:
        container = container[key]
    value = container[path[-1]]
    how = draw.choice(["number", "text", "near", "gone", "twice", "swap", "nest"])
    if how == "gone":
        del container[path[-1]]
    elif how == "twice" and isinstance(container, list):
        container.append(copy.deepcopy(value))
    elif how == "near" and isinstance(value, int):
        container[path[-1]] = value + draw.choice([-64, -8, -4, -1, 1, 4, 8, 64])
    elif how == "swap":
        # Two whole lists of records that change places are two tensors with each other's names.
        alike = [other for other in paths if other[-1] == path[-1] != "records"] or [path]
        other = draw.choice(alike)
        if other[: len(path)] != path and path[: len(other)] != other:
            there: Any = document
            for key in other[:-1]:
                there = there[key]
            container[path[-1]], there[other[-1]] = there[other[-1]], value
    elif how == "nest":
        container[path[-1]] = [value]
    else:
        container[path[-1]] = draw.choice(NUMBERS if how == "number" else TEXTS)
    return [how, path], document


def consistent(document: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    """What only the files contradict: the same bytes would be other numbers."""
    cases = []
    for dtype in ("torch.int32", "torch.float16", "torch.bool"):
        other = copy.deepcopy(document)
        other["tensors"]["big"]["dtype"] = dtype
        cases.append((["big", dtype], other))
        for number, run in enumerate(document["runs"]):
            other = copy.deepcopy(document)
            other["runs"][number]["dtype"] = dtype
            if run["dtype"] != dtype:
                cases.append(([f"run {number}", dtype], other))
    for number in range(len(document["runs"])):
        for shift in (-4, 4):
            other = copy.deepcopy(document)
            other["runs"][number]["at"] += shift
            cases.append(([f"run {number}", str(shift)], other))
    return cases


def main(folder: Path) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    root = folder / "run"
    saved = state(3)
    expected = flat(saved)
    checkpoint.save(saved, root, step=1)
    path = Path(checkpoint.path(root)) / manifest.NAME
    body = path.read_bytes()[len(manifest.HEAD) + manifest.DIGITS + len(manifest.AFTER) :]
    document = json.loads(b"{" + body)
    draw = random.Random(33)
    ends: collections.Counter[str] = collections.Counter()
    wrong = []
    cases = [mutated(document, draw) for _ in range(MUTATIONS)]
    for what, changed in cases + consistent(document):
        rest = json.dumps(changed)[1:].encode() + b"\n"
        digest = hashlib.sha256(rest).hexdigest().encode()
        path.write_bytes(manifest.HEAD + digest + manifest.AFTER + rest)
        live = state(0)
        before = flat(live)
        try:
            checkpoint.load(live, root)
            end = "loaded"
        except Exception as error:
            end = type(error).__name__
            if not equal(flat(live), before):
                wrong.append([*what, f"{end}, but changed"])
        ends[end] += 1
        if end == "loaded" and not equal(flat(live), expected):
            wrong.append([*what, "other values"])
        if end not in ("loaded", "DamagedFile", "CheckpointError"):
            wrong.append([*what, end])
    return {"ends": ends, "wrong": wrong}


if __name__ == "__main__":
    print("found", json.dumps(main(Path(sys.argv[1])), default=str))
