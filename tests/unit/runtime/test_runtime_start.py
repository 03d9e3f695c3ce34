"""The folder starts as a package wherever it lies, and its syntax is that of the oldest Python it must run on."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import provision_runtime

FOLDER = Path(str(provision_runtime.__file__)).parent
OLDEST = (3, 8)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)


def test_runs_from_a_copy_anywhere(tmp_path: Path) -> None:
    copy = tmp_path / "any 'place" / "inside"
    shutil.copytree(FOLDER, copy)
    result = run(copy, "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "smoke" in result.stdout


def test_runs_as_a_module() -> None:
    assert run("-m", "provision_runtime", "smoke", "--help").returncode == 0


def test_its_own_folder_does_not_shadow_modules(tmp_path: Path) -> None:
    """A `torch.py` beside the code would be found first if the folder stayed on sys.path."""
    copy = tmp_path / "inside"
    shutil.copytree(FOLDER, copy)
    (copy / "torch.py").write_text("raise SystemExit('shadowed')")
    assert "shadowed" not in run("-S", copy, "facts", "--in-process").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["smoke"],
        ["smoke", "--out", "x", "--inject", "die:1"],
        ["smoke", "--out", "x", "--deadline", "never=1"],
    ],
)
def test_usage_errors_exit_with_2(arguments: list[str]) -> None:
    assert run(FOLDER, *arguments).returncode == 2


@pytest.mark.parametrize(
    "path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER))
)
def test_syntax_fits_the_oldest_python(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=OLDEST)
    future = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    evaluated = {
        type(annotation)
        for node in ast.walk(tree)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None))
    }
    assert future or evaluated <= {type(None), ast.Name, ast.Attribute, ast.Constant}


@pytest.mark.parametrize(
    "path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER))
)
def test_only_annotations_subscript_builtins(path: Path) -> None:
    """Elsewhere it is evaluated, and Python 3.8 cannot: `Names = dict[str, str]`."""
    tree = ast.parse(path.read_text())
    unevaluated: set[int] = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            annotation = getattr(node, field, None)
            if annotation is not None:
                unevaluated.update(map(id, ast.walk(annotation)))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            unevaluated.update(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and id(node) not in unevaluated:
            assert ast.unparse(node.value) not in ("dict", "list", "tuple", "set", "type"), (
                f"line {node.lineno}"
            )
