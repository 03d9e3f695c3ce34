"""What every command needs: its folders, progress display, solver and mirrors.

Also the error for an environment that does not exist, which most commands can raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.mirrors import MANIFEST, NO_MIRRORS, Mirrors, MirrorSetting
from provision.core.paths import Folders
from provision.core.project import described_names
from provision.core.similar_names import did_you_mean
from provision.core.types import Progress

# `matrix explain` needs only the errors below, and no solver.
if TYPE_CHECKING:
    from provision.adapters import conda
    from provision.render import Templates


def solver_of(configured: Sequence[MirrorSetting] = ()) -> Callable[[], conda.Solver]:
    """Gives one solver, made at its first use: few verbs need any."""

    @cache
    def solver() -> conda.Solver:
        from provision.adapters import conda

        return conda.Solver(mirrors_of(configured))

    return solver


@frozen
class Context:
    """Where a command works and how it reports.

    get_solver: gives the one that keeps what it reads of channels, for all that is solved.
    """

    folders: Folders
    progress: Progress
    get_solver: Callable[[], conda.Solver] = field(default_factory=solver_of)
    # Called with each line of a smoke test while it runs; None where nobody watches.
    on_smoke_line: Callable[[str], None] | None = None

    @property
    def solver(self) -> conda.Solver:
        return self.get_solver()

    @property
    def mirrors(self) -> Mirrors:
        return self.solver.mirrors

    @cached_property
    def templates(self) -> Templates:
        """Templates of generated files. Reports which of them are the lab's own."""
        from provision.render import Templates

        return Templates(self.folders.templates, self.progress.info)


@contextmanager
def reported_steps(progress: Progress) -> Iterator[list[str]]:
    """A list for the steps that are done. If an error or Ctrl-C ends the block, they are shown."""
    steps: list[str] = []
    try:
        yield steps
    except BaseException:
        if steps:
            progress.warn(f"done before this: {'; '.join(steps)}")
        raise


def mirrors_of(configured: Sequence[MirrorSetting]) -> Mirrors:
    """The configured mirrors. Their channel names and folders are looked up at first use."""
    if not configured:
        return NO_MIRRORS
    from provision.adapters import conda, http, uv

    def manifest(folder: str) -> str:
        settings = None if folder.startswith("file:") else uv.pip_settings()
        with http.HttpClient(settings) as web:
            return web.content(folder + MANIFEST).decode(errors="replace")

    return Mirrors(configured, channel_url=conda.channel_url, manifest=manifest)


def missing_file(path: Path, *, advice: str) -> InvalidSpec:
    """The error for a file of an environment that does not exist.

    If the environment does not exist either, the error says that instead.
    """
    if path.parent.is_dir():
        return InvalidSpec(f"There is no {path}.", advice=advice)
    envs = path.parents[1]
    name = path.parent.name
    return InvalidSpec(
        f"There is no environment `{name}` in {envs}.",
        advice=f"{existing_environments(envs, name)} --envs names another folder.",
    )


def require_spec(path: Path, options: Mapping[str, object]) -> None:
    """Raise InvalidSpec unless there is a spec.yml, or options that describe an environment."""
    if path.exists() or options.get("torch"):
        return
    error = missing_file(path, advice="")
    if "torch" in options:  # the verb has options for a spec
        error.advice += " Or describe the environment with --torch and --cuda."
    raise error


def existing_environments(envs: Path, mistyped: str = "") -> str:
    """A sentence with the names of all environments in a folder, after the one that may be meant by
    a name that is none of them."""
    names = described_names(envs)
    if not names:
        return "There are none yet: `provision build` makes one."
    return f"{did_you_mean(mistyped, names)}Environments: {', '.join(names)}."


def refuse_mistyped_name(folders: Folders, name: str) -> None:
    """Raise InvalidSpec for the name of no environment and no pack that is almost one's.

    For commands over nodes, where a name may also be known to the nodes only.
    """
    if (folders.envs / name).is_dir() or (folders.packs / name).is_dir():
        return
    packed = [path.name for path in folders.packs.glob("*")]
    question = did_you_mean(name, [*described_names(folders.envs), *packed])
    if question:
        raise InvalidSpec(
            f"There is no environment `{name}` here. {question.strip()}",
            advice=existing_environments(folders.envs),
        )


_warnings: set[str] = set()


def warn_once(context: Context, text: str) -> None:
    """Warn, unless this process has warned in these words before."""
    if text not in _warnings:
        _warnings.add(text)
        context.progress.warn(text)
