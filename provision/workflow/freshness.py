"""Whether an environment that a command enters is what its lock and spec.yml say now, and bringing it
up to date.

Imports little, because `provision run` asks this each time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from provision.core import settings
from provision.core.paths import SPEC, Folders
from provision.core.types import Prefix
from provision.environment.state import quick_state
from provision_runtime.facts import freshness

if TYPE_CHECKING:
    from provision.workflow.context import Context


def difference(folders: Folders, prefix: Prefix) -> str:
    """Why a prefix is not what its folder in envs describes now; empty if it is, or if nobody can
    tell."""
    state = quick_state(prefix, _folder(folders, prefix))
    return state.reason if state.state in freshness.NOTICED else ""


def _folder(folders: Folders, prefix: Prefix) -> Path:
    """The folder that describes it: in the present envs folder, else where it was installed from."""
    folder = folders.envs / prefix.name
    if folder.is_dir():
        return folder
    return Path(freshness.read_marker(str(prefix.path)).get("folder", folder))


def is_synced(folders: Folders, prefix: Prefix) -> bool:
    """Whether spec.yml, or else the settings of the user or the lab, say `sync: true`."""
    from provision.core.yaml_text import YamlError, parse_yaml, read_source

    try:
        content = parse_yaml(read_source(_folder(folders, prefix) / SPEC))
    except (OSError, YamlError):  # `sync` would name the reason
        content = None
    if isinstance(content, dict) and "sync" in content:
        return content["sync"] is True
    return settings.is_synced()


def sync(context: Context, name: str, path: Path | None, *, relock: bool = True) -> Prefix:
    """Bring a prefix and its kernel up to date: with the lock, and the lock with spec.yml.

    relock: replace a lock that is not of the present spec.yml. Raises StaleLock otherwise.
    """
    from provision.environment import kernel
    from provision.workflow.installed import create
    from provision.workflow.kernel import add_kernel
    from provision.workflow.plan import BuildRequest, make_plan

    request = BuildRequest(name=name, prefix=path)
    plan = make_plan(context, request)
    is_stale = plan.lock is not None and not plan.lock_is_current
    prefix, _ = create(context, replace(request, relock=is_stale and relock))
    if any(registered.prefix == prefix.path for registered in kernel.list_kernels()):
        add_kernel(context, request)
    return prefix
