"""Many environments in one process: one that fails does not stop the others, and the summary says which did."""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from provision.errors import InvalidSpec, ProvisionError
from provision.model import MeterContext, Outcome, Progress
from provision.pipeline import image as images
from provision.pipeline import lock as locks
from provision.pipeline import render
from provision.workflows.keep import lock_only, render_only
from provision.workflows.plan import Context, Plan, Wish, plan
from provision.workflows.preview import lock_preview

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
            f"There is no */{render.SPEC} in {context.where.envs}.", advice="`provision render --torch … --cuda …` begins one."
        )
    return found


def lock_all(context: Context, wishes: Sequence[Wish], *, dry_run: bool = False) -> list[Outcome]:
    """`provision lock --all`: the lock of each, several at a time, in the order of the wishes."""

    def lock(alone: Context, wish: Wish) -> Outcome:
        started = time.monotonic()
        if dry_run:
            packages = lock_preview(alone, wish)
            return Outcome(name=str(wish.name), status="true", detail=f"{len(packages)} packages", seconds=time.monotonic() - started)
        wanted, made, anew = lock_only(alone, wish)
        told = f"{len(made.packages)} packages" + ("" if made.portable else ", not portable")
        return Outcome(name=wanted.name, status="made" if anew else "kept", detail=told, seconds=time.monotonic() - started)

    return _each(context, wishes, lock)


def render_all(context: Context, wishes: Sequence[Wish]) -> list[Outcome]:
    """`provision render --all`: the generated files of each."""

    def write(alone: Context, wish: Wish) -> Outcome:
        started = time.monotonic()
        written = render_only(alone, wish)
        told = f"wrote {', '.join(written)}" if written else "all files are as rendered"
        return Outcome(name=str(wish.name), status="made" if written else "kept", detail=told, seconds=time.monotonic() - started)

    return _each(context, wishes, write)


def check_all(context: Context, wishes: Sequence[Wish]) -> list[Outcome]:
    """`provision render --check`: whether each environment's files are what its spec.yml renders, and its lock is made from them."""

    def compare(alone: Context, wish: Wish) -> Outcome:
        started = time.monotonic()
        wanted = plan(alone, dataclasses.replace(wish, force=True))
        texts = rendered(wanted)
        pending = render.pending(wanted.folder, texts)
        diff = "".join(line for name in pending for line in difference(wanted.folder / name, texts[name]))
        stale = [locks.FILE + " (stale)"] if wanted.lock and not wanted.lock_is_current else []
        status: Literal["true", "differs"] = "differs" if pending or stale else "true"
        told = ", ".join(pending + stale) or "as rendered"
        seconds = time.monotonic() - started
        return Outcome(name=wanted.name, status=status, detail=told, seconds=seconds, exit_code=int(status == "differs"), diff=diff)

    return _each(context, wishes, compare)


def rendered(wanted: Plan) -> dict[str, str]:
    """Every generated file of an environment; the Dockerfile belongs to a lock, so it is there with one that is current."""
    if wanted.lock is None or not wanted.lock_is_current:
        return dict(wanted.texts)
    return {**wanted.texts, **render.render_dockerfile(wanted.name, images.dockerfile_context(wanted.resolution, wanted.lock))}


def difference(path: Path, text: str) -> Iterator[str]:
    """A unified diff from a file as it stands to its text as rendered."""
    before = render.read(path) if path.exists() else ""
    return difflib.unified_diff(before.splitlines(keepends=True), text.splitlines(keepends=True), str(path), f"{path} (as rendered)")


def _each(context: Context, wishes: Sequence[Wish], work: Callable[[Context, Wish], Outcome]) -> list[Outcome]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(_one, context, wish, work) for wish in wishes]
        try:
            return [future.result() for future in running]
        except BaseException:  # Ctrl-C: what has not begun does not begin
            _cancel(running)
            raise


def _cancel(running: Sequence[Future[Outcome]]) -> None:
    for future in running:
        future.cancel()


def _one(context: Context, wish: Wish, work: Callable[[Context, Wish], Outcome]) -> Outcome:
    started = time.monotonic()
    name = wish.name or " ".join(f"{key} {value}" for key, value in wish.options.items() if value)
    try:
        return work(dataclasses.replace(context, progress=Named(name, context.progress)), wish)
    except ProvisionError as error:
        said = " ".join(str(error).split())
        return Outcome(name=name, status="failed", detail=said, seconds=time.monotonic() - started, exit_code=error.exit_code)
