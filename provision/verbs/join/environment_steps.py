"""The steps of `provision join` that bring a member the lab's environments: prefix or image, kernel,
first job.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from provision import lockfile as locks
from provision.cluster import pack as packs
from provision.cluster.inventory import DEFAULT_PATH, read_inventory
from provision.core import prefix_registry, process
from provision.core.errors import IntegrityError, ProvisionError, SystemRefused, ToolMissing
from provision.core.mirrors import path_from_url
from provision.core.types import Lock, Prefix
from provision.environment import drift as drifts
from provision.environment import kernel as kernels
from provision.environment import passport as passports
from provision.environment import prefix as prefixes
from provision.environment import runtime_package
from provision.verbs.join.join_run import JoinRun, guarded, notes_of
from provision.verbs.join.steps import Note, pending, settled, unsettled, warning
from provision.workflow import installed, kernel
from provision.workflow.installed import tree_digests
from provision.workflow.lab_definition import LabEnvironment
from provision.workflow.plan import BuildRequest
from provision.workflow.smoke import runner as smoke_runner
from provision.workflow.smoke import smoke as smoke_command
from provision.workflow.smoke.request import SmokeRequest
from provision.workflow.trust import require_trusted_path, require_trusted_prefix
from provision_runtime.report import model
from provision_runtime.report.text import format_count

START_S = 60.0


def environments(run: JoinRun) -> Iterator[Note]:
    if not run.lab.environments:
        yield settled("lab.yml names no environments")
    for environment in run.lab.environments:
        yield from guarded(_prefix(run, environment), environment.name)


def _prefix(run: JoinRun, environment: LabEnvironment) -> Iterator[Note]:
    """What was shipped to this machine, if it is of the lab's lock; else installed from the lock."""
    name = environment.name
    plan = run.plan(environment)
    lock = plan.current_lock
    if lock is None:
        state = "is not of its spec.yml any more" if plan.lock else "is missing"
        yield unsettled(
            f"{name}: its lock in the lab's repository {state}",
            advice=f"Tell {run.lab.contact}: `provision lock {name} --relock` makes it.",
        )
        return
    prefix = installed_prefix(run, environment)
    if prefix is not None:
        yield _installed(name, prefix, "is installed")
        return
    shipped, problem = _shipped(run, name, lock)
    if problem:
        yield warning(f"{name}: {problem}; it is installed from the lock")
    if shipped is not None:
        yield from _use_shipped(run, name, shipped)
        return
    # Packages that the lock takes from a disk, and that are not on this one.
    missing = [
        package.filename
        for package in lock.packages
        if package.url.startswith("file:") and not path_from_url(package.url).exists()
    ]
    if missing:
        yield unsettled(
            f"{name}: its lock is not portable: it holds {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + " of the machine where it was made",
            advice=f"Tell {run.lab.contact}: `provision lock {name} --relock --python-from channel` "
            "takes Python from a channel.",
        )
        return
    if not run.act:
        packages = format_count(len(lock.packages), "package")
        yield pending(f"{name}: would install {packages} from its lock")
        return
    # The usual place, where the recorded one is below a store that we only read.
    is_in_store = plan.prefix_path.is_relative_to(_store(run))
    default_path = run.context.folders.prefixes / plan.name if is_in_store else None
    prefix, _ = installed.create(run.context, BuildRequest(name=name, prefix=default_path))
    run.changed = True
    run.refresh()
    yield _installed(name, prefix, "was installed from its lock")


def _installed(name: str, prefix: Prefix, how: str) -> Note:
    text = f"{name} {how}: {prefix.path} (lock {prefix.lock_sha256[:12]})"
    return settled(text)


def _store(run: JoinRun) -> Path:
    """Where the lab ships environments to."""
    inventory = run.lab.inventory
    return Path(read_inventory(inventory).defaults.path if inventory else DEFAULT_PATH)


def _shipped(run: JoinRun, name: str, lock: Lock) -> tuple[Prefix | None, str]:
    """The environment that was shipped to this machine's store; or why that which is there is not
    used."""
    link = _store(run) / name
    try:
        return (_checked_shipment(run, name, link, lock), "") if link.exists() else (None, "")
    except (ProvisionError, OSError) as error:
        return None, notes_of(error).message


def _checked_shipment(run: JoinRun, name: str, link: Path, lock: Lock) -> Prefix:
    """Raises an error unless nobody else has a hand in it, it is of this lock, and its files are those
    of its pack, as the store recorded it or as somebody whom lab.yml allows has signed it. Nothing
    in it runs before that."""
    path = link.resolve()
    folders, inventory = run.context.folders, run.lab.inventory
    record = path.parents[1] / "images" / f"{path.name}.json"
    for trusted in (link / "bin" / "python", record):
        require_trusted_path(folders, trusted, inventory)
    prefix = prefixes.find(name, path)
    if prefix is None:
        raise IntegrityError(f"{link} is not an environment of provision.")
    if prefix.lock_sha256 != lock.sha256:
        raise IntegrityError(f"{link} is of another lock ({prefix.lock_sha256[:12]}).")
    if drifts.find_package_drift(prefix, lock):
        raise IntegrityError(f"{link} does not have the packages of its lock any more.")
    if not runtime_package.is_current(path, runtime_package.load()):
        raise IntegrityError(f"{link} was shipped by another version of provision.")
    if run.lab.allowed_signers is not None:
        record = record.with_suffix(".signature")
        packed = packs.signed_statement(record, run.lab.allowed_signers)
    else:
        packed = packs.node_record(record)
    run.progress.info(f"reading every file of {path}")
    root = tree_digests(path, deep=True)["root"]
    if (root, path.name) != (packed.get("root"), packed.get("key")):
        raise IntegrityError(f"The files of {link} are not those of its pack ({record}).")
    try:
        process.run([prefix.python, "-I", "-c", "pass"], timeout_s=START_S)
    except ProvisionError as error:
        raise ToolMissing(f"{link} does not start here: {error.message}") from error
    return prefix


def _use_shipped(run: JoinRun, name: str, prefix: Prefix) -> Iterator[Note]:
    if not run.act:
        yield pending(f"{name}: would use what was shipped, {prefix.path}")
        return
    prefix_registry.record_prefix(run.context.folders, name, prefix.path)
    run.changed = True
    run.refresh()
    yield _installed(name, prefix, "was shipped to this machine")


# Kernels


def installed_prefix(run: JoinRun, environment: LabEnvironment) -> Prefix | None:
    """The prefix of an environment, if it is of the lab's lock, and no other user has a hand in
    it."""
    if not (run.context.folders.envs / environment.name / locks.FILE).is_file():
        return None
    plan = run.plan(environment)
    prefix = plan.reusable_prefix(plan.current_lock)
    if prefix is not None:
        try:
            require_trusted_prefix(run.context.folders, prefix.path, run.lab.inventory)
        except SystemRefused:
            return None  # what was shipped there is judged again, and says why
    return prefix


def register_kernels(run: JoinRun) -> Iterator[Note]:
    for environment in run.lab.environments:
        yield from guarded(_kernel(run, environment), environment.name)


def _kernel(run: JoinRun, environment: LabEnvironment) -> Iterator[Note]:
    name = environment.name
    prefix = installed_prefix(run, environment)
    if prefix is None:
        yield pending(f"{name}: waits for its environment")
        return
    if not kernels.has_launcher(prefix):
        yield settled(f"{name} has no {kernels.LAUNCHER}, so no kernel")
        return
    title = run.plan(environment).kernel_title
    if kernels.is_current(prefix, title):
        yield settled(f"{name} is in Jupyter's menu as {title}")
        return
    kernels.check_name(name)
    if not run.act:
        yield pending(f"{name}: would register {title}")
        return
    kernel.add_kernel(run.context, BuildRequest(name=name))
    run.changed = True
    yield settled(f"{name} is now in Jupyter's menu as {title}")


# The first job


def first_job(run: JoinRun) -> Iterator[Note]:
    """The smoke test of the first environment of lab.yml that is installed, on this machine."""
    if not run.lab.environments:
        yield settled("lab.yml names no environments, so nothing was tested")
    elif not run.lab.policy.test_here:
        yield settled("lab.yml says to run no test on this machine")
    else:
        yield from _test_here(run)


def _test_here(run: JoinRun) -> Iterator[Note]:
    prefix = _tested_prefix(run)
    if prefix is None:
        yield pending(f"waits for the environment {run.lab.environments[0].name}")
        return
    is_strict = run.lab.policy.fail_on == "warn"
    if _is_tested(run, prefix, is_strict):
        yield settled(f"{prefix.name} passed the smoke test here")
        return
    if not run.act:
        yield pending(f"would run `provision smoke {prefix.name}` here")
        return
    out = run.context.folders.data / "first-jobs" / run.lab.name
    smoke_request = SmokeRequest(profile="quick", out=out, strict=is_strict)
    request = BuildRequest(name=prefix.name, smoke_request=smoke_request)
    [result] = smoke_command.smoke(run.context, request, with_image=False)
    text = f"{prefix.name}: the smoke test here: {result.verdict}"
    if model.succeeded(result.verdict):
        run.changed = True
        yield settled(text)
        return
    yield unsettled(
        f"{text}: {smoke_runner.failures([result])[0]}",
        advice=f"The report: {result.evidence / smoke_runner.REPORT}",
    )


def _tested_prefix(run: JoinRun) -> Prefix | None:
    for environment in run.lab.environments:
        with suppress(ProvisionError):
            prefix = installed_prefix(run, environment)
            if prefix is not None:
                return prefix
    return None


def _is_tested(run: JoinRun, prefix: Prefix, is_strict: bool) -> bool:
    """Whether this prefix has passed on this machine: a home may be shared by several."""
    passport = passports.find(run.context.folders, prefix.name)
    if passport is None or passport["prefix"]["path"] != str(prefix.path):
        return False
    for target, verdict in passports.verdicts(passport):
        if target != "prefix" or verdict.get("lock_sha256") != prefix.lock_sha256:
            continue
        if not passports.elsewhere(verdict):
            is_warning = verdict["verdict"] == model.WARN
            return verdict["verdict"] == model.PASS or (is_warning and not is_strict)
    return False
