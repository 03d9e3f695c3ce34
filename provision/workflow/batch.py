"""`provision lock --all`: one environment that fails does not stop the others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from provision import render as renderer
from provision.core.errors import InvalidSpec, ProvisionError
from provision.core.process import run_in_threads
from provision.core.types import EnvironmentOutcome, MeterContext, Progress
from provision.workflow import lock as lock_command
from provision.workflow.context import Context, reported_steps
from provision.workflow.plan import BuildRequest

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

    def meter(self, title: str, total: int) -> MeterContext:
        return SilentMeter()


class SilentMeter:
    """A meter that shows nothing."""

    def __enter__(self) -> SilentMeter:
        return self

    def advance(self, amount: int) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


def environment_names(
    context: Context,
    file: str = renderer.SPEC,
    maker: str = "provision render --torch 2.3 --cuda 12.1",
) -> list[str]:
    """Every environment of the envs folder that has a file. maker: a command that makes one. Raises
    InvalidSpec if there is none."""
    envs = context.folders.envs
    names = sorted(path.parent.name for path in envs.glob(f"*/{file}"))
    if not names:
        raise InvalidSpec(
            f"There is no environment with a {file} in {envs}.",
            advice=f"`{maker}` makes one; --envs names another folder.",
        )
    return names


def lock_all(
    context: Context, requests: Sequence[BuildRequest], *, dry_run: bool = False
) -> list[EnvironmentOutcome]:
    """Several locks at a time; the outcomes are in the order of the requests."""
    with reported_steps(context.progress) as steps:

        def outcome_of(request: BuildRequest) -> EnvironmentOutcome:
            name = request.name or ""
            started = time.monotonic()
            quiet_context = replace(context, progress=PrefixedProgress(name, context.progress))
            exit_code = 0
            status: Literal["made", "kept", "solved", "failed"] = "solved"
            try:
                if dry_run:
                    packages = lock_command.preview(quiet_context, request).packages
                    detail = f"{len(packages)} packages"
                else:
                    lock, is_new = lock_command.lock(quiet_context, request)
                    status = "made" if is_new else "kept"
                    detail = f"{len(lock.packages)} packages"
                    detail += "" if lock.portable else ", not portable"
            except ProvisionError as error:
                status, exit_code = "failed", error.exit_code
                detail = " ".join(str(error).split())
            if status == "made":
                steps.append(f"{name}: {detail}")
            return EnvironmentOutcome(
                name=name,
                status=status,
                detail=detail,
                seconds=time.monotonic() - started,
                exit_code=exit_code,
            )

        return run_in_threads(outcome_of, requests, THREADS)
