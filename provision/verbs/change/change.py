"""`provision add`, `remove` and `update`: change the packages of an environment.

Everything else stays as locked, and prefix, kernel and passport follow. What fails, or is killed,
leaves spec.yml, the lock and the prefix as they were.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from provision import lockfile as locks
from provision import render
from provision.core.credentials import credential_problems
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.package_names import package_name
from provision.core.paths import LOCK, SPEC
from provision.core.similar_names import did_you_mean
from provision.core.spec_fields import SPEC_KEYS, SpecKey
from provision.core.types import Kernel, LockedPackage, Prefix
from provision.environment import kernel as kernels
from provision.environment import prefix as prefixes
from provision.project_files.account import Entry
from provision.project_files.decision import Choices
from provision.project_files.request import Request, decide
from provision.render.spec_text import with_list
from provision.resolver import spec as specs
from provision.workflow import requirements, source_builds
from provision.workflow.context import Context, missing_file
from provision.workflow.ensure import (
    check_prefix_path,
    diff_with,
    ensure_kernel,
    ensure_prefix,
    local_python,
    locked_plan,
    new_lock,
    report_index_settings,
    report_left_out,
    require_current_lock,
    solve,
)
from provision.workflow.passport import write_passport
from provision.workflow.plan import BuildRequest, Plan, make_plan
from provision.workflow.project_files import printed_step, read_file
from provision.workflow.resolution import with_names

PackageKey = Literal["conda", "pip"]
# The keys that choose a build, and conda's names of what they choose.
BUILD_KEYS = ("torch", "cuda", "python")
OTHER_NAMES = {
    **dict.fromkeys(("pytorch", "pytorch-gpu"), "torch"),
    **dict.fromkeys(("cudatoolkit", "cuda-toolkit", "cuda-version", "pytorch-cuda"), "cuda"),
}


@frozen
class Change:
    """What to change in spec.yml: items to add to its lists, and packages to take out."""

    conda: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def added_names(self) -> frozenset[str]:
        return frozenset(package_name(text) for text in (*self.conda, *self.pip))


@frozen
class ChangeResult:
    """What became of a change. prefix: None if the environment is not installed here. account: what
    became of each line of the files that were read for it."""

    name: str
    diff: locks.LockDiff
    prefix: Prefix | None = None
    kernel: Kernel | None = None
    portable: bool = True
    editables: tuple[str, ...] = ()
    account: tuple[Entry, ...] = ()


def add(
    context: Context,
    name: str,
    arguments: Sequence[str],
    *,
    files: Sequence[Path] = (),
    conda: bool = False,
    dry_run: bool = False,
) -> ChangeResult:
    """`provision add`: arguments are what pip's lines hold, options like `-e FOLDER` among them.

    files: of other tools, in any form that `provision import` reads. Raises InvalidSpec if they
    contradict themselves, or request nothing that was understood.
    """
    folder = context.folders.envs / specs.check_name(name)
    if not (folder / SPEC).exists():
        raise missing_file(folder / SPEC, advice=f"`provision build {name}` makes it.")
    request = _read_files(context, name, files) if files else None
    content = request.content if request else {}
    if conda and (problems := list(credential_problems(arguments))):
        raise InvalidSpec("\n".join(problems))
    prepared = requirements.prepare(
        context,
        requirements.read([*(() if conda else arguments), *content.get("pip", ())]),
        folder,
        python_of=lambda: make_plan(context, BuildRequest(name=name)).resolution.python,
    )
    changes = Change(
        conda=(*(arguments if conda else ()), *content.get("conda", ())),
        pip=prepared.pip,
        indexes=(*prepared.indexes, *content.get("indexes", ())),
        find_links=(*prepared.find_links, *content.get("find_links", ())),
    )
    with requirements.placed(folder, prepared.wheels, keep=not dry_run):
        result = change(context, name, changes, dry_run=dry_run)
    entries = tuple(
        replace(entry, next_step=printed_step(entry.next_step, name))
        for entry in (request.entries if request else ())
    )
    return replace(result, account=entries)


def _read_files(context: Context, name: str, files: Sequence[Path]) -> Request:
    """What files request besides the build of an environment, which stays."""
    resolution = make_plan(context, BuildRequest(name=name)).resolution
    choices = Choices(
        torch=resolution.torch,
        cuda=resolution.cuda,
        cpu=resolution.cuda is None,
        python=resolution.python,
        environment=name,
        companions=resolution.spec.companions,
    )
    statements = [statement for file in files for statement in read_file(file)]
    request = decide(statements, choices, default_python=resolution.python, located=str)
    if request.contradictions:
        raise InvalidSpec("\n".join(request.contradictions), advice="Correct the file.")
    if not set(request.content) & {"pip", "conda"}:
        names = ", ".join(map(str, files))
        lines = [f"{entry.text}: {entry.reason or entry.became}" for entry in request.entries]
        raise InvalidSpec("\n".join([f"{names} requests nothing to add.", *lines]))
    if "channels" in request.content:
        channels = ", ".join(request.content["channels"])
        context.progress.warn(f"channels are not added; write them into spec.yml: {channels}")
    return request


def change(context: Context, name: str, changes: Change, *, dry_run: bool = False) -> ChangeResult:
    """`provision add` and `remove`: change requirements, and nothing else.

    Raises InvalidSpec for a package that spec.yml does not request, and Unsolvable with the reason
    if a requirement fits neither the others nor the build.
    """
    with locked_plan(context, BuildRequest(name=name)) as plan:
        _require_changeable(plan)
        assert plan.lock is not None
        path = plan.folder / SPEC
        text = _changed_spec(render.read_text(path), plan, changes)
        changed = make_plan(context, BuildRequest(name=name, spec_text=text))
        if changed.inputs.pip:
            report_index_settings(context)
        report_left_out(context, changed)
        context.progress.info("solving the change; everything else stays as locked")
        packages = locks.change(
            changed.inputs,
            changed.resolution,
            locks.read_platforms(plan.lock.path),
            before=plan.inputs,
            changed=changes.added_names,
            local_python=local_python(context, changed, context.folders.channels),
            solver=context.solver,
        )
        with source_builds.built(context, changed, packages, dry_run=dry_run) as built:
            return _apply(
                context,
                plan,
                changed,
                built,
                text,
                named=changes.added_names,
                dry_run=dry_run,
            )


def update(
    context: Context,
    name: str,
    packages: Sequence[str],
    *,
    dry_run: bool = False,
) -> ChangeResult:
    """`provision update`: move these packages, or all of them, to the newest versions that fit."""
    with locked_plan(context, BuildRequest(name=name)) as plan:
        _require_changeable(plan)
        assert plan.lock is not None
        context.progress.info(f"updating {', '.join(packages) or 'all packages'}")
        if packages:
            new_packages = locks.update(
                plan.inputs,
                plan.resolution,
                packages,
                locks.read_platforms(plan.lock.path),
                local_python=local_python(context, plan, context.folders.channels),
                solver=context.solver,
            )
        else:
            new_packages = solve(context, plan, context.folders.channels)
        with source_builds.built(context, plan, new_packages, dry_run=dry_run) as built:
            return _apply(
                context,
                plan,
                plan,
                built,
                None,
                named=frozenset(map(package_name, packages)) or None,
                dry_run=dry_run,
            )


def _require_changeable(plan: Plan) -> None:
    if plan.lock is None:
        raise missing_file(
            plan.folder / LOCK, advice=f"`provision build {plan.name}` makes the environment first."
        )
    if not (plan.folder / SPEC).exists():
        raise missing_file(plan.folder / SPEC, advice="A lock alone cannot be changed.")
    require_current_lock(plan)


def _changed_spec(text: str, plan: Plan, changes: Change) -> str:
    """The text of spec.yml with the changes. Raises InvalidSpec if it requests no such package."""
    content = specs.parse(text.encode(), plan.folder / SPEC)
    removed = {package_name(package) for package in changes.removed}
    requested: set[str] = set()
    lists: dict[PackageKey, tuple[str, ...]] = {"conda": changes.conda, "pip": changes.pip}
    for key, added in lists.items():
        items = list(content.get(key, ()))
        names = items if key == "conda" else with_names(items, plan.folder)
        requested.update(map(package_name, names))
        added_names = set(map(package_name, added))
        remaining = []
        for item, name in zip(items, map(package_name, names), strict=True):
            if name not in removed | added_names:
                remaining.append(item)
        if [*remaining, *added] != items:
            text = with_list(text, key, [*remaining, *added])
    for source_key in ("indexes", "find_links"):
        items = list(content.get(source_key, ()))
        changed_items = specs.with_sources(items, getattr(changes, source_key), removed)
        if changed_items != items:
            text = with_list(text, source_key, changed_items)
    missing = [package for package in changes.removed if package_name(package) not in requested]
    if missing:
        raise _not_requested(plan, missing, requested)
    return text


def _not_requested(plan: Plan, names: Sequence[str], requested: Collection[str]) -> InvalidSpec:
    """Packages that cannot be removed, each with what needs it. requested: what can be."""
    assert plan.lock is not None
    reasons = []
    advice, listed = "", f"`pip` and `conda` in {plan.folder / SPEC} list what can be removed."
    if not requested:
        listed = f"{plan.folder / SPEC} has no packages of its own that could be removed."
    for name in names:
        canonical = package_name(name)
        key = _key_of(canonical)
        if key is not None:
            reason = f"`{name}` comes from the key `{key.name}` of spec.yml, not from a list"
            change = f"`{key.name}: false` there leaves it out"
            if not key.installs:
                change = f"a build always has one; to change it, edit `{key.name}:` there"
            reasons.append(f"{reason}: {change}, then `provision build {plan.name} --relock`")
            continue
        reason = f"spec.yml does not request `{name}`"
        if canonical in {package_name(package.name) for package in plan.lock.packages}:
            reason += f"; `provision env tree {plan.name} {name}` says who needs it"
        else:
            reason += ", and the lock does not have it"
        reasons.append(reason)
        advice = did_you_mean(canonical, requested) + (advice or listed)
    return InvalidSpec(f"{'. '.join(reasons)}.", advice=advice)


def _key_of(package: str) -> SpecKey | None:
    """The key of spec.yml, other than its lists, from which a package comes."""
    name = OTHER_NAMES.get(package, package)
    for key in SPEC_KEYS:
        if name in key.installs or name == key.name in BUILD_KEYS:
            return key
    return None


def _apply(
    context: Context,
    before: Plan,
    plan: Plan,
    packages: Sequence[LockedPackage],
    spec_text: str | None,
    *,
    named: frozenset[str] | None,
    dry_run: bool,
) -> ChangeResult:
    """Write the new lock, and bring prefix, kernel and passport up to date with it.

    named: the packages that the user named now; None for all of the environment.
    """
    assert before.lock is not None
    path = before.lock.path
    text, lock = locks.compose(path, plan.inputs, packages, python_from=plan.python_from)
    diff = diff_with(path, text)
    old_prefix = prefixes.find(plan.name, plan.prefix_path)
    is_stale = old_prefix is not None and old_prefix.lock_sha256 != before.lock.sha256
    if dry_run or (diff.same and spec_text is None and before.lock_is_current and not is_stale):
        return ChangeResult(name=plan.name, diff=diff, portable=lock.portable)
    if old_prefix is not None:
        check_prefix_path(context, plan)
    prefix = None
    with new_lock(context, plan, lock, text, named=named, spec_text=spec_text, replaced=old_prefix):
        if old_prefix is not None:
            prefix, _ = ensure_prefix(context, plan, lock, before=before.lock, keep_replaced=True)
    kernel: Kernel | None = None
    if prefix is not None:
        kernel = _update_kernel(plan, prefix)
        write_passport(context, plan, lock, prefix, kernel=kernel, is_new_lock=True)
    return ChangeResult(
        name=plan.name,
        diff=diff,
        prefix=prefix,
        kernel=kernel,
        portable=lock.portable,
        editables=tuple(package.name for package in lock.packages if package.is_editable),
    )


def _update_kernel(plan: Plan, prefix: Prefix) -> Kernel | None:
    """The kernel, if this environment has one; one that cannot start any more is removed."""
    if all(kernel.prefix != prefix.path for kernel in kernels.list_kernels()):
        return None
    if not kernels.has_launcher(prefix):
        kernels.remove_kernel_of(prefix)
        return None
    kernel, _ = ensure_kernel(prefix, plan.kernel_title)
    return kernel
