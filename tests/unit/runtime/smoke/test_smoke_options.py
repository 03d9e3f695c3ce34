"""The options of the smoke test, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.smoke import options
from provision_runtime.smoke import phases as all_phases
from tests.unit.runtime.smoke.builders import parsed


def test_paths_become_absolute_and_checkpoints_go_to_the_out_folder() -> None:
    assert parsed().out == parsed().folder == Path.cwd() / "out"
    assert parsed("--folder", "/shared").folder == Path("/shared")


def test_faults_are_parsed() -> None:
    chosen = parsed(
        "--inject", "die:1:barrier", "--inject", "flip-bit", "--inject", "other-torch:0"
    )
    assert chosen.fault("die", 1, "barrier")
    assert chosen.fault("flip-bit")
    assert chosen.fault("other-torch", 0)
    assert not chosen.fault("die", 0, "barrier")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("explode", "no such fault: 'explode'; there are absent:RANK"),
        ("die:1", "no such fault"),
        ("die:one:barrier", "'one' is not a rank"),
        ("die:-1:barrier", "'-1' is not a rank"),
        ("hang:1:lunch", "no such phase; there are facts, rendezvous"),
    ],
)
def test_unknown_fault_lists_the_known_ones(text: str, complaint: str) -> None:
    with pytest.raises(options.UsageError, match=complaint):
        options.parse_fault(text)


def test_fault_for_a_missing_rank_is_refused() -> None:
    with pytest.raises(options.UsageError, match="no rank 2 among 2"):
        parsed("--ranks", "2", "--inject", "wrong-value:2")


def test_phase_deadline_overrides_the_general_one() -> None:
    chosen = parsed("--deadline", "20", "--deadline", "barrier=5")
    assert [chosen.deadline_s(phase, 60) for phase in ("facts", "barrier")] == [20, 5]
    assert parsed().deadline_s("facts", 60) == 60


@pytest.mark.parametrize("text", ["0", "-1", "soon", "lunch=3", "barrier=", "nan"])
def test_invalid_deadline_is_refused(text: str) -> None:
    with pytest.raises(options.UsageError, match="--deadline"):
        parsed(f"--deadline={text}")


def test_phases_are_skipped_or_selected() -> None:
    assert parsed("--skip", "ddp").skipped == ("ddp",)
    assert parsed("--only", "barrier").planned == ("facts", "rendezvous", "barrier")
    assert parsed("--only", "facts").planned == ("facts",)
    assert parsed("--quick").profile == "quick"


def test_facts_alone_need_a_rendezvous_of_several_ranks() -> None:
    alone = parsed("--only", "facts")
    assert options.for_world(alone, 1).planned == ("facts",)
    assert options.for_world(alone, 2).planned == ("facts", "rendezvous")
    assert options.for_world(parsed("--skip", "ddp"), 2) == parsed("--skip", "ddp")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--skip", "rendezvous"),
        ("--skip", "barrier", "--inject", "die:1:barrier"),
        ("--only", "facts", "--inject", "hang:0:ddp"),
        ("--skip", "ddp", "--inject", "wrong-shape:1"),
    ],
)
def test_selection_that_proves_nothing_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(options.UsageError):
        parsed(*arguments)


def test_phases_of_the_options_match_those_that_run() -> None:
    assert tuple(phase.name for phase in all_phases.ALL) == options.PHASES
