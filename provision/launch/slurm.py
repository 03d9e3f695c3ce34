"""A job in the terms of sbatch, each option with its reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from provision.core.errors import InvalidSpec
from provision.launch.durations import slurm_time
from provision.launch.jobs import JobSpec

# One task on each node, and how the job is told to save and is requeued: these are ours.
RESERVED_OPTIONS = {
    "chdir": "the folder from which you run provision",
    "comment": "how `provision jobs` knows its jobs",
    "cpus-per-task": "--set cpus",
    "gpus-per-node": "--gpus",
    "job-name": "--set job_name",
    "nodes": "--nodes",
    "ntasks-per-node": "one task on each node starts the ranks",
    "ntasks": "one task on each node starts the ranks",
    "gpus-per-task": "it would hide from each rank the GPUs of its peers",
    "open-mode": "a requeued job goes on with its log",
    "requeue": "--requeue",
    "no-requeue": "--requeue",
    "signal": "--set signal",
    "time": "--time",
    "partition": "--on",
    "exclude": "--on",
    "wrap": "the script is what runs",
    "array": "--array",
    "output": "--log-dir",
}
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.+))?")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=\[\]-]+")
# sbatch(1): numbers and ranges with steps, and after % how many run at once.
_ARRAY = re.compile(r"\d+(-\d+(:[1-9]\d*)?)?(,\d+(-\d+(:[1-9]\d*)?)?)*(%[1-9]\d*)?")
_JOB = re.compile(r"\d+(_\d+)?")
COMMENT = "provision:"


@dataclass(frozen=True, kw_only=True)
class Directive:
    """One line `#SBATCH --option=value`. value: None for an option without one."""

    option: str
    value: str | None
    reason: str

    def __str__(self) -> str:
        if self.value is None:
            return f"--{self.option}"
        return f"--{self.option}={_quoted(self.value)}"


def directives(job: JobSpec, gpus: int, reasons: Mapping[str, str]) -> tuple[Directive, ...]:
    """The options of sbatch. gpus: for each node. reasons: of the environment's requirements."""
    rows: list[tuple[str, str | None, str]] = [
        ("job-name", job.name, "what squeue shows"),
        ("comment", COMMENT + job.name, "how `provision jobs` knows its jobs"),
    ]
    if job.slurm.partition:
        rows.append(("partition", job.slurm.partition, "as --on says"))
    if job.slurm.exclude:
        rows.append(("exclude", job.slurm.exclude, "nodes of the partition that --on leaves out"))
    if job.folder:
        rows.append(("chdir", job.folder, "paths of the command are relative to this folder"))
        rows.append(("output", log_pattern(job), "the log of all nodes"))
    if job.slurm.after:
        why = "--after: it starts when these have succeeded; if one fails, Slurm removes it"
        rows.append(("dependency", ":".join(("afterok", *job.slurm.after)), why))
        rows.append(("kill-on-invalid-dep", "yes", "else it would wait for ever"))
    memory = None if job.memory_mib is None else f"{job.memory_mib}M"
    site = (
        ("account", job.slurm.account, "which account pays"),
        ("qos", job.slurm.qos, "the quality of service"),
        ("constraint", job.slurm.constraint, "features of the nodes"),
        ("array", job.slurm.array, "a job for each number, in SLURM_ARRAY_TASK_ID"),
        ("mem", memory, "memory of each node"),
    )
    rows += [row for row in site if row[1] is not None]
    rows += [
        ("nodes", str(job.nodes), "as many as --nodes says"),
        ("ntasks-per-node", "1", "one task on each node starts the ranks of all its GPUs"),
    ]
    if gpus:
        why = f"{reasons['gpus']}; for the node, because --gpus-per-task hides each rank's peers"
        rows.append(("gpus-per-node", f"{job.gpu_type}:{gpus}".lstrip(":"), why))
    if job.cpus:
        rows.append(("cpus-per-task", str(job.cpus), "the cores of the node's one task"))
    if job.time_s:
        rows.append(("time", slurm_time(job.time_s), "the job ends then"))
    if job.signal_s is not None:
        why = f"{job.signal_s} s before its end this script gets USR1, and passes it to the ranks"
        rows.append(("signal", f"B:USR1@{job.signal_s}", why))
    if job.requeue:
        rows += [
            ("requeue", None, "the script below may put the job back into the queue"),
            ("open-mode", "append", "a requeued job would truncate its log"),
        ]
    else:
        why = "a restart would begin anew: only --requeue says that the command goes on"
        rows.append(("no-requeue", None, why))
    directives = [Directive(option=option, value=value, reason=why) for option, value, why in rows]
    written = {directive.option for directive in directives}
    for text in job.slurm.more:
        directive = parse_option(text)
        if directive.option in written:
            raise InvalidSpec(
                f"--{directive.option} of sbatch is in this job already.",
                advice=f"Leave --set sbatch={text} out, or the option of launch.",
            )
        directives.append(directive)
    return tuple(directives)


def log_pattern(job: JobSpec) -> str:
    """The log's path, in which sbatch replaces the numbers of the job and of the array's task."""
    folder = f"{job.log_folder}/".replace("%", "%%") if job.log_folder else ""
    return f"{folder}{job.name}-{'%A_%a' if job.slurm.array else '%j'}.log"


def check_array(text: str) -> str:
    """The numbers of an array's tasks, as sbatch reads them. Raises InvalidSpec."""
    if _ARRAY.fullmatch(text):
        return text
    raise InvalidSpec(
        f"{text!r} is not a list of tasks.", advice="Write 0-9, 1,5,7 or 0-99:10; %2: two at once."
    )


def is_job(text: str) -> bool:
    """Whether this is a job's number, or that of an array's task: `12`, `12_3`."""
    return _JOB.fullmatch(text) is not None


def parse_option(text: str) -> Directive:
    """An option of sbatch that a user gives. Raises InvalidSpec for those that provision sets."""
    match = _OPTION.fullmatch(text.strip())
    if match is None:
        raise InvalidSpec(
            f"{text!r} is not an option of sbatch.", advice="Write it as --option=value."
        )
    option, value = match[1], match[2]
    if option in RESERVED_OPTIONS:
        raise InvalidSpec(
            f"--{option} of sbatch is set by provision: {RESERVED_OPTIONS[option]}.",
            advice=f"Leave --set sbatch={text} out.",
        )
    if value is not None and not value.isprintable():
        raise InvalidSpec(f"{text!r} has characters that no line of a script can hold.")
    return Directive(option=option, value=value, reason="as --set sbatch says")


def _quoted(value: str) -> str:
    """As sbatch reads it: like a shell, within double quotes."""
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
