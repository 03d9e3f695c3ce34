"""Many environments in one process: one that fails does not stop the others, and the summary says which did."""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import lockfile as locks
from provision import render
from provision.catalog import minor, version_key
from provision.commands.ensure import dockerfile_texts, lock_only, render_only
from provision.commands.plan import BuildRequest, Context, Plan, name_of, plan
from provision.commands.preview import lock_preview, render_preview
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.process import terminate_children
from provision.core.types import (
    PLATFORM,
    PLATFORMS,
    BuildSource,
    MeterContext,
    Outcome,
    Platform,
    Progress,
)
from provision.resolver.query import parse_query
from provision.resolver.table import build_table

# Solving is the work of rattler's threads and of uv's process; more of ours only take memory.
AT_ONCE = 4


class Named:
    """Progress of one environment among many: each line says whose it is; bars of many at once would be no help."""

    def __init__(self, name: str, told: Progress) -> None:
        self._name, self._told = name, told

    def say(self, text: str) -> None:
        self._told.say(f"{self._name}: {text}")

    def warn(self, text: str) -> None:
        self._told.warn(f"{self._name}: {text}")

    def meter(self, title: str, total: int) -> MeterContext:
        return Silent()


class Silent:
    """A meter that nobody watches."""

    def __enter__(self) -> Silent:
        return self

    def advance(self, amount: int) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


def named(context: Context) -> list[str]:
    """Every environment of the envs folder that has a spec. Raises InvalidSpec where there is none."""
    found = sorted(path.parent.name for path in context.where.envs.glob(f"*/{render.SPEC}"))
    if not found:
        raise InvalidSpec(
            f"There is no */{render.SPEC} in {context.where.envs}.",
            advice="`provision render --torch … --cuda …` begins one.",
        )
    return found


@dataclass(frozen=True, kw_only=True)
class MatrixBuild:
    """A build of the table that is to become an environment, for all platforms asked for that have it."""

    torch: str
    cuda: str
    source: BuildSource
    platforms: tuple[Platform, ...]


def matrix_builds(asked: Mapping[str, Any]) -> list[MatrixBuild]:
    """The builds of the table that fit, oldest torch and CUDA first."""
    found: dict[tuple[str, str, BuildSource], list[Platform]] = {}
    newest_first = build_table(parse_query(asked)).cells
    for cell in sorted(
        newest_first, key=lambda cell: (version_key(cell.torch), version_key(cell.cuda))
    ):
        found.setdefault((cell.torch, cell.cuda, cell.source), []).append(cell.platform)
    return [
        MatrixBuild(
            torch=torch,
            cuda=cuda,
            source=source,
            platforms=tuple(sorted(platforms, key=PLATFORMS.index)),
        )
        for (torch, cuda, source), platforms in found.items()
    ]


def matrix_requests(asked: Mapping[str, Any], *, newest: bool, relock: bool) -> list[BuildRequest]:
    """A request for every build that fits; on linux-64 unless platforms are asked for, or a spec.yml of that name says others.

    newest: of each minor release only its newest patch.
    """
    builds = matrix_builds({**asked, "platform": asked.get("platform") or (PLATFORM,)})
    if newest:
        latest = {(minor(build.torch), build.cuda, build.source): build.torch for build in builds}
        builds = [
            build
            for build in builds
            if latest[minor(build.torch), build.cuda, build.source] == build.torch
        ]
    kept = {
        name: asked.get(name)
        for name in (
            "python",
            "nccl",
            "glibc",
            "driver",
            "gpu",
            "companions",
            "jupyter",
            "fast_checkpoints",
        )
    }
    return [
        BuildRequest(
            options={
                "torch": build.torch,
                "cuda": build.cuda,
                "source": build.source,
                "platforms": build.platforms if asked.get("platform") else (),
                **kept,
            },
            relock=relock,
        )
        for build in builds
    ]


def lock_all(
    context: Context, requests: Sequence[BuildRequest], *, dry_run: bool = False
) -> list[Outcome]:
    """`provision lock --all` and `provision matrix lock`: the lock of each, several at a time, in the order of the requests."""
    return _each(context, requests, _solved if dry_run else _locked)


def _solved(context: Context, request: BuildRequest, name: str) -> Outcome:
    return Outcome(
        name=name, status="solved", detail=f"{len(lock_preview(context, request))} packages"
    )


def _locked(context: Context, request: BuildRequest, name: str) -> Outcome:
    _, made, anew = lock_only(context, request)
    told = f"{len(made.packages)} packages" + ("" if made.portable else ", not portable")
    return Outcome(name=name, status="made" if anew else "kept", detail=told)


def render_all(
    context: Context, requests: Sequence[BuildRequest], *, dry_run: bool = False
) -> list[Outcome]:
    """`provision render --all`: the generated files of each."""
    return _each(context, requests, _to_write if dry_run else _written)


def _to_write(context: Context, request: BuildRequest, name: str) -> Outcome:
    wanted, files = render_preview(context, request)
    told = (
        f"would write {', '.join(files)} in {wanted.folder}"
        if files
        else "nothing to write: all files are as rendered"
    )
    return Outcome(name=name, status="pending" if files else "kept", detail=told)


def _written(context: Context, request: BuildRequest, name: str) -> Outcome:
    written = render_only(context, request)
    told = f"wrote {', '.join(written)}" if written else "all files are as rendered"
    return Outcome(name=name, status="made" if written else "kept", detail=told)


def check_all(context: Context, requests: Sequence[BuildRequest]) -> list[Outcome]:
    """`provision render --all --check`: for each what `check` says."""
    return _each(context, requests, lambda alone, request, name: check(alone, request))


def check(context: Context, request: BuildRequest) -> Outcome:
    """`provision render --check`: whether an environment's files are what its spec.yml renders, and its lock is made from them."""
    wanted = plan(context, dataclasses.replace(request, force=True))
    texts = rendered(wanted)
    pending = render.pending(wanted.folder, texts)
    diff = "".join(
        line for name in pending for line in difference(wanted.folder / name, texts[name])
    )
    stale = [f"{locks.FILE} (stale)"] if wanted.lock and not wanted.lock_is_current else []
    if not pending and not stale:
        return Outcome(name=wanted.name, status="current", detail="as rendered")
    return Outcome(
        name=wanted.name,
        status="differs",
        detail=", ".join(pending + stale),
        exit_code=1,
        diff=diff,
    )


def rendered(wanted: Plan) -> dict[str, str]:
    """Every generated file of an environment; the Dockerfile belongs to a lock, so it is there with one that is current."""
    if wanted.lock is None or not wanted.lock_is_current:
        return dict(wanted.texts)
    return {**wanted.texts, **dockerfile_texts(wanted, wanted.lock)}


def difference(path: Path, text: str) -> Iterator[str]:
    """A unified diff from a file as it stands to its text as rendered."""
    before = render.read(path) if path.exists() else ""
    return difflib.unified_diff(
        before.splitlines(keepends=True),
        text.splitlines(keepends=True),
        str(path),
        f"{path} (as rendered)",
    )


def _each(
    context: Context,
    requests: Sequence[BuildRequest],
    work: Callable[[Context, BuildRequest, str], Outcome],
) -> list[Outcome]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(_one, context, request, work) for request in requests]
        try:
            return [future.result() for future in running]
        except (
            BaseException
        ):  # Ctrl-C: what has not begun does not begin, and what uv does for the others ends
            for future in running:
                future.cancel()
            terminate_children()
            raise


def _one(
    context: Context, request: BuildRequest, work: Callable[[Context, BuildRequest, str], Outcome]
) -> Outcome:
    started = time.monotonic()
    name = request.name or " ".join(
        str(request.options[key]) for key in ("torch", "cuda", "source") if request.options.get(key)
    )
    try:
        name = name_of(context, request)
        done = work(
            dataclasses.replace(context, progress=Named(name, context.progress)), request, name
        )
    except ProvisionError as error:
        done = Outcome(
            name=name,
            status="failed",
            detail=" ".join(str(error).split()),
            exit_code=error.exit_code,
        )
    return dataclasses.replace(done, seconds=time.monotonic() - started)
