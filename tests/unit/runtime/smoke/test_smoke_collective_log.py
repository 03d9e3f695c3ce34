"""Which collectives ranks called, and where they differ."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.smoke import collective_log, outcome
from tests.unit.runtime.smoke.builders import log_of


def differing(*logs: collective_log.CallLog) -> outcome.Finding | None:
    return collective_log.compare({rank: log.latest() for rank, log in enumerate(logs)})


def test_equal_call_logs_do_not_differ() -> None:
    assert log_of("barrier", "all_reduce 8").summary == log_of("barrier", "all_reduce 8").summary
    assert differing(log_of("barrier"), log_of("barrier")) is None


def test_rank_in_another_collective_is_named_with_both_calls() -> None:
    logs = [
        log_of("barrier", "all_reduce 8"),
        log_of("barrier", "broadcast 8"),
        log_of("barrier", "all_reduce 8"),
    ]
    assert logs[0].summary != logs[1].summary
    finding = differing(*logs)
    assert finding is not None
    assert (finding.id, finding.ranks) == ("collective-mismatch", (1,))
    assert finding.message == "collective 2 is broadcast 8, but all_reduce 8 on rank 0"


def test_rank_with_fewer_calls_skipped_one() -> None:
    finding = differing(
        log_of("barrier"), log_of("barrier", "barrier"), log_of("barrier", "barrier")
    )
    assert finding is not None
    assert (finding.id, finding.ranks) == ("collective-skipped", (0,))


@given(st.lists(st.sampled_from("ab"), max_size=400), st.integers(0, 400), st.integers(0, 2))
def test_changed_call_is_found_anywhere_in_the_log(names: list[str], place: int, rank: int) -> None:
    changed = [*names[:place], "c", *names[place + 1 :]] if place < len(names) else [*names, "c"]
    logs = [log_of(*(changed if which == rank else names)) for which in range(3)]
    assert logs[rank].summary != logs[(rank + 1) % 3].summary
    remembered = place >= len(names) - collective_log.REMEMBERED
    finding = differing(*logs)
    if remembered:
        assert finding is not None
        if place < len(names):
            assert (finding.id, finding.ranks) == ("collective-mismatch", (rank,))
