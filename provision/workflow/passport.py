"""The passport of an environment: where it lies, whether it still describes what is here, and
writing what was made and measured into it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.adapters import uv
from provision.core import prefix_registry
from provision.core.atomic import atomic_write
from provision.core.documents import Passport, Verdict
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.file_locks import exclusive_lock
from provision.core.paths import LOCK, Folders, make_private_directory
from provision.core.types import BuildResult, Image, Kernel, Lock, Prefix, SmokeResult
from provision.environment import passport as passports
from provision.environment import prefix as prefixes
from provision.environment import runtime_package
from provision.resolver import spec as specs
from provision.workflow.context import Context, missing_file
from provision_runtime.report.model import succeeded

if TYPE_CHECKING:
    from provision.workflow.plan import Plan

LOCK_FILE = ".lock"


def read_passport(folders: Folders, name: str) -> Passport:
    """The passport of an environment. Raises InvalidSpec if it has none."""
    passport = passports.find(folders, specs.check_name(name))
    if passport is not None:
        return passport
    path = folders.passport(name) / passports.FILE
    advice = f"`provision build {name}` writes it."
    if path.exists():
        raise InvalidSpec(f"{path} belongs to another environment.", advice=advice)
    if not (folders.envs / name).is_dir():
        raise missing_file(folders.envs / name / passports.FILE, advice=advice)
    raise InvalidSpec(f"{name} has no passport: it was not installed here.", advice=advice)


def judged_passport(folders: Folders, name: str) -> Passport:
    """The passport; with `outdated`, and for each verdict `elsewhere`, empty if it is of this
    machine as it is now."""
    passport = read_passport(folders, name)

    def judged(verdict: Verdict) -> Verdict:
        return {**verdict, "elsewhere": passports.elsewhere(verdict)}

    result: Passport = {**passport, "outdated": outdated(folders, passport)}
    result["smoke"] = {target: judged(verdict) for target, verdict in passport["smoke"].items()}
    if "smoke_elsewhere" in passport:
        result["smoke_elsewhere"] = [judged(verdict) for verdict in passport["smoke_elsewhere"]]
    return result


def outdated(folders: Folders, passport: Passport) -> str:
    """Why a passport does not describe its environment as it is here now; empty if it does."""
    name, sha256 = passport["name"], passport["lock"]["sha256"]
    prefix = prefixes.find(name, prefix_registry.prefix_path(folders, name))
    if prefix is not None and prefix.lock_sha256 != sha256:
        return _of_another_lock(sha256, str(prefix.path), prefix.lock_sha256)
    reason = differs_from_lock(passport, folders.envs / name / LOCK)
    if prefix is None and not reason:
        return "the environment is not installed here any more"
    return reason


def differs_from_lock(passport: Passport, path: Path) -> str:
    """The same for a lock that lies somewhere; empty if there is none."""
    sha256 = passport["lock"]["sha256"]
    if not path.is_file():
        return ""
    present = hashlib.sha256(path.read_bytes()).hexdigest()
    return "" if present == sha256 else _of_another_lock(sha256, str(path), present)


def _of_another_lock(sha256: str, what: str, present: str) -> str:
    return f"the passport is of another lock ({sha256[:12]}) than {what} ({present[:12]})"


def write_passport(
    context: Context,
    plan: Plan,
    lock: Lock,
    prefix: Prefix,
    *,
    image: Image | None = None,
    kernel: Kernel | None = None,
    smoke: Sequence[SmokeResult] = (),
    is_new_lock: bool = False,
) -> BuildResult:
    """Record what is installed and was made and measured, unless the passport says so already;
    returns that.

    Verdicts of another lock are dropped. A damaged passport proves nothing and is replaced.
    """
    index_settings = None
    if is_new_lock:
        index_settings = uv.configured_settings().origins if plan.inputs.pip else ()
    result = BuildResult(
        name=plan.name,
        folder=plan.folder,
        resolution=plan.resolution,
        pins=plan.pins,
        lock=lock,
        prefix=prefix,
        image=image,
        kernel=kernel,
        smoke=tuple(smoke),
        index_settings=index_settings,
    )
    with _locked(context, plan.name):
        previous = _find_undamaged(context, plan.name)
        composed = passports.compose(result, plan.spec_content, previous)
        passport = passports.stamp(composed, previous)
        if passport is not None:
            _write(context, passport)
    return result


@contextmanager
def _locked(context: Context, name: str) -> Iterator[None]:
    """Several machines with one home may write verdicts at the same time."""
    folder = context.folders.passport(name)
    make_private_directory(folder)
    with exclusive_lock(folder / LOCK_FILE):
        yield


def _find_undamaged(context: Context, name: str) -> Passport | None:
    try:
        return passports.find(context.folders, name)
    except IntegrityError as error:
        context.progress.warn(f"{error.message} It will be replaced.")
        return None


def _write(context: Context, passport: Passport) -> None:
    path = context.folders.passport(passport["name"]) / passports.FILE
    atomic_write(path, passports.to_text(passport))
    passports.find(context.folders, passport["name"])  # checked now, so that reading writes nothing


def _passport_of(context: Context, plan: Plan, prefix: Prefix) -> Passport | None:
    """The passport of a prefix, written now if there is none of its lock. None if nobody knows what
    was requested: the lock of the prefix is not the present one."""
    passport = _find_undamaged(context, plan.name)
    if passport is not None and passport["lock"]["sha256"] == prefix.lock_sha256:
        return passport
    lock = plan.current_lock
    if lock is None or lock.sha256 != prefix.lock_sha256:
        return None
    write_passport(context, plan, lock, prefix)
    return passports.find(context.folders, plan.name)


def record_smoke(
    context: Context, plan: Plan, prefix: Prefix, results: Sequence[SmokeResult]
) -> None:
    """Add verdicts to the passport of a prefix."""
    runtime = runtime_package.installed(prefix.path)
    _passport_of(context, plan, prefix)
    with _locked(context, plan.name):
        passport = _find_undamaged(context, plan.name)
        if passport is not None and passport["lock"]["sha256"] == prefix.lock_sha256:
            _write(context, passports.with_smoke(passport, results, runtime))
            return
    context.progress.warn(
        f"the verdicts are not recorded: {prefix.path} is of another lock than {plan.folder / LOCK}"
    )


def record_smoke_over_nodes(
    context: Context, plan: Plan, document: Mapping[str, Any], tested_lock: str | None
) -> None:
    """Add a test over nodes to the passport, if there is one of the lock that was tested.

    tested_lock: the hash that the nodes reported; None if they reported none.
    """
    prefix = prefixes.find(plan.name, plan.prefix_path)
    if prefix is None:  # it is on the nodes alone
        passport = _find_undamaged(context, plan.name)
    else:
        passport = _passport_of(context, plan, prefix)
    if passport is None:
        return
    is_certain = tested_lock is not None or not succeeded(document["verdict"])
    if is_certain and tested_lock in (None, passport["lock"]["sha256"]):
        _write(context, passports.with_smoke_over_nodes(passport, document))
