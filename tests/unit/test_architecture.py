"""The rules of the layout, as docs/architecture.md states them: imports point down, stages do not know each other."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import provision

PACKAGE = Path(provision.__file__).parent
# From top to bottom; a module may import from layers below its own, and from its own where it says so.
LAYERS = [
    {"cli"},
    {"workflows", "console"},
    {"pipeline", "channel"},
    {"bills"},
    {"conda", "wheels", "folders", "machine"},
    {"fetch"},
    {"settings"},
    {"mirrors", "compat"},
    {"process", "scratch"},
    {"model"},
    {"errors"},
]
# Modules of one layer that may use each other: one package's own modules, and the bootstrap, which packages with both doors.
TOOL_OWNERS = {
    "fsspec": ("inside/checkpoint/backends/stores.py",),
    "xxhash": ("inside/checkpoint/hashes.py",),
    "rattler": {"conda/"},
    "rattler_build": {"channel/"},
    "elftools": {"channel/"},
    "docker": {"pipeline/image/"},
    "conda_lock": {"pipeline/lock/"},
    "jinja2": {"pipeline/render/"},
    "jsonschema": {"pipeline/report/"},
    "jupyter_client": {"pipeline/register.py"},
    "rich": {"console.py"},
    "click": {"cli/"},
    "subprocess": {"process.py", "inside/"},
    "uv": {"wheels/"},
    "requests": {"fetch/", "pipeline/image/"},
    "zstandard": {"pipeline/image/"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Every imported module, and whether the import is at the top of the file."""
    tree = ast.parse(path.read_text())
    checking = {id(node) for branch in ast.walk(tree) if _is_type_checking(branch) for node in ast.walk(branch)}
    for node in ast.walk(tree):
        if id(node) in checking:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.col_offset == 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module
            yield from ((f"{node.module}.{alias.name}", node.col_offset == 0) for alias in node.names)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def layer(part: str) -> int | None:
    return next((index for index, names in enumerate(LAYERS) if part in names), None)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_module_has_a_layer() -> None:
    unknown = {part_of(path) for path in modules()} - {name for names in LAYERS for name in names} - {"__init__", "inside"}
    assert not unknown


def test_imports_point_down() -> None:
    for path in modules():
        mine = layer(part_of(path))
        for name, _ in imports(path):
            parts = name.split(".")
            if mine is None or parts[0] != "provision" or len(parts) < 2 or parts[1] in ("__version__", "inside", part_of(path)):
                continue
            theirs = layer(parts[1])
            assert theirs is not None, f"{path.name} imports {name}"
            assert theirs > mine, f"{path.relative_to(PACKAGE)} imports {name}, which is not below it"


def test_stages_do_not_import_each_other() -> None:
    for path in (PACKAGE / "pipeline").rglob("*.py"):
        own = path.relative_to(PACKAGE / "pipeline").parts[0].removesuffix(".py")
        for name, _ in imports(path):
            if name.startswith("provision.pipeline."):
                assert name.split(".")[2] == own, f"{path.name} imports {name}"


def test_inside_needs_only_the_standard_library_and_torch() -> None:
    import sys

    for path in (PACKAGE / "inside").rglob("*.py"):
        for name, at_top in imports(path):
            top = name.split(".")[0]
            # torch requires fsspec, and only stores of objects ask for it; without xxhash checkpoints are slower.
            is_optional = top in ("fsspec", "xxhash") and not at_top
            assert top in sys.stdlib_module_names or top in ("torch", "provision_inside") or is_optional, f"{path.name} imports {name}"


def test_each_outside_tool_has_one_owner() -> None:
    for path in modules():
        shown = path.relative_to(PACKAGE).as_posix()
        for name, _ in imports(path):
            owners = TOOL_OWNERS.get(name.split(".")[0])
            assert owners is None or any(shown.startswith(owner) for owner in owners), f"{shown} imports {name}"


def test_no_heavy_import_at_the_top() -> None:
    heavy = {"rattler", "rattler_build", "docker", "conda_lock", "jinja2", "jsonschema", "yaml", "rich", "jupyter_client", "elftools"}
    for path in modules():
        for name, at_top in imports(path):
            assert not (at_top and name.split(".")[0] in heavy), f"{path.name} imports {name} when it is imported"


def test_package_init_imports_nothing() -> None:
    assert not list(imports(PACKAGE / "__init__.py"))


def test_no_index_address_or_machine_path_in_the_tree() -> None:
    root = PACKAGE.parent
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    canonical = re.compile(r"https://conda\.ana[c]onda\.org/(pytorch|nvidia|conda-forge)/")  # what a lock must name: its channels' own URLs
    foreign = re.compile(r"py[p]i\.org|python[h]osted\.org|ana[c]onda\.org|download\.py[t]orch|/opt/whe[e]ls|/opt/py[p]i|/root/\.py[e]nv")
    for name in filter(None, listed.split("\0")):
        text = (root / name).read_text(errors="replace")
        found = foreign.search(canonical.sub("", text) if name.endswith("conda-lock.yml") else text)
        assert not found, f"{name} holds {found and found[0]}"
