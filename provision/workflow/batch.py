"""One command for many environments; one that fails does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from provision import render as renderer
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.process import run_in_threads
from provision.core.types import EnvironmentOutcome, MeterContext, Progress
from provision.workflow import lock as lock_command
from provision.workflow import render as render_command
from provision.workflow.context import Context, reported_steps
from provision.workflow.plan import BuildRequest, with_name

# Solving runs in rattler's threads and in uv's process; more threads of ours would only take
# memory.
THREADS = 4


class PrefixedProgress:
    """Progress of one environment among many: each line starts with its name.

    No bars: many at once would be unreadable.
    """

    def __init__(self, name: str, progress: Progress) -> None:
        self._name, self._progress = name, progress

    def info(self, text: str) -> None:
        self._progress.info(f"{self._name}: {text}")

    def warn(self, text: str) -> None:
        self._progress.warn(f"{self._name}: {text}")

    @property
    def shows_bars(self) -> bool:
        return False

    def meter(self, title: str, total: int) -> MeterContext:
        return SilentMeter()


class SilentMeter:
    """A meter that shows nothing."""

    def __enter__(self) -> SilentMeter:
        return self

    def advance(self, amount: int) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


def environment_names(context: Context) -> list[str]:
    """Every environment of the envs folder that has a spec. Raises InvalidSpec if there is none."""
    envs = context.folders.envs
    names = sorted(path.parent.name for path in envs.glob(f"*/{renderer.SPEC}"))
    if not names:
        raise InvalidSpec(
            f"There is no environment in {envs} (*/{renderer.SPEC}).",
            advice="`provision render --torch 2.3 --cuda 12.1` makes one; --envs names another "
            "folder.",
        )
    return names


def lock_all(
    context: Context, requests: Sequence[BuildRequest], *, dry_run: bool = False
) -> list[EnvironmentOutcome]:
    """Several locks at a time; the outcomes are in the order of the requests."""

    def work(context: Context, request: BuildRequest, name: str) -> EnvironmentOutcome:
        if dry_run:
            packages = lock_command.preview(context, request).packages
            detail = f"{len(packages)} packages"
            return EnvironmentOutcome(name=name, status="solved", detail=detail)
        lock, is_new = lock_command.lock(context, request)
        detail = f"{len(lock.packages)} packages"
        if not lock.portable:
            detail += ", not portable"
        return EnvironmentOutcome(name=name, status="made" if is_new else "kept", detail=detail)

    return _run_all(context, requests, work)


def render_all(
    context: Context, requests: Sequence[BuildRequest], *, dry_run: bool = False
) -> list[EnvironmentOutcome]:
    """`provision render --all`: the generated files of each environment."""

    def work(context: Context, request: BuildRequest, name: str) -> EnvironmentOutcome:
        if dry_run:
            plan, files = render_command.preview(context, request)
            detail = f"would write {', '.join(files)} in {plan.folder}"
        else:
            files = render_command.render(context, request)
            detail = f"wrote {', '.join(files)}"
        if not files:
            return EnvironmentOutcome(name=name, status="kept", detail="all files are as rendered")
        return EnvironmentOutcome(name=name, status="pending" if dry_run else "made", detail=detail)

    return _run_all(context, requests, work)


def check_all(context: Context, requests: Sequence[BuildRequest]) -> list[EnvironmentOutcome]:
    """`provision render --all --check`: for each environment what `check` says."""
    return _run_all(
        context, requests, lambda context, request, name: render_command.check(context, request)
    )


def _run_all(
    context: Context,
    requests: Sequence[BuildRequest],
    work: Callable[[Context, BuildRequest, str], EnvironmentOutcome],
) -> list[EnvironmentOutcome]:
    with reported_steps(context.progress) as steps:

        def outcome_of(request: BuildRequest) -> EnvironmentOutcome:
            outcome = _outcome(context, request, work)
            if outcome.status == "made":
                steps.append(f"{outcome.name}: {outcome.detail}")
            return outcome

        return run_in_threads(outcome_of, requests, THREADS)


def _outcome(
    context: Context,
    request: BuildRequest,
    work: Callable[[Context, BuildRequest, str], EnvironmentOutcome],
) -> EnvironmentOutcome:
    started = time.monotonic()
    name = request.name or " ".join(
        str(request.options[key]) for key in ("torch", "cuda", "source") if request.options.get(key)
    )
    try:
        request = with_name(context, request)
        assert request.name is not None
        name = request.name
        progress = PrefixedProgress(name, context.progress)
        outcome = work(replace(context, progress=progress), request, name)
    except ProvisionError as error:
        outcome = EnvironmentOutcome(
            name=name,
            status="failed",
            detail=" ".join(str(error).split()),
            exit_code=error.exit_code,
        )
    return replace(outcome, seconds=time.monotonic() - started)
