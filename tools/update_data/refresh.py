"""One refresh: reads the index, makes rows of it, and compares them with the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.version import Version

from provision.adapters.uv.linux_wheels import WheelIndex
from provision.core.errors import NoSuchBuild
from provision.workflow.index_facts import Pins, TorchIndex
from update_data.architectures import add_architectures
from update_data.companions import add_companions
from update_data.compare import Findings, Row, compare, rows_of, unproven


def refresh(
    index: WheelIndex,
    table: Mapping[str, Any],
    only: Sequence[str] = (),
    architectures: bool = False,
) -> Findings:
    """All that the index says about the releases of the table and newer ones, compared with the
    table.

    architectures: also read the library in each CUDA wheel that lists what it was compiled for;
    some 10 MB each, not the wheel.
    """
    findings = Findings()
    torch_index = TorchIndex(index)
    selected = _selected_releases(torch_index.releases, table, only)
    rows: list[Row] = []
    for release in selected:
        wheels = table.get(release, {}).get("wheels", {})
        tags = [tag for tag, build in wheels.items() if not build["on_pypi"]]
        row = torch_index.release(release, tags)
        add_companions(row, torch_index, release)
        if architectures:
            add_architectures(row, torch_index, release)
        rows += rows_of(release, row)
        findings.conflicts += disagreements(release, torch_index.pins[release])
    findings.unread += torch_index.unread
    compare(rows, table, findings)
    unread = {line.split()[0] for line in findings.unread}
    read = [release for release in selected if release in table and release not in unread]
    unproven(table, rows, read, findings, architectures)
    return findings


def _selected_releases(
    on_index: Sequence[str], table: Mapping[str, Any], only: Sequence[str]
) -> list[str]:
    """Releases of the table and newer ones: a person left out one that is older and not in the
    table."""
    newest = max(map(Version, table))
    known = []
    for release in dict.fromkeys([*table, *on_index]):
        if release in table or Version(release) > newest:
            known.append(release)
    missing = [release for release in only if release not in known and release not in on_index]
    if missing:
        raise NoSuchBuild(
            f"torch {', '.join(missing)} is neither on the index nor in the table.",
            advice=f"The index has {', '.join(on_index)}.",
        )
    return sorted(only or known, key=Version)


def disagreements(release: str, pins_by_platform: Mapping[str, Pins]) -> list[str]:
    """Where the two machines' wheels pin different versions: the table states a build's pins once."""
    versions = set()
    for pins in pins_by_platform.values():
        if pins.cuda:
            versions.add((pins.cuda, pins.nccl, pins.cudnn))
    if len(versions) < 2:
        return []
    listing = "; ".join(
        f"{platform}: CUDA {pins.cuda}, NCCL {pins.nccl}, cuDNN {pins.cudnn}"
        for platform, pins in pins_by_platform.items()
    )
    return [
        f"{release}: the index's wheels differ by machine, and the table has one row for both ({listing})"
    ]
