"""The table of known failure modes in docs/doctor.md: whether what it names, and the proofs that it
claims, exist."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest

from provision_runtime.report.findings import CATALOG
from tests.conftest import ROOT

MODES = 67
ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \| (.+) \|$", re.MULTILINE)
ID = re.compile(r"`([a-z0-9]+(?:-[a-z0-9]+)*)`")


@dataclass(frozen=True)
class Mode:
    """A row: the findings that report a failure mode, and how that was shown."""

    number: int
    ids: tuple[str, ...]
    proof: str


def modes() -> list[Mode]:
    page = (ROOT / "docs" / "doctor.md").read_text()
    table = page.partition("## The known failure modes")[2].partition("\n## ")[0]
    return [
        Mode(int(number), tuple(ID.findall(by)), proof) for number, by, proof in ROW.findall(table)
    ]


def sources(folder: str) -> str:
    """The text of all tests in a folder."""
    return "".join(path.read_text() for path in sorted((ROOT / "tests" / folder).rglob("*.py")))


def ids_by_proof(word: str) -> list[str]:
    """Findings for which the table claims this proof, alone or named next to it."""
    ids = []
    for mode in modes():
        others = [id for part in mode.proof.split(";")[1:] for id in ID.findall(part)]
        if mode.proof.startswith(word):
            ids += [id for id in mode.ids if id not in others]
        ids += [id for id in others if word in mode.proof.partition(f"`{id}`")[2]]
    return ids


def test_every_mode_has_a_row_and_names_findings_that_exist() -> None:
    assert [mode.number for mode in modes()] == list(range(1, MODES + 1))
    named = {id for mode in modes() for id in mode.ids}
    assert named - set(CATALOG) == set()


def test_what_is_called_captured_has_a_capture() -> None:
    captures = (ROOT / "tests" / "captures").glob("*/case.json")
    captured = {json.loads(path.read_text())["finding"] for path in captures}
    assert ids_by_proof("captured")
    assert set(ids_by_proof("captured")) - captured == set()


@pytest.mark.parametrize(
    ("word", "folders"),
    [
        ("real", ("integration",)),
        ("call refused", ("integration",)),
        ("replayed", ("unit",)),
        ("rule", ("unit", "integration")),
    ],
)
def test_other_proofs_are_tests_that_name_the_finding(word: str, folders: tuple[str, ...]) -> None:
    text = "".join(sources(folder) for folder in folders)
    ids = ids_by_proof(word)
    assert ids
    assert [id for id in ids if f'"{id}"' not in text] == []
