"""Phase facts: what this environment is, and whether that is what was promised, on every rank alike."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import facts
from .. import expectation
from ..outcome import Finding, Outcome, fold, found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..session import Session


def run(session: Session) -> Outcome:
    started = time.monotonic()
    session.facts = facts.collect()
    if session.facts["error"]:
        return found("torch-broken", session.facts["error"], broken=True)
    session.backend, session.device = _choose(session)
    summary = {**_summary(session), "collect_s": round(time.monotonic() - started, 3)}
    unusable = _unusable(session)
    session.unusable = "; ".join(unusable)
    findings = [Finding("environment-unlike", text) for text in expectation.differences(session.facts, session.options)]
    findings += [Finding("backend-unusable", text) for text in unusable]
    return Outcome(_in_words(summary), tuple(findings), summary)


def merge(outcomes: Sequence[Outcome]) -> Outcome:
    folded = fold(outcomes)
    summaries = [outcome.data for outcome in outcomes]
    findings = [Finding("environment-drift", text) for text in expectation.drift(summaries)]
    findings += [Finding("gpu-shared", text) for text in expectation.shared_gpus(summaries)]
    return replace(folded, findings=(*folded.findings, *findings))


def _choose(session: Session) -> tuple[str, str]:
    """The backend that was asked for, never a quieter one; auto is nccl where torch sees a GPU."""
    backend = session.options.backend
    if backend == "auto":
        backend = "nccl" if session.facts["torch"]["cuda_available"] else "gloo"
    return backend, f"cuda:{session.place.local_rank}" if backend == "nccl" else "cpu"


def _unusable(session: Session) -> list[str]:
    """Why the chosen backend cannot work here."""
    torch = session.facts["torch"]
    found = [] if torch["distributed"] else ["this torch was built without torch.distributed"]
    if session.backend == "nccl" and session.place.local_rank >= torch["device_count"]:
        found.append(f"NCCL needs a GPU for local rank {session.place.local_rank}; torch sees {torch['device_count']}")
    return found


def _summary(session: Session) -> dict[str, Any]:
    torch = session.facts["torch"]
    own = torch["devices"][session.place.local_rank : session.place.local_rank + 1] if session.on_gpu else []
    return {
        "python": session.facts["python"]["version"],
        "torch": torch["version"],
        "cuda": torch["cuda"],
        "nccl": expectation.nccl_version(torch),
        "lock_hash": session.facts["lock_hash"],
        "backend": session.backend,
        "gpu": own[0]["uuid"] if own else None,
        "rehearsal": expectation.is_rehearsal(session.facts, session.options),
    }


def _in_words(summary: dict[str, Any]) -> str:
    cuda = f"CUDA {summary['cuda']}, NCCL {summary['nccl']}" if summary["cuda"] else "CPU build"
    where = " (rehearsal on Gloo/CPU: no GPU here)" if summary["rehearsal"] else f" on {summary['backend']}"
    return f"torch {summary['torch']}, {cuda}, Python {summary['python']}{where}"
