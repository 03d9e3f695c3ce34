"""Run as two ranks by an interpreter that has torch (test_checkpoint_refusals): what load and save refuse, and what they say.

Usage: refusals.py FOLDER. Every case is a function; the last line is what each found, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from provision_runtime import checkpoint
from provision_runtime.comm import ranks

try:
    from torch.testing._internal.two_tensor import TwoTensor
except ImportError:  # it came with torch 2.1
    TwoTensor = None

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(sys.argv[1])
STORE = distributed.TCPStore(
    "127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD_SIZE, RANK == 0, timedelta(seconds=100)
)
US = ranks.through_store(STORE, RANK, WORLD_SIZE, 60)


def refusal(action: Callable[[], Any]) -> list[str]:
    """The type and the text of what was raised."""
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error).replace(str(FOLDER), "FOLDER")]
    return ["nothing", ""]


def saved(name: str, state: dict[str, Any], step: int = 1) -> Path:
    checkpoint.save(state, FOLDER / name, step=step, ranks=US, incremental=False)
    return FOLDER / name


def misfits() -> Any:
    """All at once, and nothing is touched."""
    saved_state = {
        "a": torch.ones(3),
        "b": torch.ones(2, 2),
        "c": torch.ones(2),
        "d": 5,
        "e": torch.ones(1),
        "f": {"g": torch.ones(1)},
    }
    saved_state["i"] = torch.ones(2, 2)
    root = saved("misfits", saved_state)
    state_dict = {
        "a": torch.zeros(3),
        "b": torch.zeros(4),
        "c": torch.zeros(2, dtype=torch.int64),
        "d": torch.zeros(1),
        "e": "text",
        "f": {"h": torch.zeros(1)},
        "i": torch.zeros(2).expand(2, 2),
    }
    message = refusal(lambda: checkpoint.load(state_dict, root, ranks=US))
    return [*message, state_dict["a"].tolist(), state_dict["e"], list(state_dict["f"])]


def wrapper() -> Any:
    """A target that wraps two tensors has no memory that could be read into."""
    if TwoTensor is None:
        return None
    state_dict = {"a": TwoTensor(torch.zeros(2), torch.zeros(2))}
    message = refusal(
        lambda: checkpoint.load(state_dict, saved("wrapper", {"a": torch.ones(2)}), ranks=US)
    )
    return [message, state_dict["a"].a.tolist()]


def bad_options() -> Any:
    """On rank 1 alone: told to both, and the saves after it are of the same step on both."""
    root, state = FOLDER / "options", {"a": torch.ones(2)}
    bad: list[dict[str, Any]] = [{"step": -1}, {"step": "4"}]
    options_of_rank = bad if RANK == 1 else [{"step": 1}] * 2
    messages = [
        refusal(partial(checkpoint.save, state, root, ranks=US, **options))
        for options in options_of_rank
    ]
    messages.append(
        refusal(
            lambda: checkpoint.save_async(
                state, root, ranks=US, step=-2 if RANK == 1 else 1
            ).result()
        )
    )
    for step in (3, 4):
        checkpoint.save(state, root, step=step, ranks=US)
    return [messages, checkpoint.list_steps(root)]


def bad_options_of_a_load() -> Any:
    """On rank 1 alone: told to both, and the load after it is the same on both."""
    root, state_dict = saved("load options", {"a": torch.ones(2)}), {"a": torch.zeros(2)}
    bad: list[dict[str, Any]] = [
        {"on_damage": "zzz"},
        {"step": "newest"},
        {"step": 1.5},
        {"state_dict": [1]},
        {"root": "no-such-kind://x"},
    ]
    options_of_rank = bad if RANK == 1 else [{}] * len(bad)
    messages = [
        refusal(
            partial(
                checkpoint.load, ranks=US, **{"state_dict": state_dict, "root": root, **options}
            )
        )
        for options in options_of_rank
    ]
    checkpoint.save({"a": torch.full((2,), 2.0)}, root, step=2, ranks=US)
    return [
        messages,
        state_dict["a"].tolist(),
        checkpoint.load(state_dict, root, ranks=US).step,
        state_dict["a"].tolist(),
    ]


def part() -> Any:
    """Fewer names than are there, other types of the same kind, and numbers as keys: what is there stays the object that it was."""
    saved_state = {
        "a": torch.ones(3),
        "b": torch.ones(3),
        "many": {0: {"step": 3, "m": torch.ones(1)}, 1: {"step": 4, "m": torch.ones(1)}},
    }
    root = saved("part", saved_state)
    inner = {"step": 0, "m": torch.zeros(1, dtype=torch.bfloat16)}
    state_dict = {"a": torch.zeros(3, dtype=torch.float64), "many": {1: inner}}
    checkpoint.load(state_dict, root, ranks=US)
    return [
        state_dict["a"].tolist(),
        sorted(state_dict),
        inner["step"],
        inner["m"].item(),
        list(state_dict["many"]),
    ]


class Harmful:
    def __reduce__(self) -> Any:
        return (Path.touch, (FOLDER / "touched",))


def pickled() -> Any:
    """An object that only unpickling makes: refused before anything is changed; nothing of it runs."""
    root = saved("pickled", {"a": torch.ones(2), "b": Fraction(1, 3), "c": Harmful()})
    state_dict = {"a": torch.zeros(2), "b": None, "c": None}
    message = refusal(lambda: checkpoint.load(state_dict, root, ranks=US))
    without = [*message, state_dict["a"].tolist(), state_dict["b"], (FOLDER / "touched").exists()]
    requested = {"a": torch.zeros(2), "b": None}
    checkpoint.load(requested, root, ranks=US, allow_pickle=True)
    return [without, str(requested["b"]), requested["a"].tolist()]


def damage() -> Any:
    """In a file that rank 1 alone reads: both refuse it by the same name, or fall back together, and rank 0 warns."""
    for step in (1, 2):
        root = saved("damaged", {f"of {RANK}": torch.full((300_000,), float(step + RANK))}, step)
    if RANK == 0:
        content = json.loads((root / "step-000000000002" / "manifest.json").read_text())
        path = root / "step-000000000002" / content["tensors"]["of 1"]["records"][0][0]
        flipped = bytearray(path.read_bytes())
        flipped[700] ^= 4
        path.write_bytes(flipped)
    US.exchange("damaged", None)
    state_dict = {f"of {RANK}": torch.zeros(300_000)}
    message = refusal(lambda: checkpoint.load(state_dict, root, ranks=US))
    untouched = state_dict[f"of {RANK}"].sum().item()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = checkpoint.load(state_dict, root, ranks=US, on_damage="previous")
    refusals_ = [text.replace(str(FOLDER), "FOLDER") for text in report.refused]
    places = [Path(item.filename).name for item in caught]
    return [message, untouched, report.step, refusals_, state_dict[f"of {RANK}"][0].item(), places]


def damaged_pointers() -> Any:
    """`latest` with one flipped bit that makes it another checkpoint's name; and a manifest that cannot be read."""
    for step in (2, 3):
        root = saved("pointers", {"a": torch.full((3,), float(step))}, step)
    if RANK == 0:
        (root / "latest").write_bytes((root / "latest").read_bytes().replace(b"03 ", b"02 "))
    US.exchange("damaged", None)
    state_dict = {"a": torch.zeros(3)}
    loaded = [checkpoint.load(state_dict, root, ranks=US).step, state_dict["a"].sum().item()]
    US.exchange("loaded", None)
    if RANK == 0:
        (root / "step-000000000003" / "manifest.json").write_bytes(b"{}")
    US.exchange("damaged more", None)
    state_dict = {"a": torch.zeros(3)}
    message = refusal(partial(checkpoint.load, state_dict, root, ranks=US))
    untouched = state_dict["a"].sum().item()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report = checkpoint.load(state_dict, root, ranks=US, on_damage="previous")
    refused = [text.replace(str(FOLDER), "FOLDER") for text in report.refused]
    files = [Path(item.filename).name for item in caught]
    return [loaded, message, untouched, refused == message[1:], report.step, files]


def known_to_one() -> Any:
    """Damage of a file that rank 0 links unread is known to rank 1 alone; then to nobody, since it was written anew."""
    root, state = FOLDER / "known to one", {f"of {RANK}": torch.full((1 << 19,), float(RANK))}
    folder = Path(checkpoint.save_async(state, root, step=1, ranks=US).result().folder)
    messages = []
    if RANK == 1:
        record = json.loads((folder / "manifest.json").read_text())["tensors"]["of 0"]["records"][
            0
        ][0]
        with (folder / record).open("r+b") as file:
            file.seek(1 << 20)
            file.write(b"x")
        messages = [name for damage in checkpoint.verify(root) for name in damage.tensors]
    US.exchange("damaged", None)
    reports = [checkpoint.save_async(state, root, step=step, ranks=US).result() for step in (2, 3)]
    whole = [checkpoint.verify(root, step=step) == [] for step in (2, 3)]
    return [messages, [[report.written >> 20, report.linked >> 20] for report in reports], whole]


def nothing_there() -> Any:
    root = saved("steps", {"a": torch.ones(1)}, 7)
    saved("steps", {"a": torch.ones(1)}, 9)
    state_dict = {"a": torch.zeros(1)}
    wrong = refusal(lambda: checkpoint.load(state_dict, root, step=8, ranks=US))
    return [
        wrong,
        refusal(lambda: checkpoint.load(state_dict, FOLDER / "nowhere", ranks=US)),
        state_dict["a"].item(),
    ]


def model_and_optimizer(seed: int, has_stepped: bool) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=seed / 10)
    if has_stepped:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


def stateful() -> Any:
    """A model and its optimizer as they are, an optimizer that has taken no step yet among them."""
    model, optimizer = model_and_optimizer(1, True)
    root = saved("stateful", {"model": model, "optimizer": optimizer})
    other, new = model_and_optimizer(2, False)
    checkpoint.load({"model": other, "optimizer": new}, root, ranks=US)
    is_same_before = torch.equal(other.weight, model.weight)
    other, stepped = model_and_optimizer(2, True)
    checkpoint.load({"model": other, "optimizer": stepped}, root, ranks=US)
    moments = [holder.state_dict()["state"][0]["exp_avg"] for holder in (optimizer, stepped, new)]
    return [
        is_same_before,
        torch.equal(other.weight, model.weight),
        torch.equal(moments[0], moments[1]) and torch.equal(moments[0], moments[2]),
        stepped.param_groups[0]["lr"],
    ]


def new_optimizers() -> Any:
    """Given as the plain dicts that they make: refused at any depth, and as the whole state dict."""
    _, optimizer = model_and_optimizer(1, True)
    _, new = model_and_optimizer(2, False)
    shapes: list[Callable[[Any], dict[str, Any]]] = [
        lambda item: {"step": 7, "optim": item.state_dict()},
        lambda item: {"runs": {"a": [{"optim": item.state_dict(), "weight": torch.ones(1)}]}},
        lambda item: dict(item.state_dict()),
    ]
    messages = []
    for place, shape in enumerate(shapes):
        root = saved(f"new optimizers {place}", shape(optimizer))
        messages.append(refusal(partial(checkpoint.load, shape(new), root, ranks=US)))
    checkpoint.load({"step": 0}, FOLDER / "new optimizers 0", ranks=US)
    without = saved(
        "new optimizers of old", {"optim": new.state_dict()}
    )  # had no state then either: nothing is lost
    checkpoint.load({"optim": model_and_optimizer(3, False)[1].state_dict()}, without, ranks=US)
    return messages


def as_documented() -> Any:
    """The first lines of docs/checkpoints.md, where torch has what they import (2.2 and later)."""
    try:
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    except ImportError:
        return None
    model, optimizer = model_and_optimizer(1, True)
    weights, moments = get_state_dict(model, optimizer)
    root = saved("documented", {"model": weights, "optim": moments, "step": 5})
    other, new = model_and_optimizer(2, False)
    weights, moments = get_state_dict(other, new)
    state = {"model": weights, "optim": moments, "step": 0}
    checkpoint.load(state, root, ranks=US)
    set_state_dict(other, new, model_state_dict=state["model"], optim_state_dict=state["optim"])
    averages = [holder.state_dict()["state"][0]["exp_avg"] for holder in (optimizer, new)]
    return [
        torch.equal(model.weight, other.weight),
        torch.equal(*averages),
        new.param_groups[0]["lr"],
        state["step"],
    ]


def replicas() -> Any:
    """Of what both ranks hold, rank 0's is written, and the other is not even pickled."""
    checkpoint.save(
        {"a": 1 if RANK == 0 else (lambda: None)}, FOLDER / "replicas", step=1, ranks=US
    )
    state_dict = {"a": 0}
    checkpoint.load(state_dict, FOLDER / "replicas", ranks=US)
    return state_dict


def unsavable() -> Any:
    """On one rank alone: the others do not wait for it."""
    states: dict[str, Any] = {
        "pickle": {"a": (lambda: None)} if RANK == 1 else {"b": 1},
        "meta": {"a": torch.ones(2, device="meta" if RANK == 1 else "cpu")},
        "sparse": {"a": torch.ones(2).to_sparse() if RANK == 1 else torch.ones(2)},
        "names": {"a": {"b": torch.ones(1)}, **({"a.b": 2} if RANK == 1 else {})},
        "shape": {"a": torch.ones(2 + RANK)},
        "no dict": [torch.ones(2)] if RANK == 1 else {"a": torch.ones(2)},
    }
    if TwoTensor is not None:
        states["wrapper"] = {
            "a": TwoTensor(torch.ones(2), torch.ones(2)) if RANK == 1 else torch.ones(2)
        }
    return {
        name: refusal(partial(checkpoint.save, state, FOLDER / "unsavable", step=1, ranks=US))
        for name, state in states.items()
    }


def main() -> dict[str, Any]:
    cases = (
        misfits,
        wrapper,
        bad_options,
        bad_options_of_a_load,
        part,
        pickled,
        damage,
        damaged_pointers,
        known_to_one,
        nothing_there,
        stateful,
        new_optimizers,
        as_documented,
        replicas,
        unsavable,
    )
    return {case.__name__: case() for case in cases}


if __name__ == "__main__":
    print("found", json.dumps(main()), flush=True)
    US.exchange("leave", None)
    if RANK == 0:
        STORE.wait(["left"])
    else:
        STORE.set("left", "")
    os._exit(0)
