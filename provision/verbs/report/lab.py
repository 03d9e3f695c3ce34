"""The page of a lab: what machines have recorded of environments, nodes and jobs.

Each machine records what was built, tested, compared and diagnosed from it.
`report --json` prints that, and one page draws it for all machines.
"""

from __future__ import annotations

import getpass
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from provision import __version__
from provision.cluster.folding import fold_equal
from provision.core import host
from provision.core.credentials import without_credentials
from provision.core.dataclass import frozen
from provision.core.errors import IntegrityError, InvalidSpec, ProvisionError
from provision.core.json_text import parse_json
from provision.core.paths import LAB
from provision.core.prefix_registry import all_projects
from provision.core.project import project_title
from provision.core.records import parse_record
from provision.environment import passport as passports
from provision.report import deviating_facts, load_nodes
from provision.workflow.context import Context
from provision.workflow.environments import Environment, environments_of_all
from provision.workflow.lab_definition import read_lab
from provision_runtime.hang import model
from provision_runtime.hang.diagnosis import diagnose

SCHEMA = "provision.report-lab/1"
DRIFT_VERDICTS = {"same": "pass", "drift": "fail"}


@frozen
class NodesEvent:
    """The latest time that nodes were tested (smoke) or compared (drift).
    at: seconds since 1970. states: of nodes, which are folded."""

    environment: str
    event: str
    on: str
    at: float
    verdict: str
    states: Mapping[str, str]


@frozen
class JobDiagnosis:
    """What `provision why` concluded of a job."""

    job: str
    at: float
    verdict: str
    summary: str
    causes: tuple[str, ...]


@frozen
class MachineRecord:
    """What a user's provision has recorded on one machine. at: when it was read, in seconds since
    1970. problems: records that could not be read."""

    user: str
    host: str
    provision: str
    gpus: str
    at: float
    environments: tuple[Environment, ...]
    nodes: tuple[NodesEvent, ...]
    jobs: tuple[JobDiagnosis, ...]
    problems: tuple[str, ...]


@frozen
class LabReport:
    """The records of a lab's machines: the newest of each user and host."""

    title: str
    records: tuple[MachineRecord, ...]


def lab_report(context: Context, files: Sequence[Path]) -> LabReport:
    """What this machine has recorded, and what files have of other machines.

    Raises InvalidSpec for a file that does not exist, IntegrityError for one that is damaged.
    """
    records = [record for file in files for record in _read(file)]
    records.sort(key=lambda record: record.at)
    records.append(_this_machine(context))
    newest = {(record.user, record.host): record for record in records}
    folder = context.folders.envs.parent
    is_lab = (folder / LAB).is_file()
    title = read_lab(folder).name if is_lab else project_title(context.folders.envs)
    return LabReport(title=title, records=tuple(newest[key] for key in sorted(newest)))


def is_lab_record(file: Path) -> bool:
    """Whether a file has the records of machines; not if it cannot be read."""
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def _read(file: Path) -> Sequence[MachineRecord]:
    advice = "Name files that `provision report --json` printed."
    try:
        if not is_lab_record(file):
            raise ValueError(f"its schema is not {SCHEMA}")
        return parse_record(LabReport, file.read_bytes()).records
    except OSError as error:
        raise InvalidSpec(f"{file}: {error.strerror}.", advice=advice) from error
    except ValueError as error:
        raise IntegrityError(f"{file} is not a record of a lab: {error}.", advice=advice) from error


def _this_machine(context: Context) -> MachineRecord:
    problems: list[str] = []
    machine = host.this_machine()
    return MachineRecord(
        user=getpass.getuser(),
        host=platform.node(),
        provision=__version__,
        gpus=", ".join(machine.gpus) + (f"; driver {machine.driver}" if machine.gpus else ""),
        at=round(time.time(), 3),
        environments=tuple(environments_of_all(context)),
        nodes=tuple(_nodes(context, problems)),
        jobs=tuple(_jobs(context, problems)),
        problems=tuple(problems),
    )


def _nodes(context: Context, problems: list[str]) -> Iterator[NodesEvent]:
    """The latest test and comparison of nodes of each environment."""
    for folders in all_projects(context.folders):
        for path in sorted(folders.passport("*").parent.glob(f"*/{passports.FILE}")):
            name = path.parent.name
            try:
                test = (passports.find(folders, name) or {}).get("smoke_nodes")
            except ProvisionError:  # `environments_of_all` has warned of it
                continue
            if test is not None:
                states = {}
                for row in test["nodes"]:
                    states[row["node"]] = ": ".join([row["state"], *row["findings"]])
                yield _event("smoke", name, test["on"], test["started_at"], test["verdict"], states)
        for path in sorted(folders.drift("*").parent.glob("*/*.json")):
            try:
                record = load_nodes(path)
            except ProvisionError as error:
                problems.append(error.message)
                continue
            states = {}
            for node in record["nodes"]:
                facts = deviating_facts(node)
                state = node.get("failure") or node["verdict"]
                states[node["name"]] = f"{state}: {facts}" if facts else state
            verdict = DRIFT_VERDICTS.get(record["verdict"], "unknown")
            yield _event(
                "drift", record["name"], record["on"], record["written_at"], verdict, states
            )


def _event(
    event: str, name: str, on: str, time_text: str, verdict: str, states: Mapping[str, str]
) -> NodesEvent:
    return NodesEvent(
        environment=name,
        event=event,
        on=on,
        at=datetime.fromisoformat(time_text.replace("Z", "+00:00")).timestamp(),
        verdict=verdict,
        states=dict(fold_equal(states)),
    )


def _jobs(context: Context, problems: list[str]) -> Sequence[JobDiagnosis]:
    """The latest diagnosis of each job whose ranks `provision why` has read here."""
    diagnoses = {}
    for path in sorted((context.folders.data / "why").glob("*.json")):
        try:
            documents = parse_json(path.read_text(encoding="utf-8"))
            snapshots = [model.from_json(document) for document in documents]
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {error}")
            continue
        for job in diagnose(snapshots):
            diagnoses[job.job] = JobDiagnosis(
                job=job.job.strip(":") or "ranks",
                at=path.stat().st_mtime,
                verdict=job.verdict,
                summary=without_credentials(job.summary),
                causes=tuple(f"{cause.id}: {cause.message}" for cause in job.causes),
            )
    return list(diagnoses.values())
