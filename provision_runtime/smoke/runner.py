"""One rank's life: the phases in order, each agreed with the other ranks.

Owns the order of things within a rank. Ends in one of three ways: all phases taken, a phase broken, or the watchdog.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from .. import fs
from ..comm.store import PhaseAbandoned, RanksMissing, StoreLost
from ..report import model
from . import (
    agent_reaper,
    fault_injection,
    phases,
    postmortem,
    progress,
    watchdog,
)
from .collective_log import compare
from .options import UsageError
from .outcome import (
    Finding,
    Outcome,
    error_in_words,
    fold,
    found,
    from_json,
    united,
    with_rank,
)
from .phases.rendezvous import PortBusy
from .reporting import DEPUTY, Reporter
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import Options
    from .rank_env import Place

# Told to our launcher only, which then takes another port.
PORT_BUSY = 98
# Agreeing on a phase has this long even when the phase used up its deadline.
AGREE_S = 2.0
TEARDOWN_S = 20.0
LEAVE_S = 15.0
FLOOR_S = 1.0
# Other ranks leave after the reporting rank took the floor: a connection they close would look like the cause to it.
LINGER_S = 1.0


@dataclass(frozen=True)
class Taken:
    """A phase this rank went through, not yet agreed with the others."""

    phase: phases.Phase
    outcome: Outcome
    duration_s: float


def run_rank(options: Options, place: Place) -> int:
    watchdog.block_signals()
    output = _claim_stdout()
    try:
        return Worker(options, place, output).run()
    except PortBusy:
        return PORT_BUSY


def _claim_stdout() -> int:
    """Standard output is ours alone: what libraries print there (NCCL_DEBUG=INFO does) goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output


class Worker:
    def __init__(self, options: Options, place: Place, output: int) -> None:
        started = time.monotonic()
        ends_at = started + options.timeout_s if place.ends_at is None else place.ends_at
        self._watchdog = watchdog.Watchdog(self._end, ends_at, self._is_abandoned)
        self._session = Session(options, place, self._watchdog.remaining_s)
        self._reporter = Reporter(self._session, output)
        self._phase_started = started
        self._taken: list[Taken] = []
        # What this rank has to say of a phase that it left with an error.
        self._parting = Outcome()
        self._is_complete = False
        # Taken for good by the watchdog's thread when it ends the rank: the main thread may wake up while that reports.
        self._floor = threading.Lock()

    def run(self) -> int:
        self._prepare()
        self._watchdog.start()
        for phase in phases.ALL:
            if phase.name in self._session.options.planned and self._take(phase).broken:
                return self._finish(broken=True)
        if self._taken:  # facts alone: nobody was met to agree with
            self._settle()
        return self._finish(broken=False)

    def _prepare(self) -> None:
        out, rank = self._session.options.out, self._session.place.rank
        try:
            out.mkdir(parents=True, exist_ok=True)
            fs.remove_if_exists(postmortem.stuck_path(out, rank))
            self._reporter.write()
        except OSError as error:
            raise UsageError(f"--out {out} cannot be written: {error}") from error

    def _take(self, phase: phases.Phase) -> Outcome:
        self._phase_started = time.monotonic()
        self._watchdog.expect(
            phase.name,
            self._session.options.deadline_s(phase.name, self._default_deadline_s(phase)),
        )
        outcome = self._outcome(phase)
        if outcome.broken:
            self._leave_phase(phase.name, outcome)
        self._taken.append(Taken(phase, outcome, self._phase_s))
        # Until the store is reached there is nobody to agree with: facts waits for rendezvous.
        if self._session.meeting is None and not outcome.broken:
            return outcome
        return self._settle()

    @property
    def _phase_s(self) -> float:
        return time.monotonic() - self._phase_started

    def _default_deadline_s(self, phase: phases.Phase) -> float:
        """On several hosts a rank that imported torch at once waits in rendezvous for those that read it from a slow disk."""
        spare_s = 0.0
        if phase.name == "rendezvous" and not self._session.place.all_local:
            facts = phases.ALL[0]
            spare_s = max(facts.deadline_s - sum(taken.duration_s for taken in self._taken), 0.0)
        return (phase.deadline_s + spare_s) * self._session.leniency

    def _outcome(self, phase: phases.Phase) -> Outcome:
        session = self._session
        try:
            session.begin(phase.name)
            fault_injection.strike(session, phase.name)
            return phase.run(session)
        except PortBusy as busy:
            if session.place.launched and not session.options.fault("busy-port"):
                raise
            return found("port-busy", str(busy), broken=True)
        except PhaseAbandoned as abandoned:
            return Outcome(str(abandoned), broken=True)
        except RanksMissing as missing:
            return Outcome(findings=self._absent(missing.ranks), broken=True)
        except StoreLost as lost:
            return found("store-lost", str(lost), broken=True)
        except Exception as error:  # whatever torch raises is the finding
            traceback.print_exc()
            return found("backend-error", error_in_words(error), broken=True)

    def _leave_phase(self, name: str, outcome: Outcome) -> None:
        """Tell the others at once: they may wait for this rank somewhere."""
        self._parting = outcome
        for finding in outcome.findings:
            print(
                f"rank {self._session.place.rank}: {name}: {finding.message} ({finding.id})",
                file=sys.stderr,
                flush=True,
            )
        try:
            self._session.abandon()
        except StoreLost:
            return

    def _settle(self) -> Outcome:
        """Agree on what was taken; the last of it decides whether to go on."""
        agreed = Outcome()
        for taken in self._taken:
            agreed, duration_s = self._agree(taken)
            with self._floor:
                self._reporter.record(progress.finished(taken.phase.name, agreed, duration_s))
            if agreed.broken:
                self._reporter.settle()
                break
        self._taken.clear()
        return agreed

    def _agree(self, taken: Taken) -> tuple[Outcome, float]:
        """One outcome from all ranks', the same on every rank."""
        if self._session.meeting is None:
            alone = self._alone(taken.outcome)
            return (alone if alone.broken else taken.phase.merge([alone])), taken.duration_s
        if self._watchdog.remaining_s() < AGREE_S:
            self._watchdog.expect(f"agreeing on {taken.phase.name}", AGREE_S)
        said = {
            "outcome": taken.outcome.as_json(),
            "duration_s": taken.duration_s,
            "calls": self._session.calls.summary,
        }
        try:
            answers = self._session.agree(taken.phase.name, said, _is_bad_news)
            outcomes = [from_json(answer["outcome"]) for answer in answers]
            differing = self._differing_calls(
                taken.phase.name, outcomes, [answer["calls"] for answer in answers]
            )
        except RanksMissing as missing:
            return self._without(missing), taken.duration_s
        except StoreLost as lost:
            # The ranks that wait for rank 0's process find the store gone with it.
            return Outcome(
                findings=(Finding("store-lost", str(lost)), *taken.outcome.findings), broken=True
            ), taken.duration_s
        merged = (
            fold(outcomes)
            if any(outcome.broken for outcome in outcomes)
            else taken.phase.merge(outcomes)
        )
        if differing is not None:
            merged = replace(merged, findings=(*_causes(merged.findings), differing), broken=True)
        return _never_silently_broken(merged), max(answer["duration_s"] for answer in answers)

    def _alone(self, outcome: Outcome) -> Outcome:
        """Without a store this rank speaks for itself; rank 0 also for those that left word beside the report."""
        session, rank = self._session, self._session.place.rank
        findings = [with_rank(finding, rank) for finding in outcome.findings]
        if outcome.broken:
            self._leave_word("it left the run")
        if outcome.broken and rank == 0:
            words = postmortem.gather(
                None, session.options.out, session.place.world_size, {}, session.place.run
            ).words
            findings += [
                with_rank(f, other)
                for other, word in words.items()
                for f in from_json(word["outcome"]).findings
                if other != rank
            ]
        return replace(outcome, findings=united(findings))

    def _differing_calls(
        self, name: str, outcomes: Sequence[Outcome], summaries: Sequence[Any]
    ) -> Finding | None:
        """Whether all ranks called the same collectives. After a rank left with an error of its own they rightly did not."""
        has_cause = any(outcome.broken and _causes(outcome.findings) for outcome in outcomes)
        if has_cause or all(summary == summaries[0] for summary in summaries):
            return None
        latest = self._session.agree(
            f"calls until {name}", self._session.calls.latest(), lambda _: False
        )
        differing = compare(dict(enumerate(latest)))
        raised = any(
            finding.id in postmortem.CONSEQUENCES
            for outcome in outcomes
            for finding in outcome.findings
        )
        # Who raised called fewer because of that.
        return (
            None
            if raised and differing is not None and differing.id == "collective-skipped"
            else differing
        )

    def _without(self, missing: RanksMissing) -> Outcome:
        """What can be said of a phase when some ranks did not."""
        told = {rank: from_json(said["outcome"]) for rank, said in missing.payloads.items()}
        own = [
            with_rank(finding, rank)
            for rank, outcome in told.items()
            for finding in outcome.findings
        ]
        known = self._known_of(missing.ranks)
        findings = (
            postmortem.explained(own, missing.ranks, known)
            if own
            else united(postmortem.absent(missing.ranks, known))
        )
        return Outcome(findings=findings, data=told[0].data if 0 in told else {}, broken=True)

    def _absent(self, ranks: Sequence[int]) -> tuple[Finding, ...]:
        return united(postmortem.absent(ranks, self._known_of(ranks)))

    def _known_of(self, ranks: Sequence[int]) -> postmortem.Known:
        """What is known of ranks that do not answer; those of this host are ended."""
        session = self._session
        where = (
            session.mailbox,
            session.options.out,
            session.place.world_size,
            session.last_met,
            session.place.run,
        )
        known = postmortem.Known(seen=postmortem.last_seen(*where))
        known.fates = postmortem.fates(known.seen, ranks)
        self._end_silent(known, ranks)
        return known

    def _finish(self, broken: bool) -> NoReturn:
        with self._floor:
            self._is_complete = True
            self._session.phase = "teardown"
            self._watchdog.expect("teardown", TEARDOWN_S)
        success = model.succeeded(self._reporter.current.verdict)
        self._leave()
        fs.remove_if_exists(postmortem.at_path(self._session.options.out, self._session.place.rank))
        if broken:
            # Destructors of a group that lost a peer may wait for it for ever.
            agent_reaper.end_rank(False)
        if self._session.meeting is not None:
            import torch

            torch.distributed.destroy_process_group()
        # The report is written. What torch and Gloo tear down at the interpreter's exit took 24 s on each of 16 ranks that share
        # two cores, and ended one of four ranks with SIGABRT: neither says anything of the environment.
        sys.stdout.flush()
        sys.stderr.flush()
        agent_reaper.end_rank(success)

    def _leave(self) -> None:
        try:
            if self._session.meeting is not None:
                self._session.meeting.leave(LEAVE_S)
        except StoreLost:
            return

    def _is_abandoned(self) -> bool:
        """In the watchdog's thread: whether a rank left the phase that this one is in."""
        mailbox = self._session.watchdog_mailbox
        try:
            return (
                mailbox is not None and mailbox.peek(f"abandoned/{self._session.phase}") is not None
            )
        except StoreLost:
            return False

    def _end(self, reason: str, cause: str) -> NoReturn:
        """In the watchdog's thread: leave word where this rank stood, report on rank 0, and be gone."""
        watchdog.ring_backstop(watchdog.BACKSTOP_S)
        self._floor.acquire(timeout=FLOOR_S)
        try:
            if self._is_complete:
                self._end_of_teardown(reason, cause)
            else:
                self._report_or_linger(self._leave_word(reason), reason, cause)
            fs.remove_if_exists(
                postmortem.at_path(self._session.options.out, self._session.place.rank)
            )
            self._session.clear_leftovers()
        except Exception:  # a full disk must not keep this rank from ending
            traceback.print_exc()
        finally:
            agent_reaper.end_rank(False)

    def _end_of_teardown(self, reason: str, cause: str) -> None:
        """All phases are reported. A rank that does not get away speaks for itself: whoever does not answer now has ended well."""
        if cause in (watchdog.SIGNALED, watchdog.ABANDONED):
            return
        self._leave_word(reason)
        if self._session.place.rank == 0:
            outcome = Outcome(findings=(Finding("rank-stuck", reason, (0,)),))
            self._reporter.fail("teardown", outcome, self._phase_s)

    def _leave_word(self, reason: str) -> bool:
        """Whether the store took it."""
        session, rank = self._session, self._session.place.rank
        latest = session.calls.latest()
        word = postmortem.describe(
            session.place.run,
            rank,
            session.place.host,
            reason,
            session.position,
            latest,
            self._parting.as_json(),
        )
        return postmortem.leave_word(word, session.options.out, session.watchdog_mailbox)

    def _report_or_linger(self, reaches_store: bool, reason: str, cause: str) -> None:
        """Rank 0 reports what all left; its deputy where rank 0 left nothing; the others stay until that is done."""
        session, rank = self._session, self._session.place.rank
        if rank not in (0, DEPUTY):
            time.sleep(LINGER_S)
            return
        mailbox = session.watchdog_mailbox if reaches_store else None
        known = postmortem.gather(
            mailbox,
            session.options.out,
            session.place.world_size,
            session.last_met,
            session.place.run,
        )
        if rank == 0 or (0 not in known.words and not postmortem.is_reported(mailbox)):
            self._report_ending(known, reason, cause)
            self._end_silent(known, range(session.place.world_size))

    def _end_silent(self, known: postmortem.Known, ranks: Sequence[int]) -> None:
        """Our own launcher does this itself, and knows more of the process then; torchrun would wait half a minute."""
        if not self._session.place.launched:
            postmortem.end_silent(known, ranks)

    def _report_ending(self, known: postmortem.Known, reason: str, cause: str) -> None:
        session = self._session
        findings = postmortem.judge(known, session.place.world_size, reason, cause)
        outcome = Outcome(
            findings=findings,
            data={"stuck": {str(rank): word for rank, word in sorted(known.words.items())}},
        )
        self._reporter.fail(postmortem.failing_phase(known, session.phase), outcome, self._phase_s)
        self._reporter.settle()


def _is_bad_news(answer: dict[str, Any]) -> bool:
    return bool(answer["outcome"]["broken"])


def _causes(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.id not in postmortem.CONSEQUENCES)


def _never_silently_broken(outcome: Outcome) -> Outcome:
    """A phase that was not carried through is never a pass."""
    if outcome.broken and outcome.verdict == model.PASS:
        return replace(
            outcome,
            findings=(
                Finding("rank-stuck", outcome.message or "the phase was not carried through"),
            ),
        )
    return outcome
