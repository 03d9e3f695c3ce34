"""The sources of PyTorch builds, one module each, and the candidates that they offer.

To add a source: write its module (a class with the methods of `base.Source`; a conda channel
derives from `CondaChannelSource`) and name it in `REGISTRY`. CONTRIBUTING.md lists the other files.
"""

from __future__ import annotations

from provision import catalog
from provision.catalog import version_key
from provision.core.errors import InvalidSpec
from provision.core.spec_fields import SpecKey
from provision.sources.base import Candidate, Source
from provision.sources.conda_forge import CondaForge
from provision.sources.pypi_wheels import PypiWheels
from provision.sources.pytorch_channel import PytorchChannel

# What a request says that leaves the choice of the source to us.
AUTO = "auto"
# In the order in which the table lists them; `Source.preference` decides what `auto` means.
REGISTRY: tuple[Source, ...] = (PypiWheels(), PytorchChannel(), CondaForge())


def names() -> tuple[str, ...]:
    return tuple(source.name for source in REGISTRY)


def by_name(name: str) -> Source:
    """The source of that name. Raises InvalidSpec if the registry has none."""
    for source in REGISTRY:
        if source.name == name:
            return source
    raise InvalidSpec(
        f"`{name}` is not a source of builds.", advice=f"The sources are {', '.join(names())}."
    )


def allowed_choices(key: SpecKey) -> tuple[str, ...]:
    """The values of a key that has only some."""
    if key.kind == "source":
        return (AUTO, *names())
    if key.kind == "sources":
        return names()
    return key.choices


@catalog.cached
def candidates() -> tuple[Candidate, ...]:
    """Every build: newest release first, of a release newest CUDA first and CPU last."""
    newest_first: list[Candidate] = []
    for version in reversed(catalog.releases()):
        newest_first.extend(candidates_of(version))
    return tuple(newest_first)


@catalog.cached
def candidates_of(version: str) -> tuple[Candidate, ...]:
    """Every build of one release: newest CUDA first, CPU last; of one CUDA in the order of the
    registry."""
    release = catalog.releases()[version]
    for_gpus, for_cpus = [], []
    for source in REGISTRY:
        builds = source.builds(release)
        for_gpus += [Candidate(release=release, source=source, build=build) for build in builds]
        if builds:
            for_cpus.append(Candidate(release=release, source=source, build=None))
    for_gpus.sort(key=lambda candidate: version_key(candidate.cuda or "0"), reverse=True)
    return (*for_gpus, *for_cpus)
