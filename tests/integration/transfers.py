"""Run by an interpreter that has torch (test_checkpoint_transfers): exported to safetensors, imported from what others write.

Usage: transfers.py FOLDER. Every case is a function; the last line is what each found, as JSON.
"""

from __future__ import annotations

import json
import struct
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import checkpoint as dcp

from provision_runtime import checkpoint
from provision_runtime.checkpoint import export as exports
from provision_runtime.checkpoint import items, layout
from provision_runtime.checkpoint.errors import CheckpointError
from provision_runtime.checkpoint.export import ExportOptions
from provision_runtime.checkpoint.inspection import command
from provision_runtime.checkpoint.inspection.transfer import export_step, import_step

items.pieces.__defaults__ = (200,)  # tensors of several records
FOLDER = Path(sys.argv[1])
ROOT = FOLDER / "checkpoints"


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Linear(9, 13)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 9)).sum().backward()
    optimizer.step()
    return model, optimizer


def odd() -> dict[str, torch.Tensor]:
    shared = torch.arange(12.0).view(3, 4)
    return {
        "first": shared,
        "second": shared,
        "turned": shared.t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "half": torch.arange(5, dtype=torch.bfloat16),
        "f8": torch.arange(7.0).to(torch.float8_e4m3fn),
        "flags": torch.tensor([True, False]),
        "counts": torch.arange(300),
    }


def refusal(action: Callable[[], Any], verb: str = "") -> str:
    try:
        action()
    except CheckpointError as error:
        text = command.describe(verb, error)[0] if verb else str(error)
        return text.replace(str(FOLDER), "FOLDER")
    return "nothing"


def read_by_format(folder: Path) -> dict[str, Any]:
    """By the format's definition, and nothing of ours."""
    tensors = {}
    for path in folder.glob("*.safetensors"):
        content = path.read_bytes()
        [length] = struct.unpack("<Q", content[:8])
        assert length % 8 == 0
        header = json.loads(content[8 : 8 + length])
        assert header.pop("__metadata__") == {"format": "pt"}
        end = 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            begin, last = entry["data_offsets"]
            assert begin == end
            end = last
            tensors[name] = [entry["dtype"], entry["shape"], content[8 + length :][begin:last]]
        assert 8 + length + end == len(content)
    return tensors


def elements(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def export(name: str, **options: Any) -> Any:
    return export_step(str(ROOT), 1, str(FOLDER / name), ExportOptions(**options))


def exported() -> Any:
    model, optimizer = made(1)
    checkpoint.save({"model": model, "optim": optimizer, "odd": odd()}, ROOT, step=1)
    exports.SHARD_BYTES = 1e3
    export("odd", part="odd")
    exports.SHARD_BYTES = 5e9
    read = read_by_format(FOLDER / "odd")
    same = [read[name][2] == elements(tensor) for name, tensor in odd().items()]
    index = json.loads((FOLDER / "odd" / "model.safetensors.index.json").read_text())
    placed = all(
        name in read_by_file(FOLDER / "odd" / file) for name, file in index["weight_map"].items()
    )
    export("renamed", part="model", rename=(("^weight$", "a.w"), (r"^(b)ias", r"\1")))
    by_step = export_step(
        str(ROOT),
        "latest",
        str(FOLDER / "by-step"),
        ExportOptions(part="model"),
    )
    export("narrow", part="odd", dtype="bfloat16")
    kinds = {name: values[0] for name, values in read_by_format(FOLDER / "narrow").items()}
    return [
        all(same),
        {name: values[:2] for name, values in read.items()},
        [placed, index["metadata"]["total_size"] == sum(len(v[2]) for v in read.values())],
        sorted(read_by_format(FOLDER / "renamed")),
        by_step.step,
        kinds,
        read_by_dcp(),
    ]


def read_by_dcp() -> bool:
    """DCP reads what `read` returns, under our names."""
    dcp.save_state_dict(
        checkpoint.read(ROOT), dcp.FileSystemWriter(str(FOLDER / "for-dcp")), no_dist=True
    )
    model, expected = made(2)[0], made(1)[0]
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    dcp.load_state_dict(state, dcp.FileSystemReader(str(FOLDER / "for-dcp")), no_dist=True)
    return bool(torch.equal(state["model.weight"], expected.weight))


def read_by_file(path: Path) -> set[str]:
    content = path.read_bytes()
    [length] = struct.unpack("<Q", content[:8])
    return set(json.loads(content[8 : 8 + length]))


def refused_exports() -> Any:
    (FOLDER / "full").mkdir()
    (FOLDER / "full" / "config.json").write_text("{}")
    big = {"narrow": {"big": torch.tensor([1e30])}, "wide": torch.ones(1, dtype=torch.complex128)}
    checkpoint.save({"odd": big}, FOLDER / "big", step=1)

    def of_big(**options: Any) -> Any:
        return export_step(str(FOLDER / "big"), 1, str(FOLDER / "new"), ExportOptions(**options))

    # What a killed export left goes with the next one, and what a running one has stays.
    running = layout.temporary("export")
    _, *parts = running.split("~")
    for name in (running, "~".join((layout.TEMPORARY, *parts[:2], "4194305", *parts[3:]))):
        (FOLDER / name).mkdir()
    texts = [
        refusal(lambda: export("new")),
        refusal(lambda: export("full", part="model")),
        refusal(lambda: export("new", part="nothing")),
        refusal(lambda: export("new", part="model", rename=((".+", "x"),))),
        refusal(lambda: of_big(part="odd")),
        refusal(lambda: of_big(part="odd.narrow", dtype="float16")),
    ]
    damaged = max((FOLDER / "big").glob("step-*/*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 1
    damaged.write_bytes(content)
    texts.append(refusal(lambda: of_big(part="odd.narrow")).partition("is damaged")[1])
    left = sorted(path.name for path in FOLDER.glob("*~export~*"))
    return [texts, [left == [running], (FOLDER / "new").exists()]]


def imported() -> Any:
    """Lightning's names become those of a model and its optimizer."""
    model, optimizer = made(1)
    content = {
        "state_dict": model.state_dict(),
        "optimizer_states": [optimizer.state_dict()],
        "global_step": 7,
    }
    torch.save(content, FOLDER / "old.ckpt")
    torch.save({**content, "hyper_parameters": Fraction(1, 2)}, FOLDER / "code.ckpt")
    rename = [("^state_dict", "model"), (r"^optimizer_states\.0", "optim")]
    source, root = str(FOLDER / "old.ckpt"), FOLDER / "imported"
    texts = [refusal(lambda: import_step(str(FOLDER / "code.ckpt"), str(root), 7), "import")]
    left = root.exists() and list(map(str, root.iterdir()))
    import_step(source, str(root), 7, rename)
    fresh, fresh_optimizer = made(2)
    checkpoint.load({"model": fresh, "optim": fresh_optimizer}, root)
    texts.append(refusal(lambda: import_step(source, str(root), 7), "import"))
    texts.append(refusal(lambda: import_step(source, str(root), 8, [("^.*", "x")]), "import"))
    same = [
        torch.equal(first, second) for first, second in zip(fresh.parameters(), model.parameters())
    ]
    state = fresh_optimizer.state[fresh.weight]["exp_avg"]
    same.append(torch.equal(state, optimizer.state[model.weight]["exp_avg"]))
    return [texts, left, same, checkpoint.list_steps(root)]


class Code:
    """Runs code when it is unpickled by what allows it."""

    def __reduce__(self) -> Any:
        return (Path.touch, (FOLDER / "ran",))


def harmful() -> Any:
    """Files whose pickles run code, in each of the formats: named, and not run."""
    torch.save({"a": {"b": [Code()]}, "t": torch.ones(1)}, FOLDER / "harm.pt")
    torch.save({"a": Code()}, FOLDER / "harm.old", _use_new_zipfile_serialization=False)
    folder = FOLDER / "dcp"
    state = {"model": made(1)[0].state_dict(), "step": torch.tensor(3)}
    dcp.save_state_dict(state, dcp.FileSystemWriter(str(folder)), no_dist=True)
    import_step(str(folder), str(FOLDER / "from-dcp"), 1, allow_pickle=True)
    read = checkpoint.read(FOLDER / "from-dcp")
    same = torch.equal(read["model.weight"], state["model"]["weight"]) and int(read["step"]) == 3
    names = ("harm.pt", "harm.old", "dcp")
    texts = [refusal(lambda: checkpoint.read_plain(FOLDER / name)) for name in names]  # noqa: B023
    return [same, texts, (FOLDER / "ran").exists()]


def main() -> None:
    warnings.simplefilter("ignore")
    cases = (exported, refused_exports, imported, harmful)
    print("found", json.dumps({case.__name__: case() for case in cases}))


main()
