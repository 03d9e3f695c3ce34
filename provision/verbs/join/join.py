"""`provision join`: a member's first hour with a lab, in eight steps.

Each step looks at what is, does what is missing, and says what it found. A step that fails ends as
open, and the steps that do not need it go on; the next run does only what is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from provision.adapters import git
from provision.core.atomic import remove_leftovers, replace_directory, staging_path
from provision.core.credentials import credential_problem
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec, ProvisionError, SystemRefused
from provision.core.file_locks import environment_lock
from provision.core.paths import Folders, make_private_directory
from provision.core.system_errors import FREE_SPACE, disk_full_raises
from provision.core.tempdirs import temporary_directory
from provision.core.types import Progress
from provision.verbs.join import account_steps as join_account
from provision.verbs.join import environment_steps as join_environments
from provision.verbs.join import record as records
from provision.verbs.join.join_run import JoinRun, guarded
from provision.verbs.join.steps import STEPS, Note, StepName, StepResult, pending, settled, warning
from provision.workflow.lab_definition import Lab, read_lab

SIZES_ADVICE = "`du -xh -d1 ~ | sort -h | tail` shows what is large"

Step = Callable[[JoinRun], Iterator[Note]]
WORK: Mapping[StepName, Step] = {
    "account": join_account.account,
    "ssh": join_account.ssh,
    "folders": join_account.folders,
    "shell": join_account.shell,
    "environments": join_environments.environments,
    "kernels": join_environments.register_kernels,
    "first-job": join_environments.first_job,
}


@frozen
class JoinReport:
    """How every step stands, and the first commands of the member, each with what it does."""

    lab: str
    contact: str
    source: str
    acted: bool
    steps: tuple[StepResult, ...]
    commands: tuple[tuple[str, str], ...]

    @property
    def open_steps(self) -> tuple[StepName, ...]:
        return tuple(result.step for result in self.steps if result.is_open)


def join(address: str | None, progress: Progress, *, act: bool = True) -> JoinReport:
    """Join a lab, or say how that stands.

    address: of a lab's repository, or its folder; None for the lab that was joined. act: False only
    says how each step stands. Raises what makes the lab's repository unreadable; everything later is a step of the report.
    """
    labs = records.labs_folder()
    source = _source(address, labs)
    if problem := credential_problem(source):
        raise InvalidSpec(problem)
    folder = records.lab_folder(labs, source)
    with ExitStack() as stack:
        if act:
            if records.read_source(folder) is None:
                _check_writable(folder)
            owner = Folders(data=labs.parent, cache=labs.parent, envs=labs)
            lock_name = f"{folder.name}.join"
            stack.enter_context(environment_lock(owner, lock_name, progress))
            progress.info(_title("lab"))
        lab, notes, changed = _read_repository(source, folder, progress, stack, act=act)
        if act:
            try:
                records.write_source(folder, source)
            except OSError as error:
                progress.warn(f"what was done is not recorded in {folder}: {error.strerror}")
        run = JoinRun(lab=lab, progress=progress, act=act)
        results = [StepResult(step="lab", notes=tuple(notes), changed=changed)]
        for name, work in WORK.items():
            if act:
                progress.info(_title(name))
            run.changed = False
            notes = guarded(work(run))
            results.append(StepResult(step=name, notes=tuple(notes), changed=run.changed))
        return JoinReport(
            lab=lab.name,
            contact=lab.contact,
            source=source,
            acted=act,
            steps=tuple(results),
            commands=tuple(_commands(run)),
        )


def _title(name: StepName) -> str:
    number = list(STEPS).index(name) + 1
    return f"{number}/{len(STEPS)} {STEPS[name]}"


# The lab's repository


def _source(address: str | None, labs: Path) -> str:
    """The address, or the absolute path of the folder."""
    if address is not None:
        return address if git.is_url(address) else str(Path(address).expanduser().absolute())
    sources = records.sources(labs)
    if len(sources) == 1:
        return sources[0]
    if not sources:
        raise InvalidSpec(
            "You have not joined a lab yet.",
            advice="Name the lab's repository: provision join ADDRESS, or a folder.",
        )
    listed = ", ".join(sources)
    raise InvalidSpec(f"You joined several labs: {listed}.", advice="Name the one that you mean.")


def _check_writable(folder: Path) -> None:
    """Raise an error with what helps, where the home is read-only or full."""
    probe = folder / ".probe"
    try:
        with disk_full_raises(probe, f"{SIZES_ADVICE}. {FREE_SPACE}"):
            make_private_directory(folder)
            try:
                probe.write_bytes(b"x" * 4096)
            finally:
                probe.unlink(missing_ok=True)
    except OSError as error:
        raise SystemRefused(
            f"{folder} cannot be written: {error.strerror}.",
            advice="Set XDG_CONFIG_HOME, XDG_DATA_HOME and XDG_CACHE_HOME to folders where you may "
            "write, and run the same command again.",
        ) from error


def _read_repository(
    source: str,
    folder: Path,
    progress: Progress,
    stack: ExitStack,
    *,
    act: bool,
) -> tuple[Lab, list[Note], bool]:
    """The lab, what to say of its repository, and whether it was fetched now."""
    if not git.is_url(source):
        lab = read_lab(Path(source))
        return lab, [settled(f"{lab.name}, from {source}")], False
    clone = folder / records.REPOSITORY
    if clone.is_dir():
        return _refresh_clone(source, clone, act=act)
    if not act:
        clone = stack.enter_context(temporary_directory("join")) / records.REPOSITORY
        git.clone(source, clone)
        lab = read_lab(clone)
        note = pending(f"{lab.name}: would clone {source} into {folder}")
        return lab, [note], False
    progress.info(f"cloning {source}")
    remove_leftovers(clone)
    git.clone(source, staging_path(clone))
    read_lab(staging_path(clone))  # a clone without a usable lab.yml does not stay
    replace_directory(clone)
    lab = read_lab(clone)
    return lab, [settled(f"{lab.name}, cloned from {source} to {clone}")], True


def _refresh_clone(source: str, clone: Path, *, act: bool) -> tuple[Lab, list[Note], bool]:
    """An earlier clone, brought up to date; as it is if its origin cannot be reached now."""
    notes = []
    changed = False
    try:
        if git.remote_head(clone, source) != git.head(clone):
            if act:
                git.fast_forward(clone, source)
                changed = True
            else:
                notes.append(pending("would fetch the lab's newest commit"))
    except ProvisionError as error:
        message = f"the earlier clone is used: {error.message}"
        notes.append(warning(message.rstrip("."), advice=error.advice))
    lab = read_lab(clone)
    state = "updated" if changed else "in"
    notes.insert(0, settled(f"{lab.name}, {state} {clone}"))
    return lab, notes, changed


def _commands(run: JoinRun) -> Iterator[tuple[str, str]]:
    """The first commands of a member, each with what it does."""
    if not run.lab.environments:
        return
    first = run.lab.environments[0]
    yield "a shell in the environment", f"provision shell {first.name}"
    if run.lab.clusters:
        cluster = run.lab.clusters[0]
        command = f"provision launch {first.name} --on {cluster.nodes}"
        if cluster.engine == "kubernetes":
            command += f" --image {first.image or 'HOST/NAME:TAG'}"
        else:
            test = f"provision smoke {first.name} --on {cluster.nodes} --nodes 1 --quick"
            if cluster.account:
                test = f"SBATCH_ACCOUNT={cluster.account} {test}"
            yield "a test on one of the cluster's nodes", test
        if cluster.account:
            command += f" --account {cluster.account}"
        yield "a job on the cluster", f"{command} -- train.py"
    with suppress(ProvisionError, OSError):
        if join_environments.installed_prefix(run, first) is not None:
            yield "a notebook", f"provision notebook {first.name}"
