"""Inputs of real form, each with what is right for it.

A case of a file in corpus/ has `file` (its name) and `input` (its text), or `files` (texts by name;
the first is read). `right` is what spec.yml gets, `companions` only where it matters. `cudas`: the
CUDA versions that the input allows where it does not name one. `left`: the lines that are left out,
as `line` or `file:line`. `refused`: a text of the error instead. `name`: of the environment.
`groups`, `extras`: those that are taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import InvalidSpec
from provision.core.yaml_text import parse_yaml
from provision.project_files.request import Choices, Request, decide
from provision.project_files.toml_file import Selection
from provision.workflow.project_files import editable_requirement, read_file

CORPUS = Path(__file__).parent / "corpus"
CASES: list[Any] = []
for corpus_file in sorted(CORPUS.glob("*.yml")):
    for number, corpus_case in enumerate(parse_yaml(corpus_file.read_bytes()), 1):
        title = corpus_case.get("case", number)
        CASES.append(pytest.param(corpus_case, id=f"{corpus_file.stem}-{title}"))


def read(case: dict[str, Any], folder: Path) -> Request:
    files: dict[str, str] = case.get("files") or {case["file"]: case["input"]}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(case.get("encoding", "utf-8")))
    selection = Selection(
        groups=frozenset(case.get("groups", ())), extras=frozenset(case.get("extras", ()))
    )
    statements = read_file(folder / next(iter(files)), selection)
    selection.check()
    choices = Choices(**case.get("choices", {}))
    return decide(statements, choices, default_python="3.11", located=editable_requirement)


def test_corpus_is_large_enough() -> None:
    assert len(CASES) >= 200


@pytest.mark.parametrize("case", CASES)
def test_input_comes_to_what_is_right(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "refused" in case:
        with pytest.raises(InvalidSpec, match=case["refused"]):
            request = read(case, tmp_path)
            raise InvalidSpec(" ".join(request.contradictions))
        return
    request = read(case, tmp_path)
    content = dict(request.content)
    if "companions" not in case["right"]:
        content.pop("companions", None)
    if "pip" in content:
        content["pip"] = [text.replace(str(tmp_path), "") for text in content["pip"]]
    first = next(iter(case.get("files") or [case.get("file")]))
    left = [
        entry.line if entry.file == first else f"{entry.file}:{entry.line}"
        for entry in request.entries
        if entry.outcome == "left out"
    ]
    assert content == case["right"]
    assert left == case.get("left", [])
    assert list(request.cudas) == case.get("cudas", [])
    assert request.contradictions == []
    assert all(entry.reason for entry in request.entries if entry.outcome == "left out")
    if "name" in case:
        assert request.name == case["name"]
