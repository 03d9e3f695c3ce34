"""Which cell a spec means: the newest release that satisfies everything, of that the newest CUDA, of that the source that `auto`
means. What `auto`, `latest`, ranges and half versions come to is settled here, so that nothing moves later."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

from provision import catalog
from provision.core.errors import InvalidSpec
from provision.core.types import Machine, Spec
from provision.resolver import constraints, python_versions
from provision.resolver.candidate import Cell, cells_of

# A release or a minor release by number: a choice of its own, which spec.yml keeps and which names the environment.
NUMBER = re.compile(r"\d+\.\d+(\.\d+)?")


def choose(spec: Spec, machine: Machine) -> Cell | None:
    """The cell that a spec means, or None where there is none."""
    there = described(spec, machine)
    return _newest_for(there) if spec.cuda == "auto" else next(_best(there), None)


def described(spec: Spec, machine: Machine) -> Spec:
    """The spec with the machine that `auto` is for: the one it describes, else the one that was asked."""
    if spec.cuda != "auto" or spec.gpu or spec.driver:
        return spec
    if not machine.gpus:
        raise InvalidSpec(
            f"--cuda auto needs a GPU and its driver: {machine.why or 'nothing is known of this machine'}.",
            advice="Name them, e.g. --gpu H100 --driver 535; or give --cuda X.Y, or --cpu for machines without GPUs.",
        )
    return dataclasses.replace(spec, gpu=machine.gpus, driver=machine.driver)


def settle(spec: Spec, cell: Cell) -> Spec:
    """The spec with what was left open made exact, so that it means this cell on every machine."""
    torch = spec.torch if NUMBER.fullmatch(spec.torch) else cell.release.version
    exact = dataclasses.replace(
        spec, torch=torch, cuda=cell.cuda, python=python_versions.chosen(cell, spec)
    )
    if next(_best(exact), None) is not cell:  # auto went by a machine that the spec does not name
        exact = dataclasses.replace(exact, source=cell.source)
    return dataclasses.replace(exact, name=spec.name or _name(spec, exact, cell))


def _name(spec: Spec, exact: Spec, cell: Cell) -> str:
    """Semantic, from what was asked for; a source other than the one that the release and CUDA alone lead to is part of it, and
    so is a machine that is not the usual one."""
    torch = spec.torch if NUMBER.fullmatch(spec.torch) else cell.release.version
    if catalog.means_minor(spec.torch, cell.release.minor):
        torch = cell.release.minor
    parts = [
        f"torch{torch}",
        f"cuda{cell.cuda}" if cell.cuda else "cpu",
        f"py{(exact.python or '').replace('.', '')}",
    ]
    plain = dataclasses.replace(
        exact, source="auto", torch=torch, nccl=None, cudnn=None, gpu=(), driver=None, glibc=None
    )
    usual = next(_best(plain), None)
    parts += [] if usual and usual.source == cell.source else [cell.source]
    return "-".join(parts + ([] if "linux-64" in spec.platforms else ["aarch64"]))


def _best(spec: Spec) -> Iterator[Cell]:
    """The cells that a spec may mean, newest release and CUDA first; of each the one from the source that `auto` means, which is
    another one only where a machine is described on which that would not run as it is."""
    meant = (
        cell
        for version in reversed(constraints.releases_of(spec.torch))
        for cell in cells_of(version)
    )
    as_asked = (
        cell
        for cell in meant
        if all(constraints.passes(cell, spec, axis) for axis in constraints.CHANGEABLE)
    )
    for _, alike in itertools.groupby(as_asked, key=lambda cell: (cell.release.version, cell.cuda)):
        rivals = sorted(alike, key=lambda cell: cell.preference(spec.platforms)[0])
        if found := _runs_best(rivals, spec):
            yield found


def _runs_best(rivals: Sequence[Cell], spec: Spec) -> Cell | None:
    """Of builds alike, in the order of `auto`: the first against which nothing stands on the machine, else the first that may do."""
    against = {cell: list(constraints.on_machine(cell, spec)) for cell in rivals}
    plainly = (cell for cell, found in against.items() if not found)
    perhaps = (
        cell
        for cell, found in against.items()
        if not any(one.rules_out or (one.unlikely and cell is not rivals[0]) for one in found)
    )
    return next(itertools.chain(plainly, perhaps), None)


def _newest_for(there: Spec) -> Cell | None:
    """The newest release with a CUDA that the machine runs, and of that the newest CUDA of which this is known."""
    may_be: Cell | None = None
    for cell in _best(there):
        if may_be is not None and cell.release is not may_be.release:
            break
        if not any(constraints.on_machine(cell, there)):
            return cell
        may_be = may_be or cell
    return may_be
