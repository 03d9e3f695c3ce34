"""Run by an interpreter that has torch (test_checkpoint_readers): saves and reads checkpoints, and says what came back wrong.

Usage: readers.py save|read FOLDER. One process, plain values of all kinds. The last line is what it found, as JSON.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from provision_runtime import checkpoint
from provision_runtime.checkpoint import items

warnings.simplefilter("ignore")
# Tensors of a few kilobytes are then cut as those of gigabytes are.
items.MAX_PIECE_BYTES = 1000
items.pieces.__defaults__ = (items.MAX_PIECE_BYTES,)
# uint16 is not among them: torch 2.3 has it, but cannot save it.
FLOATS = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]
DTYPES = [*FLOATS, "int64", "int32", "int16", "int8", "uint8", "bool"]


def tensors(dtypes: list[str]) -> dict[str, Any]:
    """Fresh and always the same, whatever the release."""
    line = torch.arange(60, dtype=torch.float32)
    wave = torch.complex(line, line + 0.5)
    tied = torch.nn.Parameter(line.view(5, 12).clone())
    return {
        "nested": {"deep": {"weight": line.clone(), "count": torch.tensor(7)}},
        "list": [line + 1, {"inner": line + 2}, [line + 3]],
        "numbered": {0: {"exp_avg": line + 4}, 1: {"exp_avg": line + 5}},
        "dotted.name": line + 6,
        "dotted": {"other.name": line + 7},
        "empty": {"one": torch.empty(0), "two": torch.empty(3, 0, 2, dtype=torch.int64)},
        "scalar": {
            "float": torch.tensor(1.5),
            "bool": torch.tensor(True),
            "long": torch.tensor(-(1 << 62)),
        },
        "dtypes": {name: (torch.arange(40) % 5).to(getattr(torch, name)) for name in dtypes},
        "transposed": line.view(6, 10).t(),
        "strided": line[::3],
        "expanded": torch.full((1, 3), 2.5).expand(4, 3),
        "parts": {"first": line[:30], "second": line[20:50]},
        "tied": {"one": tied, "two": tied},
        "conjugate": wave.conj(),
        "negative": wave.conj().imag,
        "long": torch.arange(5000, dtype=torch.float64),
        "wide": torch.arange(3 * 1700, dtype=torch.int16).view(1, 3, 1700),
        "deep rows": torch.arange(4 * 9 * 90, dtype=torch.int32).view(4, 9, 90).permute(2, 0, 1),
    }


def objects() -> dict[str, Any]:
    return {
        "mixed": [torch.arange(3), "text", 5],
        "pair": (torch.arange(4), 1),
        "settings": {
            "rate": 0.1,
            "none": None,
            "text": "é",
            "betas": (0.9, 0.999),
            "big": 1 << 80,
            "flags": {"a": True, "b": [1, [2]]},
        },
        "groups": [{"lr": 1e-3, "params": [0, 1]}],
        "steps": {
            0: {"moment": torch.ones(2), "step": 3},
            1: {"moment": torch.ones(2) * 2, "step": 4},
        },
        "nothing": {"list": [], "dict": {}},
    }


def blank(value: Any) -> Any:
    """Of the same form, without what the values are."""
    if isinstance(value, torch.Tensor):
        return (
            torch.zeros_like(value).t()
            if value.dim() == 2 and value.shape[0] == value.shape[1]
            else torch.zeros_like(value.detach())
        )
    if isinstance(value, dict):
        return {key: blank(inner) for key, inner in value.items()}
    if isinstance(value, list) or any(isinstance(inner, torch.Tensor) for inner in _items(value)):
        return type(value)(blank(inner) for inner in value)
    return None


def _items(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else ()


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """What is compared: leaves by name; whether a number is a key as such or as text is left out, since torch's own readers differ."""
    if isinstance(value, dict):
        return {
            inner: leaf
            for key, below in value.items()
            for inner, leaf in flat(below, f"{name}.{key}").items()
        }
    if isinstance(value, (list, tuple)):
        return {
            inner: leaf
            for key, below in enumerate(value)
            for inner, leaf in flat(below, f"{name}.{key}").items()
        }
    return {name: value}


def raw(tensor: torch.Tensor) -> bytes:
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return bytes(whole.view(torch.uint8).tolist()) if whole.numel() else b""


def wrong(actual: Any, expected: Any) -> list[str]:
    """Names of what differs in value, type or shape, or is only on one side."""
    actual_values, expected_values = flat(actual), flat(expected)
    return sorted(
        name
        for name in {*actual_values, *expected_values}
        if name not in actual_values
        or name not in expected_values
        or not _same(actual_values[name], expected_values[name])
    )


def _same(first: Any, other: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return (first.dtype, first.shape) == (other.dtype, other.shape) and raw(first) == raw(other)
    return type(first) is type(other) and bool(first == other)


def supported(dtypes: list[str]) -> list[str]:
    return [name for name in dtypes if hasattr(torch, name)]


def save(folder: Path) -> dict[str, Any]:
    dtypes = supported(DTYPES)
    checkpoint.save(tensors(dtypes), folder / "tensors", step=1)
    checkpoint.save({**tensors(dtypes), **objects()}, folder / "all", step=1)
    (folder / "saved.json").write_text(json.dumps({"torch": torch.__version__, "dtypes": dtypes}))
    return {"problems": checkpoint.verify(folder / "all")}


def read(folder: Path) -> dict[str, list[str]]:
    """What is wrong, by reader."""
    saved = json.loads((folder / "saved.json").read_text())
    dtypes = supported(saved["dtypes"])
    expected = {**tensors(dtypes), **objects()}
    state = blank(expected)
    checkpoint.load(state, folder / "all")
    result = {"ours": wrong(state, expected)}
    return result


if __name__ == "__main__":
    import torch.distributed

    print(
        "found",
        json.dumps({"save": save, "read": read}[sys.argv[1]](Path(sys.argv[2])), default=str),
    )
