"""`provision env list` and `provision status`: what is on this machine, at a glance.

Reads a few small files per environment, so that a list of many comes at once: no package is
compared with the lock, and no tree is walked.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from provision.core import disk_usage, prefix_registry
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError
from provision.core.project import described_names, project_root
from provision.core.types import Prefix
from provision.environment import kernel as kernels
from provision.environment import marker
from provision.environment import passport as passports
from provision.environment.marker import Marker
from provision.environment.state import EnvironmentState, State, quick_state
from provision.workflow.change_journal import is_unfinished
from provision.workflow.context import Context

if TYPE_CHECKING:
    from provision.core.documents import Passport

ImageState = Literal["", "current", "stale"]
WORST = ("fail", "unknown", "warn", "pass")
UNREADABLE, OF_ANOTHER_LOCK = "unreadable", "of another lock"


@frozen
class SmokeVerdict:
    """The verdict of the smoke test in the prefix or the image, and the host of the test.

    elsewhere: where it was measured; empty if on this machine, with its present GPUs and driver.
    measured_at: seconds since 1970, None if not known.
    """

    target: str
    verdict: str
    host: str
    elsewhere: str
    measured_at: float | None


@frozen
class Environment:
    """One line of `provision env list`.

    project: its folder. reason: of the state, in words. size: bytes of the prefix when it was
    installed, None if nobody recorded them. installed_at: seconds since 1970. image: whether there is one, and whether it is
    of the present lock. image_size: bytes of its layout. smoke: the verdicts of the present lock in
    words, or why there are none. lock: the hash of the installed one.
    """

    project: Path
    name: str
    prefix: Path | None
    state: State
    reason: str
    size: int | None
    installed_at: float | None
    image: ImageState
    image_size: int
    kernel: bool
    smoke: str
    verdicts: tuple[SmokeVerdict, ...] = ()
    lock: str = ""


def environments(context: Context) -> list[Environment]:
    """Every environment of the envs folder, and every prefix of this user, by name."""
    installed: dict[str, tuple[Prefix, Marker]] = {}
    for name, path in prefix_registry.list_prefixes(context.folders).items():
        recorded = marker.read(path)
        if recorded is not None and recorded.name == name:
            installed[name] = recorded.prefix(path), recorded
    described = described_names(context.folders.envs)
    with_kernel = {kernel.prefix for kernel in kernels.list_kernels()}
    rows = []
    for name in sorted({*described, *installed}):
        prefix, of_prefix = installed.get(name, (None, None))
        has_kernel = prefix is not None and prefix.path in with_kernel
        rows.append(_environment(context, name, prefix, of_prefix, has_kernel=has_kernel))
    return rows


def environments_of_all(context: Context) -> list[Environment]:
    """The environments of all projects of this user, those of the present one first."""
    rows: list[Environment] = []
    for folders in prefix_registry.all_projects(context.folders):
        rows += environments(replace(context, folders=folders))
    return rows


def _environment(
    context: Context,
    name: str,
    prefix: Prefix | None,
    recorded: Marker | None,
    *,
    has_kernel: bool,
) -> Environment:
    folder = context.folders.envs / name
    passport: Passport | None = None
    try:
        passport = passports.find(context.folders, name)
        smoke, verdicts = _verdicts(prefix, passport)
    except IntegrityError as error:
        context.progress.warn(error.message)
        smoke, verdicts = UNREADABLE, ()
    state = quick_state(prefix, folder, vars(recorded) if recorded else None)
    if is_unfinished(context.folders, name):
        reason = f"a change is running, or was killed: `provision build {name}` undoes it"
        state = EnvironmentState(state="stale", reason=reason)
    installed_at = None
    if prefix is not None:
        installed_at = (prefix.path / marker.MARKER).stat().st_mtime
    layout = context.folders.images / name
    image = image_state(layout, prefix, passport)
    return Environment(
        project=project_root(context.folders.envs),
        name=name,
        prefix=prefix.path if prefix else None,
        state=state.state,
        reason=state.reason,
        size=(recorded and recorded.size) or None,
        installed_at=installed_at,
        image=image,
        image_size=disk_usage.measure(layout).size if image else 0,
        kernel=has_kernel,
        smoke=smoke,
        verdicts=verdicts,
        lock=prefix.lock_sha256 if prefix else "",
    )


def image_state(layout: Path, prefix: Prefix | None, passport: Passport | None) -> ImageState:
    """Whether there is an image, and whether it is of the same lock as the prefix."""
    if not layout.exists():
        return ""
    image = passport["image"] if passport else None
    if image is None or prefix is None or image["lock_sha256"] != prefix.lock_sha256:
        return "stale"
    return "current"


def _verdicts(
    prefix: Prefix | None, passport: Passport | None
) -> tuple[str, tuple[SmokeVerdict, ...]]:
    """The verdicts of the passport in words, and one by one.

    None for a prefix of another lock, or at another path than the passport's: nobody tested it.
    """
    if passport is None or prefix is None or passport["prefix"]["path"] != str(prefix.path):
        return "", ()
    if passport["lock"]["sha256"] != prefix.lock_sha256:
        return OF_ANOTHER_LOCK, ()

    verdicts = []
    for target, result in passports.verdicts(passport):
        elsewhere = passports.elsewhere(result)
        verdict = SmokeVerdict(
            target=target,
            verdict=result["verdict"],
            host=result["measured_on"]["host"],
            elsewhere=elsewhere,
            measured_at=passports.measured_at(result),
        )
        verdicts.append(verdict)
    # A list may show the first alone: this machine's, then the worst.
    verdicts.sort(key=lambda v: (v.target != "prefix", v.elsewhere != "", WORST.index(v.verdict)))
    texts = [f"{row.target}: {row.verdict} {row.elsewhere}".rstrip() for row in verdicts]
    return ", ".join(texts), tuple(verdicts)
