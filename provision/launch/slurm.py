"""A job in the terms of sbatch, each option with its reason. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.types import JOB_COMMENT
from provision.launch.durations import slurm_time
from provision.launch.jobs import JobSpec

_DATA = json.loads(Path(__file__).with_name("sbatch.json").read_text(encoding="utf-8"))
# Why each option is in the script. One task on each node, and how the job is told to save and is
# requeued, are ours: a user may not give these, and is told what to use instead.
_REASONS: Mapping[str, str] = _DATA["reasons"]
RESERVED_OPTIONS: Mapping[str, str] = _DATA["reserved"]
# The value of an option without one.
FLAG = "FLAG"
_OPTION = re.compile(r"--([a-z][a-z0-9-]*)(?:=(.+))?")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=\[\]-]+")
# sbatch(1): numbers and ranges with steps, and after % how many run at once.
_ARRAY = re.compile(r"\d+(-\d+(:[1-9]\d*)?)?(,\d+(-\d+(:[1-9]\d*)?)?)*(%[1-9]\d*)?")
_JOB = re.compile(r"\d+(_\d+)?")


@frozen
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
    """The options of sbatch, then those of the user. gpus: for each node. reasons: of the
    environment's requirements. Raises InvalidSpec for an option that is there already."""
    slurm, after = job.slurm, job.slurm.after
    values = {
        "job-name": job.name,
        "comment": JOB_COMMENT + job.name,
        "partition": slurm.partition,
        "exclude": slurm.exclude,
        "chdir": job.folder,
        "output": job.folder and log_pattern(job),
        "dependency": after and ":".join(("afterok", *after)),
        "kill-on-invalid-dep": after and "yes",
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "array": slurm.array,
        "mem": None if job.memory_mib is None else f"{job.memory_mib}M",
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": gpus and f"{job.gpu_type}:{gpus}".lstrip(":"),
        "cpus-per-task": job.cpus,
        "time": job.time_s and slurm_time(job.time_s),
        "signal": job.signal_s and f"B:USR1@{job.signal_s}",
        "requeue": job.requeue and FLAG,
        "open-mode": job.requeue and "append",
        "no-requeue": not job.requeue and FLAG,
    }
    why = {
        **_REASONS,
        "gpus-per-node": f"{reasons.get('gpus')}; {_REASONS['gpus-per-node']}",
        "signal": f"{job.signal_s} {_REASONS['signal']}",
    }
    rows = [
        Directive(option=name, value=None if value == FLAG else str(value), reason=why[name])
        for name, value in values.items()
        if value
    ]
    for text in slurm.more:
        directive = parse_option(text)
        if values.get(directive.option):
            raise InvalidSpec(
                f"--{directive.option} of sbatch is already set for this job.",
                advice=f"Leave --set sbatch={text} out, or the option of launch.",
            )
        rows.append(directive)
    return tuple(rows)


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
        raise InvalidSpec(f"{text!r} has control characters.")
    return Directive(option=option, value=value, reason="as --set sbatch says")


def _quoted(value: str) -> str:
    """As sbatch reads it: like a shell, within double quotes."""
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
