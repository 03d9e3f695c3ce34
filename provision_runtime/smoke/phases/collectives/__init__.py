"""Phase collectives: exact results at every size on every rank, how fast they come, and whether that is fast enough.

plan (what) → sweep (check, then time; operations and measure) → summary (one table) → judge (expected curves, baseline)

Every element is compared with what it must be. Times are the slowest rank's median; bandwidths as nccl-tests defines
them. Rank 0 has all ranks' figures and says what they come to; the other ranks say nothing unless they break.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from .... import fs
from ... import cpu_share
from ...bandwidth import baseline, judge, reference
from ...checks import expectation
from ...outcome import Finding, Outcome, fold
from . import hardware, nccl_tests, plan, summary
from .operations import Peers
from .sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ...session import Session

OF_OTHERS = ("NCCL_", "TORCH_NCCL_", "GLOO_")


def run(session: Session) -> Outcome:
    started = time.localtime()
    seats = session.exchange("who measures", _seat(session))
    scope = _scope(session, seats)
    sweep = Sweep(session, Peers(session.place.rank, session.place.world_size, session.backend))
    wanted, refused = _offered(session, sweep, scope)
    rows = plan.rows(scope, wanted)
    answers = session.exchange("collectives measured", sweep.measure(rows))
    if session.place.rank != 0:
        return Outcome()
    lines = summary.table(rows, answers)
    hosts = len({seat["host"] for seat in seats})
    _write_nccl_tests(session, started, seats, rows, answers)
    return _conclude(session, lines, refused, seats, hosts, summary.wrong_values(rows, answers))


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    return fold(outcomes)


def _seat(session: Session) -> dict[str, Any]:
    seat = {
        **cpu_share.own_seat(session.place.host),
        "pid": os.getpid(),
        "free": None,
        "device": 0,
        "bus": "0000:00:00",
    }
    if not session.on_gpu:
        return {**seat, "info": hardware.cpu_name()}
    import torch

    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    # The bus is told by later releases only.
    bus = "{:04x}:{:02x}:{:02x}".format(
        *(getattr(about, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
    )
    return {
        **seat,
        "free": torch.cuda.mem_get_info()[0],
        "device": torch.cuda.current_device(),
        "bus": bus,
        "info": about.name,
    }


def _scope(session: Session, seats: Sequence[dict[str, Any]]) -> plan.Scope:
    """Gloo moves what is on a GPU through the host, and several ranks may be on one GPU with it."""
    is_nccl = session.backend == "nccl"
    free = [
        seat["free"] / (1 if is_nccl else len(seats)) for seat in seats if seat["free"] is not None
    ]
    most = min(free, default=float("inf")) * plan.MEMORY_SHARE
    crowding = 1.0 if is_nccl else max(cpu_share.per_core(seats), 1.0)
    return plan.Scope(
        session.options.profile, "cuda" if is_nccl else "cpu", len(seats), most, crowding
    )


def _offered(
    session: Session, sweep: Sweep, scope: plan.Scope
) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """What can be measured, and why the rest cannot, the same on all ranks: what one rank refuses none calls."""
    import torch

    candidates = plan.candidates(scope)
    refused = {
        f"{c} {d}": reason
        for c, d in candidates
        for reason in [plan.unsuited(c, d, scope.ranks)]
        if reason
    }
    tried = [(c, d) for c, d in candidates if f"{c} {d}" not in refused]
    if len(tried) > 1:
        mine = [f"{c} {d}" for c, d in tried[1:] if sweep.refuses(plan.smallest(scope, c, d))]
        said = session.exchange("collectives offered", mine)
        absent = f"not offered by {session.backend} of torch {torch.__version__}"
        refused.update({name: absent for names in said for name in names})
    return [(c, d) for c, d in tried if f"{c} {d}" not in refused], refused


def _conclude(
    session: Session,
    lines: list[dict[str, Any]],
    refused: dict[str, str],
    seats: Sequence[dict[str, Any]],
    hosts: int,
    wrong: tuple[Finding, ...],
) -> Outcome:
    known = reference.load(session.options.expect or reference.SHIPPED)
    ours = hardware.of(session, hosts)
    answered, slow = judge.expectations(lines, ours, known)
    compared, regressed = _with_baseline(session, lines, hosts)
    data = {
        "ranks": session.place.world_size,
        "rows": answered,
        "refused": refused,
        "note": None if session.place.world_size > 1 else "busbw is not applicable to one rank",
        "seats": cpu_share.in_words(seats),
        "hardware": {
            "device": ours.device,
            "hosts": hosts,
            "fabric": ours.fabric,
            "nvls": ours.nvls,
        },
        "expected": judge.curves(
            ours, known, list(dict.fromkeys(line["collective"] for line in lines))
        ),
        "baseline": compared,
    }
    return Outcome(summary.in_words(answered), (*wrong, *slow, *regressed), data)


def _with_baseline(
    session: Session, lines: list[dict[str, Any]], hosts: int
) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
    if session.options.baseline is None:
        return None, ()
    verb, path = session.options.baseline
    identity = hardware.identity(session, hosts)
    if verb == "save":
        return _save(path, identity, lines)
    return judge.against_baseline(baseline.load(path), identity, lines, session.backend == "nccl")


def _save(
    path: Path, identity: baseline.Identity, lines: list[dict[str, Any]]
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    try:
        baseline.save(path, identity, lines)
    except OSError as error:
        return {"answer": "not saved"}, (
            Finding(
                "baseline-unsaved",
                f"the baseline {path} could not be written: {error.strerror}",
                (0,),
            ),
        )
    return {"answer": f"saved to {path}"}, ()


def _write_nccl_tests(
    session: Session,
    started: time.struct_time,
    seats: Sequence[dict[str, Any]],
    rows: list[plan.Row],
    answers: list[list[dict[str, Any]]],
) -> None:
    devices = [
        nccl_tests.Device(
            rank, seat["pid"], seat["host"], seat["device"], seat["bus"], seat["info"]
        )
        for rank, seat in enumerate(seats)
    ]
    run = nccl_tests.Run(
        time.strftime(nccl_tests.TIME_FORMAT, started),
        time.strftime(nccl_tests.TIME_FORMAT),
        sys.argv,
        [
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(OF_OTHERS)
        ],
        expectation.nccl_version(session.facts["torch"]) if session.backend == "nccl" else None,
        devices,
        session.on_gpu,
    )
    for old in session.options.out.glob("nccl-tests*.json"):
        fs.remove_if_exists(old)
    for name in dict.fromkeys((row.collective, row.dtype) for row in rows):
        at = [place for place, row in enumerate(rows) if (row.collective, row.dtype) == name]
        text = nccl_tests.document(
            run,
            [rows[place] for place in at],
            [[answer[place] for place in at] for answer in answers],
        )
        fs.atomic_write(
            session.options.out / nccl_tests.file_name(*name),
            (json.dumps(text, indent=1) + "\n").encode(),
        )
