"""The options of the smoke test, and what they refuse."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from provision_runtime.smoke import options
from provision_runtime.smoke import phases as all_phases


def parse(*arguments: str) -> options.Options:
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return options.from_namespace(parser.parse_args(["--out", "out", *arguments]))


def test_paths_become_absolute_and_checkpoints_go_to_the_out_folder() -> None:
    parsed = parse()
    assert parsed.out == Path.cwd() / "out"
    assert parsed.folder == parsed.out
    assert parse("--folder", "/shared").folder == Path("/shared")


def test_faults_are_parsed() -> None:
    parsed = parse("--inject", "die:1:barrier", "--inject", "flip-bit", "--inject", "wrong-value:0")
    assert parsed.fault("die", 1, "barrier")
    assert parsed.fault("flip-bit")
    assert parsed.fault("wrong-value", 0)
    assert not parsed.fault("die", 0, "barrier")


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
        options.check_faults(parse("--inject", "wrong-value:2"), 2)


def test_phase_deadline_overrides_the_general_one() -> None:
    parsed = parse("--deadline", "20", "--deadline", "barrier=5")
    assert [parsed.deadline_s(phase, 60) for phase in ("facts", "barrier")] == [20, 5]
    assert parse().deadline_s("facts", 60) == 60


@pytest.mark.parametrize("text", ["0", "-1", "soon", "lunch=3", "barrier=", "nan"])
def test_invalid_deadline_is_refused(text: str) -> None:
    with pytest.raises(options.UsageError, match="--deadline"):
        options.parse_deadline(text)


def test_phases_are_skipped_or_selected() -> None:
    assert parse("--skip", "ddp").planned == tuple(
        phase for phase in options.PHASES if phase != "ddp"
    )
    assert parse("--only", "barrier").planned == ("facts", "rendezvous", "barrier")
    assert parse("--only", "facts").planned == ("facts",)
    assert (parse("--quick").profile, parse("--full").profile) == ("quick", "full")


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
    with pytest.raises(options.UsageError, match=r"nothing can be tested without it|is skipped"):
        parse(*arguments)


def test_phases_of_the_options_match_those_that_run() -> None:
    assert tuple(phase.name for phase in all_phases.ALL) == options.PHASES
