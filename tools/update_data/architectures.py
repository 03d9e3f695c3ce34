"""The GPU architectures that CUDA wheels were compiled for, from the libraries in them."""

from __future__ import annotations

import re

from provision.workflow.index_facts import MACHINES, Row, TorchIndex, of_machine, specimen

# The library that holds what torch.cuda.get_arch_list() returns: "sm_80 sm_90 compute_90", where
# compute_ is PTX.
ARCHITECTURES_IN = "torch/lib/libtorch_python.so"
_ARCHITECTURES = re.compile(rb"(?:sm|compute)_\d+[af]?(?: (?:sm|compute)_\d+[af]?)+(?=\0)")


def add_architectures(row: Row, index: TorchIndex, version: str) -> None:
    """Read the library of the index's CUDA wheel on each platform into a release's row."""
    for platform, pins in index.pins[version].items():
        wheel = specimen(of_machine(index.torch, version, MACHINES[platform]))
        if wheel is None or not pins.cuda:
            continue
        default = row["index_default"][platform]
        library_row = row["wheels"][default["build"]] if platform == "linux-64" else default
        _, contents = index.index.members(wheel, ARCHITECTURES_IN)
        architectures = compiled_for(version, wheel.machine, b"".join(contents))
        if architectures:
            library_row["architectures"] = architectures
        else:
            index.unread.append(f"{version} {platform}: the GPU architectures in {wheel.name}")


def compiled_for(version: str, machine: str, library: bytes) -> Row | None:
    """The GPU architectures that a CUDA wheel was compiled for, from the library itself."""
    lists = set(_ARCHITECTURES.findall(library))
    if len(lists) != 1:
        return None
    names = lists.pop().decode().split()
    source = f"PyPI wheel torch=={version} (linux {machine}): the list in {ARCHITECTURES_IN}"
    return {
        "sm": [name for name in names if name.startswith("sm_")],
        "ptx": any(name.startswith("compute_") for name in names),
        "source": source,
    }
