"""Explanations of conda's failures: which requirements conflict, why, and what to change."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import conda
from provision.core.errors import Unsolvable
from provision.core.types import Pin
from provision.lockfile.diagnose import conda as diagnose_conda
from provision.lockfile.diagnose.unsat_core import (
    RULE,
    TORCH,
    USER,
    Budget,
    OutOfTime,
    PinReasons,
    minimal,
    nearest_pythons,
    undiagnosed,
)
from tests.records import alias, make_channel, record

TODAY, LATER = 1_700_000_000_000, 1_800_000_000_000  # 2023-11-14, 2027-01-15
LINUX_64 = [
    record("python", "3.11.1"),
    record("python", "3.12.1"),
    record("numpy", "1.26.4", depends=["python >=3.11"]),
    record("numpy", "2.4.0", depends=["python >=3.11"]),
    record("pytorch", "2.3.1", "py311_cuda121", depends=["python 3.11.*", "libtorch 2.3.1"]),
    record("libtorch", "2.3.1", depends=["__cuda >=12"]),
    record("old-glibc", "1", depends=["__glibc >=2.34,<3.0.a0"]),  # as conda-forge says it
    record("on-new-glibc", "1", depends=["__glibc >=2.17", "cudnn >=9", "cusparselt"]),
    record("cudnn", "8.0", depends=["__glibc >=2.17"]),
    record("cudnn", "9.1", depends=["__glibc >=2.31"]),
    record("cudnn", "9.2", depends=["__glibc >=2.34"]),
    record("cusparselt", "0.7", depends=["__glibc >=2.31"]),
    record("cusparselt", "0.6", depends=["__glibc >=2.17"]),
    record("of-312", "1", depends=["python >=3.12"]),
    record("late", "1", timestamp=LATER),
    record("undated", "1", timestamp=None),
    record("wants-blas", "1", depends=["blas 1.*"]),
    record("wants-mkl", "1", depends=["blas 2.*"]),
    record("blas", "1.0"),
    record("blas", "2.0"),
    record("chain", "1", depends=["link 1"]),
    record("link", "1", depends=["numpy <2"]),
    record("ipykernel", "7.0", depends=["python >=3.12"]),
    record("python-xxhash", "3.5", depends=["python >=3.12"]),
]
SECOND = [record("only-second", "1")]
PINS = [
    Pin(manager="conda", requirement="python=3.11", reason="one minor version", source="somewhere"),
    Pin(
        manager="conda",
        requirement="numpy<2",
        reason="the bridge fails with NumPy 2",
        source=f"x/y@{'a' * 40}:file; another",
    ),
    Pin(manager="conda", requirement="numpy=2.4", reason="requested", source="spec.yml"),
    Pin(
        manager="conda",
        requirement="pytorch=2.3.1=py311_cuda121",
        reason="build string pinned",
        source="recipe",
    ),
    Pin(
        manager="conda",
        requirement="ipykernel",
        reason="Jupyter starts it",
        source="provision kernel",
    ),
    Pin(
        manager="conda",
        requirement="python-xxhash>=2",
        reason="checkpoints",
        source="provision inside.checkpoint",
    ),
    Pin(
        manager="conda",
        requirement="torchvision=0.18",
        reason="goes with torch",
        source="elsewhere",
    ),
]


@pytest.fixture
def lab(tmp_path: Path) -> conda.Solver:
    make_channel(
        tmp_path / "first",
        {"linux-64": LINUX_64},
    )
    make_channel(tmp_path / "second", {"linux-64": SECOND})
    return conda.Solver(alias(tmp_path))


def explained(
    lab: conda.Solver,
    *specs: str,
    machine: Sequence[tuple[str, str]] = (("__glibc", "2.28"),),
    **more: Any,
) -> Unsolvable:
    more = {"channels": ("first", "second"), **more}
    request = conda.SolveRequest(specs=specs, virtual_packages=tuple(machine), **more)
    with pytest.raises(Unsolvable) as caught:
        lab.solve(request)
    explanation = diagnose_conda.explain(caught.value, request, lab, PinReasons.of(PINS))
    assert explanation.message.startswith(f"There is no environment for {request.platform}: ")
    assert explanation.details == caught.value.details and "-v" in explanation.advice
    return explanation


@pytest.mark.parametrize(
    "specs,message",
    [
        (
            ["nunpy"],
            "first and second have no package of that name for linux-64; similar names: numpy",
        ),
        (["numpy=1.25"], "first and second have numpy 2.4.0 0, 1.26.4 0."),
        (["pytorch=2.3.1=py311_cpu"], "first and second have pytorch 2.3.1 py311_cuda121."),
        (["first::only-second"], "first has no package of that name for linux-64"),
        (["nunpy", "no-such"], "no record matches `no-such` (written into environment.yml by hand)"),
    ],
)  # fmt: skip
def test_requirements_that_no_record_matches(
    lab: conda.Solver, specs: list[str], message: str
) -> None:
    assert message in explained(lab, "python=3.11", *specs).message


def test_records_hidden_by_as_of(lab: conda.Solver) -> None:
    assert (
        "have it since 2027-01-15, which `as_of` 2024-01-01 hides"
        in explained(lab, "late", as_of="2024-01-01").message
    )
    assert (
        "have it without a date, which `as_of` 2024-01-01 hides"
        in explained(lab, "undated", as_of="2024-01-01").message
    )


def test_requirements_that_exclude_each_other(lab: conda.Solver) -> None:
    explanation = explained(lab, "python=3.11", "numpy<2", "blas", "numpy=2.4")
    assert (
        "`numpy=2.4` (requested; spec.yml) and `numpy<2` (the bridge fails with NumPy 2; x/y@aaaaaaaa:file) cannot be installed together:"
        in str(explanation)
    )
    assert "or leave one of them out" in explanation.advice


def test_record_requires_another_python(lab: conda.Solver) -> None:
    explanation = explained(
        lab,
        "pytorch=2.3.1=py311_cuda121",
        "python=3.12",
        machine=[("__glibc", "2.28"), ("__cuda", "12.1")],
    )
    assert "cannot be installed together:" in explanation.message
    assert "python 3.11.*, for which no candidates were found" in explanation.message
    assert explanation.advice.startswith("Without other changes, --python 3.11 solves it. ")


def test_advice_to_omit_default_packages(lab: conda.Solver) -> None:
    explanation = explained(lab, "python=3.11", "ipykernel", "numpy<2")
    assert (
        "Without other changes, --python 3.12 solves it, or --no-jupyter solves it."
        in explanation.advice
    )
    assert "--no-companions" in explained(lab, "python=3.11", "torchvision=0.18").advice
    asked_for = explained(lab, "python=3.11", "ipykernel>=7")
    assert "--no-jupyter" not in asked_for.advice
    without_either = explained(lab, "python=3.11", "ipykernel", "wants-mkl", "wants-blas")
    assert "--no-jupyter" not in without_either.advice


def test_two_packages_that_require_a_third_differently(lab: conda.Solver) -> None:
    message = explained(lab, "wants-mkl", "python", "wants-blas").message
    assert "blas 1.*" in message and "blas 2.*" in message


def test_transitive_conflict(lab: conda.Solver) -> None:
    message = explained(lab, "chain", "python", "numpy=2.4").message
    head, *chain = message.splitlines()
    assert head.endswith(
        "`chain` (written into environment.yml by hand) and `numpy=2.4` (requested; spec.yml) "
        "cannot be installed together:"
    )
    assert [line.strip() for line in chain] == [
        "chain * cannot be installed because there are no viable options:",
        "chain 1 would require",
        "link ==1, which cannot be installed because there are no viable options:",
        "link 1 would require",
        "numpy <2, for which no candidates were found.",
    ]


@pytest.mark.parametrize(
    "spec,machine,bound,assumed",
    [
        ("pytorch=2.3.1=py311_cuda121", {}, "__cuda >=12", "(__cuda none) solves it"),
        (
            "pytorch=2.3.1=py311_cuda121",
            {"__cuda": "11.4"},
            "__cuda >=12",
            "than virtual-packages.yml assumes for linux-64 (__cuda 11.4) solves it: --cuda and --glibc",
        ),
        ("old-glibc", {}, "__glibc >=2.34,<3.0.a0", "(__glibc 2.28) solves it"),
        # A dependency needs it: the package's own bound, 2.17, is met.
        ("on-new-glibc", {}, "__glibc >=2.31", "(__glibc 2.28) solves it"),
    ],
)
def test_insufficient_machine(
    lab: conda.Solver, spec: str, machine: dict[str, str], bound: str, assumed: str
) -> None:
    machine = {"__glibc": "2.28", **machine}
    explanation = explained(lab, "python=3.11", spec, machine=tuple(machine.items()))
    assert f"{bound}, for which no candidates were found" in explanation.message
    assert "2.17" not in explanation.message and assumed in explanation.advice


def test_another_python_that_solves_it(lab: conda.Solver) -> None:
    assert "`of-312`" in (explanation := explained(lab, "python=3.11", "of-312")).message
    assert explanation.advice.startswith("Without other changes, --python 3.12 solves it.")
    cuda = [("__glibc", "2.28"), ("__cuda", "12.1")]
    other = explained(lab, "python=3.11", "pytorch=2.3.1=py311_cuda121", "of-312", machine=cuda)
    assert "--python" not in other.advice


def test_without_a_cause_the_error_has_the_solvers_explanation(
    lab: conda.Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose_conda, "BUDGET_S", 0.0)
    request = conda.SolveRequest(
        specs=("chain", "numpy=2.4"), channels=("first",), virtual_packages=(("__glibc", "2.28"),)
    )
    with pytest.raises(Unsolvable) as caught:
        lab.solve(request)
    error = diagnose_conda.explain(caught.value, request, lab, PinReasons.of(PINS))
    assert error.message.startswith(caught.value.message)
    assert error.message.endswith(caught.value.details.strip()) and "numpy" in error.message


def test_budget_counts_cpu_time_of_this_process_and_its_children() -> None:
    budget = Budget(0.3)
    time.sleep(0.4)
    budget.check()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.4: pass"])
    with pytest.raises(OutOfTime):
        budget.check()


def test_nearest_pythons() -> None:
    pythons = ["3.10", "3.14", "3.13t", "3.9", "3.12", "3.11", "3.13"]
    assert nearest_pythons("3.12", pythons) == ["3.11", "3.13", "3.10", "3.14"]


def test_conflict_is_minimal() -> None:
    solved = []

    def solvable(some: Sequence[int]) -> bool:
        solved.append(list(some))
        return not ({3, 7} <= set(some) or {3, 90} <= set(some))

    assert minimal(range(100), solvable) == [3, 7]
    assert len(solved) < 30
    assert minimal([7], lambda _: False) == [7]
    assert minimal([1, 2], lambda some: len(some) < 2) == [1, 2]


def test_pin_reasons() -> None:
    why = PinReasons.of(PINS)
    assert [why.weight(text) for text in ("scipy", "numpy=2.4", "numpy<2", "torch==2")] == [
        USER,
        USER,
        RULE,
        TORCH,
    ]
    assert why.describe(["a", "b", "c", "d"]) == "`a`, `b`, `c`, `d`"


def test_solver_s_words_come_once() -> None:
    details = "error: No solution found\n  cause: a needs b"
    error = Unsolvable("No set of wheels satisfies the request: a needs b", details=details)
    message = undiagnosed(error, OutOfTime("20 s did not suffice")).message
    assert message.startswith("No set of wheels satisfies the request.\n")
    assert message.count("a needs b") == 1
