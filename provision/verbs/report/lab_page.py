"""The records of a lab's machines -> the values of templates/lab.html.j2. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from datetime import datetime, timezone

from provision.cli.text import short_age
from provision.core.dataclass import frozen
from provision.verbs.report.lab import LabReport, MachineRecord
from provision.workflow.environments import WORST, Environment
from provision_runtime.report.text import format_count

# A verdict that is older than this is marked.
OLD_S = 30 * 86400.0
JOB_VERDICTS = {"no-hang": "pass", "hang": "fail", "failure": "fail"}


@frozen
class Proof:
    """One thing that is known of an environment on a machine. target: what was tested. note: why
    it is not current, and whose it is. at: seconds since 1970."""

    verdict: str
    target: str = ""
    note: str
    at: float | None = None


@frozen
class EnvironmentRow:
    """One environment: the locks that are installed, and what is known of it by host."""

    locks: dict[str, None] = field(default_factory=dict)
    proofs: dict[str, list[Proof]] = field(default_factory=dict)


def page_values(report: LabReport) -> dict[str, object]:
    """The values of the template. Ages are as of the newest record."""
    now = max(record.at for record in report.records)
    has_members = len({record.user for record in report.records}) > 1
    hosts = {record.host for record in report.records}
    rows: dict[tuple[str, str], EnvironmentRow] = {}
    for record in report.records:
        for environment in record.environments:
            # The clones of members have different paths, and one name.
            key = environment.name, environment.project.name
            row = rows.setdefault(key, EnvironmentRow())
            if environment.lock:
                row.locks[environment.lock] = None
            for host, proof in _proofs(record, environment, record.user if has_members else ""):
                hosts.add(host)
                row.proofs.setdefault(host, []).append(proof)
    events = [event for record in report.records for event in record.nodes]
    jobs = [job for record in report.records for job in record.jobs]
    verdicts = [
        *(proof.verdict for row in rows.values() for cell in row.proofs.values() for proof in cell),
        *(event.verdict for event in events),
        *(JOB_VERDICTS.get(job.verdict, "unknown") for job in jobs),
    ]
    counts = [f"{verdicts.count(token)} {token}" for token in WORST if token in verdicts]
    size = f"{format_count(len(rows), 'environment')} on {format_count(len(hosts), 'machine')}"
    summary = f"{size}: {', '.join(counts) or 'nothing was tested'}"
    worst = next((verdict for verdict in WORST if verdict in verdicts), "unknown")
    return {
        "page": {"title": report.title, "verdict": worst},
        "headline": f"{report.title}, {summary}",
        "summary": summary,
        "written_at": datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "records": report.records,
        "hosts": sorted(hosts),
        "rows": sorted(rows.items()),
        "events": sorted(events, key=lambda event: (event.environment, -event.at)),
        "jobs": sorted(jobs, key=lambda job: -job.at),
        "job_verdicts": JOB_VERDICTS,
        "now": now,
        "old_s": OLD_S,
        "short_age": short_age,
    }


def _proofs(
    record: MachineRecord, environment: Environment, user: str
) -> Iterator[tuple[str, Proof]]:
    """What a record says of an environment, and on which host. user: to be named."""
    state = "" if environment.state == "current" else environment.state
    tested = {verdict.host for verdict in environment.verdicts}
    for verdict in environment.verdicts:
        # A change of the driver or the lock since the test leaves nothing proved.
        reason = state or (verdict.elsewhere if verdict.host == record.host else "")
        token = "unknown" if reason and verdict.verdict == "pass" else verdict.verdict
        note = ", ".join(filter(None, (reason, user)))
        proof = Proof(verdict=token, target=verdict.target, note=note, at=verdict.measured_at)
        yield verdict.host, proof
    if record.host not in tested:
        token = "-" if environment.state == "not installed" else "unknown"
        reason = state or ("not tested here" if tested else environment.smoke or "not tested")
        yield record.host, Proof(verdict=token, note=", ".join(filter(None, (reason, user))))
