"""Jobs: sbatch, squeue, scontrol and scancel of the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from provision.adapters.slurm.command import environment_outside_jobs, run_slurm
from provision.core.errors import InvalidSpec
from provision.core.types import JOB_COMMENT, ListedJob

# Comment, id, name, state, nodes, time used and its limit, and last the reason or the node list.
_FORMAT = "%k|%i|%j|%T|%D|%M/%l|%R"
_COLUMNS = 7
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/_-]*)=")
_UNKNOWN_JOB = re.compile(r"invalid job id", re.I)
# Words of Slurm for why a job waits or stopped, and what to do about it. squeue(1), JOB REASON
# CODES; the one of four words is what a failing prolog leaves.
_FILE = Path(__file__).with_name("reasons.json")
REASONS: Mapping[str, str] = json.loads(_FILE.read_text(encoding="utf-8"))


def submit(*arguments: str) -> str:
    """Submit a job with these arguments of sbatch; returns its id.

    Raises ToolMissing without sbatch, InvalidSpec if Slurm rejects the job, Unreachable.
    """
    output = run_slurm(
        ["sbatch", "--parsable", *arguments],
        lambda message: InvalidSpec(
            f"Slurm rejected the job: {message}.",
            advice="Account, quality of service and the like come from options, or from variables: "
            "SBATCH_ACCOUNT, SBATCH_QOS (sbatch(1)).",
        ),
        environment_outside_jobs(),
    )
    # ID, or ID;CLUSTER where there are several. Warnings of plug-ins may come first.
    return output.strip().splitlines()[-1].split(";")[0]


def list_jobs() -> list[ListedJob]:
    """The jobs of this user that provision launched and Slurm still knows."""
    return parse_jobs(_ask("squeue", "--me", "--noheader", "--states=all", "-o", _FORMAT))


def parse_jobs(text: str) -> list[ListedJob]:
    jobs = []
    for line in text.split("\n"):
        cells = [cell.strip() for cell in line.split("|", _COLUMNS - 1)]
        if len(cells) == _COLUMNS and cells[0].startswith(JOB_COMMENT):
            _, identity, name, state, nodes, time, where = cells
            advice = REASONS.get(where.strip("()").split(",")[0], "").replace("ID", identity)
            jobs.append(
                ListedJob(
                    id=identity,
                    name=name,
                    state=state,
                    nodes=int(nodes) if re.fullmatch("[0-9]{1,9}", nodes) else 0,
                    time=time,
                    where=where,
                    advice=advice,
                )
            )
    return jobs


def show_tasks(identity: str) -> list[dict[str, str]]:
    """The fields of `scontrol show job`, of every task of an array that is listed by itself. Raises
    InvalidSpec for a job that Slurm does not know."""
    text = _ask("scontrol", "--oneliner", "show", "job", identity)
    return [parse_job(line) for line in text.splitlines() if line.strip()] or [{}]


def parse_job(text: str) -> dict[str, str]:
    """The fields of `scontrol --oneliner show job`. Values may have spaces, but no `Word=`."""
    fields = {}
    matches = list(_FIELD.finditer(text))
    for number, match in enumerate(matches):
        end = matches[number + 1].start() if number + 1 < len(matches) else len(text)
        fields[match[1]] = text[match.end() : end].strip()
    return fields


def log_path(fields: Mapping[str, str]) -> Path:
    """The log of a job. Since 24.05 Slurm shows the pattern of the name instead of the name."""
    values = {
        "j": fields.get("JobId", ""),
        "A": fields.get("ArrayJobId", fields.get("JobId", "")),
        "a": fields.get("ArrayTaskId", ""),
        "x": fields.get("JobName", ""),
        "u": fields.get("UserId", "").partition("(")[0],
        "N": fields.get("BatchHost", ""),
        "%": "%",
    }
    path = re.sub(r"%([jAaxuN%])", lambda match: values[match[1]], fields.get("StdOut", ""))
    return Path(fields.get("WorkDir", "/")) / path


def cancel(identity: str) -> None:
    """Cancel a job. Its ranks get SIGTERM first."""
    _ask("scancel", identity)


def _ask(*command: str) -> str:
    def refusal(message: str) -> InvalidSpec:
        if _UNKNOWN_JOB.search(message):
            return InvalidSpec(
                f"Slurm has no job {command[-1]}.",
                advice="It forgets jobs some minutes after their end. The log is where the job "
                f"started, as NAME-{command[-1]}.log.",
            )
        return InvalidSpec(f"{command[0]} failed: {message}.")

    return run_slurm(list(command), refusal)
