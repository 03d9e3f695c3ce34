"""The records of a lab's machines -> the values of templates/lab.html.j2. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from provision.cli.text import short_age
from provision.core.dataclass import dataclass
from provision.verbs.report.lab import LabReport, MachineRecord
from provision.workflow.environments import WORST, Environment
from provision_runtime.report.text import format_count

# A verdict that is older than this is marked.
OLD_S = 30 * 86400.0
JOB_VERDICTS = {"no-hang": "pass", "hang": "fail", "failure": "fail"}


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One thing that is known of an environment on a machine. target: what was tested. note: why
    it is not current, and whose it is. at: seconds since 1970."""

    verdict: str
    target: str = ""
    note: str
    at: float | None = None


@dataclass(frozen=True, kw_only=True)
class EnvironmentRow:
    """One environment: what is known of it on each machine. locks: those that are installed."""

    name: str
    project: str
    locks: tuple[str, ...]
    cells: tuple[tuple[Proof, ...], ...]


def page_values(report: LabReport) -> dict[str, object]:
    """The values of the template. Ages are as of the newest record."""
    now = max(record.at for record in report.records)
    hosts = list(dict.fromkeys(record.host for record in report.records))
    for record in report.records:
        tested = (verdict.host for row in record.environments for verdict in row.verdicts)
        hosts += [host for host in tested if host not in hosts]
    rows = _rows(report, hosts)
    verdicts = [proof.verdict for row in rows for cell in row.cells for proof in cell]
    events = [event for record in report.records for event in record.nodes]
    jobs = [job for record in report.records for job in record.jobs]
    verdicts += [event.verdict for event in events]
    verdicts += [JOB_VERDICTS.get(job.verdict, "unknown") for job in jobs]
    worst = next((verdict for verdict in WORST if verdict in verdicts), "unknown")
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in WORST if word in verdicts)

    def age(at: float | None) -> str:
        return short_age(at, now)

    def is_old(at: float | None) -> bool:
        return at is not None and now - at > OLD_S

    size = f"{format_count(len(rows), 'environment')} on {format_count(len(hosts), 'machine')}"
    summary = f"{size}: {counts or 'nothing was tested'}"
    return {
        "page": {"title": report.title, "verdict": worst},
        "headline": f"{report.title}, {summary}",
        "summary": summary,
        "written_at": datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "records": report.records,
        "hosts": hosts,
        "rows": rows,
        "events": sorted(events, key=lambda event: (event.environment, -event.at)),
        "jobs": sorted(jobs, key=lambda job: -job.at),
        "job_verdicts": JOB_VERDICTS,
        "age": age,
        "is_old": is_old,
    }


def _rows(report: LabReport, hosts: list[str]) -> list[EnvironmentRow]:
    proofs: dict[tuple[str, str], dict[str, list[Proof]]] = {}
    locks: dict[tuple[str, str], list[str]] = {}
    users = {record.user for record in report.records}
    for record in report.records:
        for environment in record.environments:
            # The clones of members have different paths, and one name.
            key = environment.name, environment.project.name
            user = record.user if len(users) > 1 else ""
            for host, proof in _proofs(record, environment, user):
                proofs.setdefault(key, {}).setdefault(host, []).append(proof)
            if environment.lock and environment.lock not in locks.setdefault(key, []):
                locks[key].append(environment.lock)
    rows = []
    for (name, project), by_host in sorted(proofs.items()):
        cells = tuple(tuple(by_host.get(host, ())) for host in hosts)
        recorded = tuple(locks.get((name, project), ()))
        rows.append(EnvironmentRow(name=name, project=project, locks=recorded, cells=cells))
    return rows


def _proofs(
    record: MachineRecord, environment: Environment, user: str
) -> Iterator[tuple[str, Proof]]:
    """What a record says of an environment, and on which host."""
    state = "" if environment.state == "current" else environment.state
    for verdict in environment.verdicts:
        # A change of the driver or the lock since the test leaves nothing proved.
        is_here = verdict.host == record.host
        reason = state or (verdict.elsewhere if is_here else "")
        note = ", ".join(filter(None, [reason, user]))
        proved = "unknown" if reason and verdict.verdict == "pass" else verdict.verdict
        yield (
            verdict.host,
            Proof(verdict=proved, target=verdict.target, note=note, at=verdict.measured_at),
        )
    if not any(verdict.host == record.host for verdict in environment.verdicts):
        reason = environment.smoke or "not tested"
        if environment.verdicts:
            reason = "not tested here"
        reason = state or reason
        is_absent = environment.state == "not installed"
        note = ", ".join(filter(None, [reason, user]))
        yield record.host, Proof(verdict="-" if is_absent else "unknown", note=note)
