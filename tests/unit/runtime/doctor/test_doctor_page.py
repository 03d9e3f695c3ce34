"""The table of known failure modes in docs/doctor.md names findings and captures that exist."""

from __future__ import annotations

import json
import re

from provision_runtime.report.findings import CATALOG
from tests.conftest import ROOT

MODES = 67
ROW = re.compile(r"^\| (\d+) \| .+ \| (.+) \| (.+) \|$", re.MULTILINE)
ID = re.compile(r"`([a-z0-9]+(?:-[a-z0-9]+)*)`")


def modes() -> list[tuple[int, set[str], str]]:
    """Number, findings and proof of each row."""
    page = (ROOT / "docs" / "doctor.md").read_text()
    table = page.partition("## The known failure modes")[2].partition("\n## ")[0]
    return [(int(number), set(ID.findall(ids)), proof) for number, ids, proof in ROW.findall(table)]


def test_every_mode_has_a_row_and_names_findings_that_exist() -> None:
    assert [number for number, _, _ in modes()] == list(range(1, MODES + 1))
    assert set.union(*(ids for _, ids, _ in modes())) - set(CATALOG) == set()


def test_what_is_called_captured_has_a_capture() -> None:
    captures = (ROOT / "tests" / "captures").glob("*/case.json")
    captured = {json.loads(path.read_text())["finding"] for path in captures}
    claimed = [ids for _, ids, proof in modes() if proof == "captured"]
    assert claimed and set.union(*claimed) - captured == set()
