"""What a diagnosis proposes: options that solve a conflict alone, or the fewest that do together."""

from __future__ import annotations

from provision.lockfile.diagnose.unsat_core import DEFAULT_PACKAGES, WITH, PinReasons, solutions

ADDED = "added by default; provision"
JUPYTER, HASHES = DEFAULT_PACKAGES["ipykernel"], DEFAULT_PACKAGES["xxhash"]
REASONS = PinReasons({"ipykernel": ADDED, "xxhash>=2": ADDED, "torchvision": ADDED})


def proposed(needed: set[str]) -> str:
    """Of a conflict that is solved without all of these, where a minimal one names ipykernel."""

    def solves(option: str) -> bool:
        return needed <= set(option.split(WITH))

    return solutions(["ipykernel"], REASONS, solves, "", ())


def test_an_option_that_solves_alone() -> None:
    assert proposed({JUPYTER}) == f"Without other changes, {JUPYTER} solves it. "


def test_options_that_solve_together_and_no_more_of_them() -> None:
    advice = proposed({JUPYTER, HASHES})
    assert advice == f"Without other changes, {JUPYTER}{WITH}{HASHES} solves it. "


def test_no_option_solves_it() -> None:
    assert proposed({"--python 3.11"}) == ""
