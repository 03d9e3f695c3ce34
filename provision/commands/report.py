"""`provision report`: passports and smoke reports -> one page for people, and putting it in its place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from provision import render, report
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, StaleLock
from provision.environment import passport
from provision.report import Page

ALONE = "report.json"


def gather(envs: Path, targets: Sequence[str]) -> Page:
    """What the page says of these environments, passports, smoke reports or folders that hold one. Each is taken once."""
    paths = dict.fromkeys(_evidence_of(envs, target) for target in targets)
    return report.page([report.read(path) for path in paths])


def _evidence_of(envs: Path, target: str) -> Path:
    """The file that is meant: of an environment's name its passport, of a folder what it holds."""
    named, given = envs / target / passport.FILE, Path(target)
    if named.is_file():
        return named
    if given.is_dir():
        return next(
            (given / name for name in (passport.FILE, ALONE) if (given / name).is_file()), given
        )
    if given.exists():
        return given
    made = ", ".join(sorted(path.parent.name for path in envs.glob(f"*/{passport.FILE}"))) or "none"
    raise InvalidSpec(
        f"There is no passport of an environment `{target}`, and no such file.",
        advice=f"Passports in {envs}: {made}. A passport.json or a smoke test's report.json can be named too.",
    )


def written(page: Page, remake: Sequence[str]) -> str:
    """The page as HTML. remake: the command that makes it again."""
    return render.render_report(report.values(page), remake=remake)


def write(path: Path, text: str, *, force: bool) -> None:
    """Put the page in its place. Raises StaleLock for a file that is not ours."""
    if path.is_dir():
        raise InvalidSpec(f"{path} is a folder.", advice="Name a file, such as report.html.")
    if path.exists() and not force and not render.is_report(path):
        raise StaleLock(
            f"{path} is not a page that provision made.",
            advice="Name another file with --output, or replace it with --force.",
        )
    atomic_write(path, text)
