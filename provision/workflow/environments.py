"""`provision env list` and `provision status`: what is on this machine, at a glance.

Reads a few small files per environment, so that a list of many comes at once: no package is
compared with the lock, and no tree is walked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from provision.core import disk_usage, host, prefix_registry
from provision.core.documents import Passport
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.paths import LOCK, SPEC
from provision.core.spec_fields import SPEC_KEYS
from provision.core.types import Prefix
from provision.environment import kernel as kernels
from provision.environment import marker
from provision.environment import passport as passports
from provision.environment.state import EnvironmentState, State, quick_state
from provision.workflow.change_journal import is_unfinished
from provision.workflow.context import Context

ImageState = Literal["", "current", "stale"]
UNREADABLE, OF_ANOTHER_LOCK = "unreadable", "of another lock"
VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class SmokeVerdict:
    """The verdict of the smoke test in the prefix or the image.

    elsewhere: where it was measured; empty if on this machine, with its present GPUs and driver.
    measured_at: seconds since 1970, None if not known.
    """

    target: str
    verdict: str
    elsewhere: str
    measured_at: float | None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One line of `provision env list`.

    reason: of the state, in words. size: bytes of the prefix when it was installed, None if nobody
    recorded them. installed_at: seconds since 1970. image: whether there is one, and whether it is
    of the present lock. image_size: bytes of its layout. smoke: the verdicts of the present lock in
    words, or why there are none.
    """

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


def environments(context: Context) -> list[Environment]:
    """Every environment of the envs folder, and every prefix of this user, by name."""
    installed: dict[str, Prefix] = {}
    for name, path in prefix_registry.list_prefixes(context.folders).items():
        prefix = marker.find(name, path)
        if prefix is not None:
            installed[name] = prefix
    described: set[str] = set()
    for file in (SPEC, LOCK):
        described.update(path.parent.name for path in context.folders.envs.glob(f"*/{file}"))
    with_kernel = {kernel.name for kernel in kernels.list_kernels()}
    return [
        _environment(context, name, installed.get(name), has_kernel=name in with_kernel)
        for name in sorted(described | set(installed))
    ]


def describe_environment(context: Context, name: str) -> tuple[Environment, str | None, str | None]:
    """One environment; with the reference of its image, and its kernel's name in Jupyter's menu."""
    path = prefix_registry.prefix_path(context.folders, name)
    display_names = {kernel.name: kernel.display_name for kernel in kernels.list_kernels()}
    row = _environment(context, name, marker.find(name, path), has_kernel=name in display_names)
    reference = None
    if row.image:
        try:
            passport = passports.find(context.folders, name)
        except IntegrityError:  # `_environment` has said so
            passport = None
        image = passport["image"] if passport else None
        reference = image["reference"] if image else None
    return row, reference, display_names.get(name)


def _environment(
    context: Context, name: str, prefix: Prefix | None, *, has_kernel: bool
) -> Environment:
    folder = context.folders.envs / name
    passport: Passport | None = None
    try:
        passport = passports.find(context.folders, name)
        smoke, verdicts = _verdicts(prefix, passport)
    except IntegrityError as error:
        context.progress.warn(error.message)
        smoke, verdicts = UNREADABLE, ()
    state = environment_state(prefix, folder, passport)
    if is_unfinished(context.folders, name):
        reason = f"a change of it runs, or was killed: `provision build {name}` takes that back"
        state = EnvironmentState(state="stale", reason=reason)
    installed = marker.read(prefix.path) if prefix else None
    installed_at = None
    if prefix is not None:
        installed_at = (prefix.path / marker.MARKER).stat().st_mtime
    layout = context.folders.images / name
    return Environment(
        name=name,
        prefix=prefix.path if prefix else None,
        state=state.state,
        reason=state.reason,
        size=installed.size or None if installed else None,
        installed_at=installed_at,
        image=image_state(layout, prefix, passport),
        image_size=disk_usage.measure(layout).size,
        kernel=has_kernel,
        smoke=smoke,
        verdicts=verdicts,
    )


def environment_state(
    prefix: Prefix | None, folder: Path, passport: Passport | None
) -> EnvironmentState:
    """The state of an environment, with the request as it was at the last build in mind.

    Not if the lock is newer than that build: nobody recorded the request that it was made from.
    """
    state = quick_state(prefix, folder / LOCK)
    path = folder / SPEC
    if prefix is None or state.state != "current" or not path.exists():
        return state
    if passport is None or passport["lock"]["sha256"] != prefix.lock_sha256:
        return state
    from provision.resolver import spec as specs

    try:
        content = specs.read(path)
    except InvalidSpec as error:
        return EnvironmentState(state="stale", reason=error.message)
    keys = changed_keys(content, passport["request"])
    if keys:
        reason = f"spec.yml was changed since the last build: {', '.join(keys)}"
        return EnvironmentState(state="stale", reason=reason)
    return state


def changed_keys(content: Mapping[str, Any], built: Mapping[str, Any]) -> list[str]:
    """The keys of spec.yml that say something else than the request of the last build.

    built: that request. A build settles what the file leaves open: `cuda: "12"` becomes 12.1, a
    missing `python` 3.11. Such a key has not changed, nor has a value like `latest`, of which only
    resolving it again could tell.
    """
    changed = []
    for key in SPEC_KEYS:
        value, settled = content.get(key.name), built.get(key.name)
        if key.name == "accept":
            continue  # changes what is printed, not what is installed
        if key.is_list:
            if set(value or ()) != set(settled or ()):
                changed.append(key.name)
        elif key.kind in ("flag", "switch"):
            if value is not None and settled is not None and value != settled:
                changed.append(key.name)
        elif value is not None and settled is not None and _is_other_version(value, settled):
            changed.append(key.name)
    return changed


def _is_other_version(value: object, settled: object) -> bool:
    """Whether a version of the file cannot have been settled to that one."""
    if not VERSION.fullmatch(str(value)):
        return False
    return settled != value and not str(settled).startswith(f"{value}.")


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
    for target, result in passport["smoke"].items():
        elsewhere = passports.elsewhere(result, host.identity())
        verdict = SmokeVerdict(
            target=target,
            verdict=result["verdict"],
            elsewhere=elsewhere,
            measured_at=passports.measured_at(result),
        )
        verdicts.append(verdict)
    texts = [f"{row.target}: {row.verdict} {row.elsewhere}".rstrip() for row in verdicts]
    return ", ".join(texts), tuple(verdicts)
