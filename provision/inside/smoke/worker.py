"""One rank's life: the phases in order, each agreed with the other ranks, and on rank 0 the report.

Owns the order of things within a rank. Ends in one of three ways: all phases taken, a phase broken, or the watchdog.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NoReturn

from .. import fs, report
from . import ending, faults, phases, progress, watchdog
from .meeting import RanksMissing, StoreLost
from .options import UsageError
from .outcome import Outcome, broke, error_in_words, fold, name_ranks
from .phases.rendezvous import PortBusy
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .options import Options
    from .place import Place

REPORT_NAME = "report.json"
# Told to our launcher only, which then takes another port.
PORT_BUSY = 98
# Agreeing on a phase has this long even when the phase used up its deadline.
AGREE_S = 5.0
TEARDOWN_S = 20.0
LEAVE_S = 5.0
FLOOR_S = 1.0
# Other ranks leave after rank 0 took the floor: a connection they close would look like the cause to it.
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
        self._started = time.monotonic()
        self._started_at = datetime.now(timezone.utc)
        ends_at = self._started + options.timeout_s if place.ends_at is None else place.ends_at
        self._watchdog = watchdog.Watchdog(self._end, ends_at)
        self._session = Session(options, place, self._watchdog.remaining_s)
        self._output = output
        self._phase_started = self._started
        self._taken: list[Taken] = []
        self._finished: list[report.Phase] = []
        self._is_complete = False
        # Taken for good by the watchdog's thread when it ends the rank: the main thread may wake up while that reports.
        self._floor = threading.Lock()

    def run(self) -> int:
        self._prepare()
        self._watchdog.start()
        for phase in phases.ALL:
            if self._take(phase).broken:
                return self._finish(broken=True)
        return self._finish(broken=False)

    def _prepare(self) -> None:
        out, rank = self._session.options.out, self._session.place.rank
        try:
            out.mkdir(parents=True, exist_ok=True)
            fs.remove_if_there(ending.stuck_path(out, rank))
            self._write_report()
        except OSError as error:
            raise UsageError(f"--out {out} cannot be written: {error}") from error

    def _take(self, phase: phases.Phase) -> Outcome:
        self._phase_started = time.monotonic()
        self._watchdog.expect(phase.name, self._session.options.deadline_s(phase.name, phase.deadline_s))
        outcome = self._outcome(phase)
        if outcome.broken:
            print(f"rank {self._session.place.rank}: {phase.name}: {outcome.message}", file=sys.stderr, flush=True)
        self._taken.append(Taken(phase, outcome, time.monotonic() - self._phase_started))
        # Until the store is reached there is nobody to agree with: facts waits for rendezvous.
        if self._session.meeting is None and not outcome.broken:
            return outcome
        return self._settle()

    def _outcome(self, phase: phases.Phase) -> Outcome:
        try:
            self._session.begin(phase.name)
            faults.strike(self._session.options, self._session.place.rank, phase.name)
            return phase.run(self._session)
        except PortBusy as busy:
            if self._session.place.launched:
                raise
            return broke(str(busy), "set MASTER_PORT to a free port")
        except (RanksMissing, StoreLost) as error:
            return broke(str(error))
        except Exception as error:  # whatever torch raises is the finding
            return broke(error_in_words(error))

    def _settle(self) -> Outcome:
        """Agree on what was taken; the last of it decides whether to go on."""
        agreed = Outcome()
        for taken in self._taken:
            agreed, duration_s = self._agree(taken)
            message = " ".join(agreed.message.split())
            self._record(report.Phase(taken.phase.name, agreed.verdict, round(duration_s, 3), message, agreed.advice, agreed.data))
            if agreed.broken:
                break
        self._taken.clear()
        return agreed

    def _agree(self, taken: Taken) -> tuple[Outcome, float]:
        """One outcome from all ranks', the same on every rank."""
        if self._session.meeting is None:
            return fold([taken.outcome]), taken.duration_s
        if self._watchdog.remaining_s() < AGREE_S:
            self._watchdog.expect(f"agreeing on {taken.phase.name}", AGREE_S)
        said = {"outcome": taken.outcome.as_json(), "duration_s": taken.duration_s}
        try:
            answers = self._session.exchange(f"phase {taken.phase.name}", said, _is_bad_news)
        except RanksMissing as missing:
            return _without(missing), taken.duration_s
        except StoreLost as lost:
            return broke(f"{taken.outcome.message} ({lost})"), taken.duration_s
        outcomes = [Outcome(**answer["outcome"]) for answer in answers]
        merged = fold(outcomes) if any(outcome.broken for outcome in outcomes) else taken.phase.merge(outcomes)
        return merged, max(answer["duration_s"] for answer in answers)

    def _record(self, phase: report.Phase) -> None:
        with self._floor:
            self._finished.append(phase)
            self._write_report()
            self._say(phase)

    def _say(self, phase: report.Phase) -> None:
        if self._session.place.rank == 0:
            os.write(self._output, (report.line(phase) + "\n").encode())

    def _report(self) -> report.Report:
        return report.Report(
            started_at=self._started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            duration_s=round(time.monotonic() - self._started, 3),
            backend=self._session.backend,
            device=self._session.device,
            world_size=self._session.place.world_size,
            hosts=self._session.hosts or [self._session.place.host],
            profile=self._session.options.profile,
            facts=self._session.facts,
            phases=progress.with_pending(self._finished),
        )

    def _write_report(self) -> None:
        if self._session.place.rank == 0:
            report.write(self._report(), self._session.options.out / REPORT_NAME)

    def _finish(self, broken: bool) -> int:
        with self._floor:
            self._is_complete = True
            self._watchdog.expect("teardown", TEARDOWN_S)
        success = report.succeeded(self._report().verdict)
        self._leave()
        if broken:
            # Destructors of a group that lost a peer may wait for it for ever.
            os._exit(1)
        import torch

        torch.distributed.destroy_process_group()
        return 0 if success else 1

    def _leave(self) -> None:
        try:
            if self._session.meeting is not None:
                self._session.meeting.leave(LEAVE_S)
        except StoreLost:
            return

    def _end(self, reason: str, late: bool) -> NoReturn:
        """In the watchdog's thread: leave word where this rank stood, report on rank 0, and be gone."""
        watchdog.ring_backstop(watchdog.BACKSTOP_S)
        self._floor.acquire(timeout=FLOOR_S)
        try:
            if late or not self._is_complete:
                self._leave_word(reason)
        except Exception:  # a full disk must not keep this rank from ending
            traceback.print_exc()
        finally:
            os._exit(1)

    def _leave_word(self, reason: str) -> None:
        session, rank = self._session, self._session.place.rank
        word = ending.describe(rank, session.place.host, reason, session.position)
        ending.leave_word(word, session.options.out, session.watchdog_mailbox)
        if rank == 0:
            self._report_ending(reason)
        else:
            time.sleep(LINGER_S)

    def _report_ending(self, reason: str) -> None:
        session = self._session
        words, seen = ending.gather_words(session.watchdog_mailbox, session.options.out, session.place.world_size)
        positions = ending.positions(words)
        name = "teardown" if self._is_complete else ending.failing_phase(positions, session.phase)
        message = f"{reason}: {ending.blame(positions, seen, session.place.world_size)}"
        duration_s = round(time.monotonic() - self._phase_started, 3)
        stuck = {str(rank): word for rank, word in sorted(words.items())}
        failing = progress.with_failure(self._report(), name, message, {"stuck": stuck}, duration_s)
        report.write(failing, session.options.out / REPORT_NAME)
        self._say(next(phase for phase in failing.phases if phase.name == name))


def _is_bad_news(answer: dict[str, Any]) -> bool:
    return bool(answer["outcome"]["broken"])


def _without(missing: RanksMissing) -> Outcome:
    """What can be said of a phase when some ranks did not."""
    told: Sequence[Outcome] = [Outcome(**said["outcome"]) for said in missing.payloads.values()]
    others = "; ".join(dict.fromkeys(outcome.message for outcome in told if outcome.broken))
    silent = f"{name_ranks(missing.ranks)} did not answer"
    return broke(f"{silent}; the others: {others}" if others else silent, "see rank*.log of the silent ranks")
