"""Runs one rank: the phases in order, each agreed with the other ranks.

A rank ends when all phases are complete, a phase is broken, or the watchdog ends it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import List, NamedTuple, NoReturn

from ..comm.store import PhaseAbandoned, RanksMissing, StoreLost
from ..report import model
from ..report.codec import decode
from . import (
    fault_injection,
    last_states,
    out_folder,
    phases,
    postmortem,
    reporter,
    watchdog,
)
from .collective_log import Call, compare
from .context import RankContext
from .options import Options, UsageError
from .outcome import (
    Finding,
    Outcome,
    combine,
    describe_error,
    merge_equal,
    with_finding,
    with_rank,
)
from .rank_env import RankEnv

# Time for agreeing on a phase, even if the phase used up its deadline.
AGREE_S = 2.0
TEARDOWN_S = 20.0
LEAVE_S = 15.0
# How long the watchdog waits for the main thread to finish writing the report.
REPORT_LOCK_S = 1.0
# The other ranks end only after the reporting rank has taken the report lock: a connection that
# they close would look like the cause to it.
REPORTER_HEAD_START_S = 1.0


class CompletedPhase(NamedTuple):
    """A phase that this rank has completed, not yet agreed with the others."""

    phase: phases.Phase
    outcome: Outcome
    duration_s: float


def run_rank(options: Options, env: RankEnv) -> int:
    watchdog.block_signals()
    # The standard output is for the report alone: what libraries print there (NCCL_DEBUG=INFO does)
    # goes to standard error.
    output = os.dup(1)
    os.dup2(2, 1)
    return RankRunner(options, env, output).run()


class RankRunner:
    def __init__(self, options: Options, env: RankEnv, output: int) -> None:
        started = time.monotonic()
        ends_at = started + options.timeout_s if env.ends_at is None else env.ends_at
        self._watchdog = watchdog.Watchdog(self._end, ends_at, self._is_abandoned)
        self._context = RankContext(options, env, self._watchdog.remaining_s)
        self._reporter = reporter.Reporter(self._context, output)
        self._phase_started = started
        self._completed: list[CompletedPhase] = []
        # What this rank reports of a phase that it left with an error.
        self._abort_outcome = Outcome()
        self._is_complete = False
        # The watchdog's thread never releases it after it ended the rank: the main thread may wake
        # up while the watchdog reports.
        self._report_lock = threading.Lock()

    def run(self) -> int:
        self._prepare()
        self._watchdog.start()
        for phase in phases.ALL:
            if phase.name in self._context.options.planned and self._run_phase(phase).broken:
                return self._finish(broken=True)
        if self._completed:  # facts alone: there was no store to agree through
            self._agree_on_completed()
        return self._finish(broken=False)

    def _prepare(self) -> None:
        out, rank = self._context.options.out, self._context.env.rank
        try:
            out.mkdir(parents=True, exist_ok=True)
            if rank == 0 and not self._context.env.launched:
                out_folder.claim(out)
            last_states.state_path(out, rank).unlink(missing_ok=True)
            self._reporter.write()
        except OSError as error:
            raise UsageError(f"--out {out} cannot be written: {error}") from error

    def _run_phase(self, phase: phases.Phase) -> Outcome:
        self._phase_started = time.monotonic()
        # On several hosts, a rank that imported torch at once waits in rendezvous for those
        # that read it from a slow disk.
        spare_s = 0.0
        if phase.name == "rendezvous" and not self._context.env.all_local:
            used_s = sum(completed.duration_s for completed in self._completed)
            spare_s = max(phases.ALL[0].deadline_s - used_s, 0.0)
        default_s = (phase.deadline_s + spare_s) * self._context.deadline_factor
        self._watchdog.expect(phase.name, self._context.options.deadline_s(phase.name, default_s))
        outcome = self._outcome(phase)
        if outcome.broken:
            # Informs the other ranks at once: they may be waiting for this rank.
            self._abort_outcome = outcome
            rank = self._context.env.rank
            for finding in outcome.findings:
                text = f"rank {rank}: {phase.name}: {finding.message} ({finding.id})"
                print(text, file=sys.stderr, flush=True)
            with contextlib.suppress(StoreLost):
                if self._context.client is not None:
                    self._context.client.set(f"abandoned/{phase.name}", rank)
        duration_s = time.monotonic() - self._phase_started
        self._completed.append(CompletedPhase(phase, outcome, duration_s))
        # Until the store is reached there is no way to agree: facts waits for rendezvous.
        if self._context.all_gather is None and not outcome.broken:
            return outcome
        return self._agree_on_completed()

    def _outcome(self, phase: phases.Phase) -> Outcome:
        context = self._context
        try:
            context.begin_phase(phase.name)
            fault_injection.inject(context, phase.name)
            return phase.run(context)
        except PhaseAbandoned as abandoned:
            return Outcome(str(abandoned), broken=True)
        except RanksMissing as missing:
            evidence = self._evidence_of(missing.ranks)
            findings = postmortem.root_causes((), missing.ranks, evidence)
            return Outcome(findings=findings, broken=True)
        except StoreLost as store_error:
            return with_finding("store-lost", str(store_error), broken=True)
        except Exception as error:  # whatever torch raises is the finding
            traceback.print_exc()
            return with_finding("backend-error", describe_error(error), broken=True)

    def _agree_on_completed(self) -> Outcome:
        """Agrees on each completed phase. The last outcome decides whether to continue."""
        agreed = Outcome()
        while self._completed:
            completed = self._completed[0]
            agreed, duration_s = self._agree(completed)
            with self._report_lock:
                self._reporter.record(completed.phase.name, agreed, duration_s)
                # Under the lock, or the watchdog would report this phase again.
                del self._completed[0]
            if agreed.broken:
                break
        self._completed.clear()
        return agreed

    def _agree(self, completed: CompletedPhase) -> tuple[Outcome, float]:
        """One outcome from all ranks', the same on every rank; and the longest duration."""
        phase, outcome_here, duration_s = completed
        if self._context.all_gather is None:
            rank = self._context.env.rank
            findings = [with_rank(finding, rank) for finding in outcome_here.findings]
            if not outcome_here.broken:
                return phase.merge([replace(outcome_here, findings=tuple(findings))]), duration_s
            # Without a store this rank reports for itself; rank 0 also for the ranks that wrote
            # their last state next to the report.
            self._write_last_state("it left the run")
            if rank == 0:
                out, env = self._context.options.out, self._context.env
                findings += last_states.collect_evidence(None, out, env, {}).reported(but=0)
            return replace(outcome_here, findings=merge_equal(findings)), duration_s
        if self._watchdog.remaining_s() < AGREE_S:
            self._watchdog.expect(f"agreeing on {phase.name}", AGREE_S)
        payload = [asdict(outcome_here), duration_s, self._context.calls.summary]
        try:
            replies = self._context.agree(
                phase.name, payload, lambda reply: bool(reply[0]["broken"])
            )
            outcomes = [decode(Outcome, outcome, "outcome") for outcome, _, _ in replies]
            summaries = [summary for _, _, summary in replies]
            differing = self._differing_calls(phase.name, outcomes, summaries)
        except RanksMissing as missing:
            collected = {
                rank: decode(Outcome, reply[0], "outcome")
                for rank, reply in missing.payloads.items()
            }
            return self._outcome_with_missing_ranks(missing.ranks, collected), duration_s
        except StoreLost as store_error:
            # Ranks that wait for rank 0's process lose the store with it.
            absent = Finding("store-lost", str(store_error))
            return Outcome(findings=(absent, *outcome_here.findings), broken=True), duration_s
        merge = combine if any(outcome.broken for outcome in outcomes) else phase.merge
        merged = merge(outcomes)
        if differing is not None:
            causes = (*_without_consequences(merged.findings), differing)
            merged = replace(merged, findings=causes, broken=True)
        if merged.broken and merged.verdict == model.PASS:
            # A phase that was not completed is never a pass.
            message = merged.message or "the phase was not completed"
            merged = replace(merged, findings=(Finding("rank-stuck", message),))
        return merged, max(duration_s for _, duration_s, _ in replies)

    def _record_facts(self) -> None:
        """The run ends before the ranks agreed on their facts: report those of rank 0."""
        phase, outcome, duration_s = self._completed[0]
        if phase is phases.ALL[0] and self._context.env.rank == 0:
            self._reporter.record(phase.name, phase.merge([outcome]), duration_s)
        self._completed.clear()

    def _differing_calls(
        self, name: str, outcomes: Sequence[Outcome], summaries: Sequence[Sequence[int]]
    ) -> Finding | None:
        """The finding if ranks called different collectives; None if a rank left with an error, as
        the calls then differ for that reason."""
        causes = [_without_consequences(outcome.findings) for outcome in outcomes]
        has_left = any(outcome.broken and cause for outcome, cause in zip(outcomes, causes))
        if has_left or all(summary == summaries[0] for summary in summaries):
            return None
        calls_here = [asdict(call) for call in self._context.calls.latest()]
        latest = self._context.agree(f"calls until {name}", calls_here)
        differing = compare(dict(enumerate(decode(List[List[Call]], latest, "calls"))))
        # A rank whose collective raised made fewer calls because of that.
        has_raised = any(len(cause) < len(o.findings) for o, cause in zip(outcomes, causes))
        if has_raised and differing is not None and differing.id == "collective-skipped":
            return None
        return differing

    def _outcome_with_missing_ranks(
        self, missing: Sequence[int], outcomes: Mapping[int, Outcome]
    ) -> Outcome:
        reported = []
        for rank, outcome in outcomes.items():
            reported += [with_rank(finding, rank) for finding in outcome.findings]
        findings = postmortem.root_causes(reported, missing, self._evidence_of(missing))
        data = outcomes[0].data if 0 in outcomes else {}
        return Outcome(findings=findings, data=data, broken=True)

    def _evidence_of(self, ranks: Sequence[int]) -> postmortem.PostmortemEvidence:
        context = self._context
        locations = last_states.read_locations(
            context.client, context.options.out, context.env, context.last_locations
        )
        evidence = postmortem.PostmortemEvidence(locations=locations)
        last_states.examine_processes(evidence, ranks)
        return evidence

    def _finish(self, broken: bool) -> NoReturn:
        context = self._context
        with self._report_lock:
            self._is_complete = True
            context.phase = "teardown"
            self._watchdog.expect("teardown", TEARDOWN_S)
        success = model.succeeded(self._reporter.current.verdict)
        if context.all_gather is not None:
            with contextlib.suppress(StoreLost):
                context.all_gather.leave(LEAVE_S)
        context.remove_location()
        if broken:
            # Destructors of a group that lost a peer may wait for it forever.
            watchdog.end_rank(False)
        if context.all_gather is not None:
            import torch

            # Not a group of Gloo: torch 2.3 holds the GIL while it joins Gloo's threads, which may
            # want the GIL (pytorch issue 56297). The rank would hang, with its watchdog.
            if torch.distributed.get_backend() != "gloo":
                torch.distributed.destroy_process_group()
        # The report is written. What torch and Gloo tear down at the interpreter's exit took 24 s
        # on each of 16 ranks that share two cores, and ended one of four ranks with SIGABRT:
        # neither means anything for the environment.
        sys.stdout.flush()
        sys.stderr.flush()
        watchdog.end_rank(success)

    def _is_abandoned(self) -> bool:
        """In the watchdog's thread: whether a rank left the phase that this one is in."""
        client = self._context.watchdog_client
        with contextlib.suppress(StoreLost):
            if client is not None:
                return client.peek(f"abandoned/{self._context.phase}") is not None
        return False

    def _end(self, reason: str, cause: str) -> NoReturn:
        """In the watchdog's thread: write the last state, report on rank 0, and end the process."""
        context = self._context
        try:
            watchdog.set_backstop(watchdog.BACKSTOP_S)
            self._report_lock.acquire(timeout=REPORT_LOCK_S)
            if self._is_complete:
                # All phases are reported. A rank that cannot end reports for itself; ranks that do
                # not respond now have ended well.
                if cause not in (watchdog.SIGNALED, watchdog.ABANDONED):
                    self._write_last_state(reason)
                    if context.env.rank == 0:
                        self._reporter.fail("teardown", (Finding("rank-stuck", reason, (0,)),))
            else:
                reaches_store = self._write_last_state(reason)
                self._report_or_wait(reaches_store, reason, cause)
            context.remove_location()
            context.remove_temporary_folders()
        except Exception:  # a full disk must not keep this rank from ending
            traceback.print_exc()
        finally:
            watchdog.end_rank(False)

    def _write_last_state(self, reason: str) -> bool:
        """Returns whether the store took it."""
        context = self._context
        state = postmortem.LastState(
            run=context.env.run,
            rank=context.env.rank,
            host=context.env.host,
            reason=reason,
            position=context.position,
            calls=context.calls.latest()[-last_states.REPORTED_CALLS :],
            outcome=self._abort_outcome,
            stack=last_states.stack_of_main_thread(),
        )
        return last_states.write_last_state(state, context.options.out, context.watchdog_client)

    def _report_or_wait(self, reaches_store: bool, reason: str, cause: str) -> None:
        """Rank 0 reports what all ranks wrote; on a host that no longer reaches the store, its first
        rank. The other ranks stay until that has begun."""
        context, env = self._context, self._context.env
        if env.rank != 0 and (reaches_store or not context.is_first_of_host):
            time.sleep(REPORTER_HEAD_START_S)
            return
        client = context.watchdog_client if reaches_store else None
        evidence = last_states.collect_evidence(
            client, context.options.out, env, context.last_locations
        )
        if env.rank != 0 and 0 in evidence.last_states:
            # Rank 0 is alive, as the shared folder shows, and reports.
            store = f"{env.master_addr}:{env.master_port}"
            message = f"{env.host} no longer reaches the store at {store}; rank 0 reports"
            missing = Finding("link-lost", message, (env.rank,))
            self._reporter.fail(context.phase, (missing,), is_written=False)
            return
        findings = postmortem.blame(evidence, env.world_size, reason, cause)
        phase = postmortem.failing_phase(evidence, context.phase)
        if phase != phases.ALL[0].name and self._completed:
            self._record_facts()
        states = {str(rank): asdict(state) for rank, state in sorted(evidence.last_states.items())}
        self._reporter.fail(phase, findings, {"last_states": states})


def _without_consequences(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.id not in postmortem.CONSEQUENCES)
