"""A query -> the table of the CUDA builds that fit it: torch x CUDA x source x platform. Pure.

`parse_query` reads the options of a query and reports every mistake in them at once.

A build fits if every part of the query is known to be met. If a fact is not known the build may
fit: it is counted, and shown only on request, marked. Whether a build fits is decided by
`constraints`; choosing one build is `select`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from provision import catalog, sources
from provision.catalog import Edition, Release
from provision.catalog.mismatches import Axis, Verdict
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.platforms import PLATFORM, Platform
from provision.core.spec_fields import QUERY_KEYS, Spec
from provision.core.types import BuildSource
from provision.resolver import constraints
from provision.resolver.spec import value_problem
from provision.sources.base import Candidate

# What builds of those releases, sources and platforms are judged by, and its value where a query says
# nothing of it.
OPEN: Mapping[Axis, Any] = {
    "cuda": "auto",
    "python": None,
    "driver": None,
    "gpu": (),
    "glibc": None,
}


@frozen
class Query:
    """The builds to show: from one of the sources, for one of the platforms (of any, if none is
    named), that meet the request and run on every GPU."""

    releases: tuple[Release, ...]
    request: Spec
    platforms: tuple[Platform, ...] = ()
    sources: tuple[BuildSource, ...] = ()
    unknown: bool = False  # also show what may fit

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis, value in OPEN.items() if getattr(self.request, axis) != value)


def parse_query(options: Mapping[str, Any]) -> Query:
    """A query from options.

    Raises InvalidSpec, and NoSuchBuild for a torch that the table does not have.
    """
    stated = {key.name: options[key.name] for key in QUERY_KEYS if options.get(key.name)}
    checked = [
        key for key in QUERY_KEYS if key.name in stated and (key.pattern or key.kind == "gpus")
    ]
    mistakes = list(filter(None, (value_problem(key, stated[key.name]) for key in checked)))
    if mistakes:
        raise InvalidSpec("\n".join(mistakes))
    releases = tuple(catalog.releases().values())
    if "torch" in stated:
        releases = catalog.matching_releases(stated["torch"])
    request = Spec(name="", torch="", cuda="auto", companions=False)
    versions = {key.name: stated[key.name] for key in checked if key.kind == "text"}
    return Query(
        releases=releases,
        request=replace(request, **versions, gpu=tuple(stated.get("gpu", ()))),
        platforms=tuple(stated.get("platform", ())),
        sources=tuple(stated.get("source", ())),
        unknown="unknown" in stated,
    )


# Fields of a row that have a build's values.
BUILD_FIELDS = (
    "cuda",
    "tag",
    "python",
    "python_seen",
    "free_threaded",
    "nccl",
    "nccl_is_package",
    "cudnn",
    "triton",
    "architectures",
    "ptx",
    "glibc",
)


@frozen
class TableRow:
    """One build on one platform. None: not known."""

    torch: str
    source: BuildSource
    cuda: str
    platform: Platform
    index_default: bool  # what a package index serves as plain torch==V
    tag: str
    python: tuple[str, ...] | None
    python_seen: tuple[str, ...]
    free_threaded: tuple[str, ...]  # 3.13t
    nccl: str | None
    nccl_at_least: str | None  # conda-forge, where the solver chooses
    nccl_is_package: bool
    cudnn: str | None
    cudnn_at_least: str | None
    triton: str | None
    driver: str | None  # the oldest that runs it
    architectures: tuple[str, ...] | None
    ptx: bool | None
    glibc: str | None
    torchvision: str | None
    torchaudio: str | None
    from_source: str  # the source of the fact that the build exists
    through_ptx: bool = False  # it reaches a GPU of the query only by compiling PTX
    not_known: tuple[str, ...] = ()  # parts of the query that no fact answers for it


@frozen
class Table:
    """The rows that fit, newest torch first; and how many more may fit, by the part of the query
    about which no fact is known."""

    cells: tuple[TableRow, ...]
    hidden: int
    hidden_by: dict[str, int]
    facts: Edition = field(default_factory=catalog.edition)


def build_table(query: Query) -> Table:
    """All builds that fit.

    Raises NoSuchBuild if there is none, and says which part of the query to give up.
    """
    possible = list(_possible_rows(query))
    rows = [row for row in possible if query.unknown or not row.not_known]
    hidden = [row for row in possible if row.not_known and not query.unknown]
    if not rows:
        raise _nothing_fits(query, hidden)
    hidden_by = Counter(part for row in hidden for part in row.not_known)
    return Table(cells=tuple(rows), hidden=len(hidden), hidden_by=dict(hidden_by))


def _possible_rows(query: Query) -> Iterator[TableRow]:
    """Builds that fit or may fit."""
    for candidate, platform in _builds(query):
        spec = replace(query.request, platforms=(platform,))
        verdicts: dict[Axis, Verdict] = {
            axis: constraints.verdict(candidate, spec, axis) for axis in query.axes
        }
        if "no" not in verdicts.values():
            unknown = tuple(axis for axis, verdict in verdicts.items() if verdict == "unknown")
            through_ptx = verdicts.get("gpu") == "ptx"
            yield _row(candidate, platform, through_ptx=through_ptx, not_known=unknown)


def _builds(query: Query) -> Iterator[tuple[Candidate, Platform]]:
    """The CUDA builds of the query's releases, sources and platforms; of a release source by
    source, newest CUDA first."""
    for release in reversed(query.releases):
        for source in sources.REGISTRY:
            if query.sources and source.name not in query.sources:
                continue
            for candidate in sources.candidates_of(release.version):
                if candidate.source is not source or candidate.build is None:
                    continue
                for platform in candidate.platforms:
                    if not query.platforms or platform in query.platforms:
                        yield candidate, platform


def _row(
    candidate: Candidate, platform: Platform, *, through_ptx: bool, not_known: tuple[str, ...]
) -> TableRow:
    release, build = candidate.release, candidate.build_for(platform)
    assert build is not None
    toolkit = catalog.toolkits().get(build.cuda)
    companions = {
        companion.name: companion.version for companion in candidate.source.companions(release)
    }
    return TableRow(
        torch=release.version,
        source=candidate.source.name,
        platform=platform,
        index_default=build.on_pypi,
        nccl_at_least=build.nccl_floor,
        cudnn_at_least=build.cudnn_floor,
        driver=toolkit.driver_floor if toolkit and platform == PLATFORM else None,
        torchvision=companions["torchvision"],
        torchaudio=companions["torchaudio"],
        from_source=build.source,
        through_ptx=through_ptx,
        not_known=not_known,
        **{name: getattr(build, name) for name in BUILD_FIELDS},
    )


def _nothing_fits(query: Query, hidden: Sequence[TableRow]) -> NoSuchBuild:
    """Advice which part of the query to give up: each one that alone is enough."""
    advice = []
    if hidden:
        parts = ", ".join(sorted({part for row in hidden for part in row.not_known}))
        advice.append(f"{len(hidden)} might ({parts} not known): show them with --unknown.")
    relaxed: dict[str, Query] = {}
    for axis in query.axes:
        relaxed[axis] = replace(query, request=replace(query.request, **{axis: OPEN[axis]}))
    if query.platforms:
        relaxed["platform"] = replace(query, platforms=())
    if query.sources:
        relaxed["source"] = replace(query, sources=())
    for option, other in relaxed.items():
        fitting = sum(not row.not_known for row in _possible_rows(other))
        if fitting:
            advice.append(f"Without --{option}, {fitting} do.")
    if not advice:
        advice.append("Giving up one of them is not enough.")
    if "cuda" in query.axes:
        for gpu in map(catalog.find_gpu, query.request.gpu):
            compiled, _ = catalog.cuda_range(gpu)
            if compiled:
                advice.append(f"{gpu.described}, {compiled}.")
    return NoSuchBuild(
        f"No build in the table (facts of {catalog.edition().date}) is known to fit all of that.",
        advice=" ".join(advice),
    )
