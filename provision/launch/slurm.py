"""A job in the terms of sbatch, each option with its reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.core.dataclass import dataclass
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
    "array": "every job of an array would be the same job",
}
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.+))?")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=\[\]-]+")
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
        rows.append(("output", f"{job.name}-%j.log", "the log of all nodes, in that folder"))
    rows += [
        ("nodes", str(job.nodes), "as many as --nodes says"),
        ("ntasks-per-node", "1", "one task on each node starts the ranks of all its GPUs"),
    ]
    if gpus:
        why = f"{reasons['gpus']}; for the node, because --gpus-per-task hides each rank's peers"
        rows.append(("gpus-per-node", str(gpus), why))
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
    return (*directives, *(parse_option(text) for text in job.slurm.more))


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
