"""The rules of the layout, as docs/architecture.md states them: which package may import which, and which owns a tool."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import provision
import provision_runtime

ROOT = Path(provision.__file__).parent.parent
PACKAGES = (Path(provision.__file__).parent, Path(provision_runtime.__file__).parent)
# A product or a task each; none knows another.
MECHANISMS = (
    "resolver",
    "project_files",
    "lockfile",
    "render",
    "environment",
    "image",
    "cluster",
    "launch",
    "report",
    "ci",
    "channel",
)
LOWER = ("sources", "adapters", "catalog", "core")
# What each package of the host may import, besides itself. `cli.start` begins before `cli.main`, which starts the verbs; the rest
# of `cli` is what verbs share.
HOST_RULES: dict[str, tuple[str, ...]] = {
    "cli.main": ("cli", "core"),
    "cli.start": ("cli.main", "cli"),
    "verbs": ("cli", "cli.start", "workflow", *MECHANISMS, *LOWER),
    "cli": ("workflow", *MECHANISMS, *LOWER),
    "workflow": (*MECHANISMS, *LOWER),
    **dict.fromkeys(MECHANISMS, LOWER),
    "sources": ("adapters", "catalog", "core"),
    "adapters": ("catalog", "core"),
    "catalog": ("core",),
    "core": (),
}
# The only parts of the runtime that the host takes; the rest runs in the environment or on a node, and answers in JSON. What is
# safe to run is one question on nodes and here, so it has one answer.
RUNTIME_FOR_HOST = (
    "provision_runtime.comm.processes",
    "provision_runtime.checkpoint.inspection",
    "provision_runtime.report",
    "provision_runtime.facts.digests",
    "provision_runtime.facts.freshness",
    "provision_runtime.facts.limits",
    "provision_runtime.hang",
    "provision_runtime.node.errors",
    "provision_runtime.node.program",
    "provision_runtime.node.results",
    "provision_runtime.node.signatures",
    "provision_runtime.node.trust",
    "provision_runtime.smoke.options",
)
RUNTIME_RULES: dict[str, tuple[str, ...]] = {
    "cli": (
        "smoke",
        "checkpoint",
        "doctor",
        "facts",
        "fs",
        "report",
        "comm",
        "node",
        "job",
        "hang",
    ),
    "smoke": ("checkpoint", "checks", "facts", "fs", "report", "comm", "dataclass"),
    "checkpoint": ("fs", "report", "comm", "dataclass"),
    "doctor": ("checks", "facts", "fs", "report", "comm", "dataclass"),
    "hang": ("doctor", "fs", "report", "comm", "dataclass"),
    "checks": ("facts", "fs", "report", "comm", "dataclass"),
    "node": ("doctor", "hang", "facts", "fs", "report", "comm", "dataclass"),
    "job": ("node", "hang", "facts", "fs", "report", "comm", "dataclass"),
    "facts": ("fs", "comm", "dataclass"),
    "fs": ("comm", "dataclass"),
    "report": ("comm", "dataclass"),
    "comm": ("dataclass",),
    "dataclass": (),
}
TOOL_OWNERS: dict[str, tuple[str, ...]] = {
    "ClusterShell": ("provision/adapters/clustershell.py",),
    "backports": ("provision/adapters/zstd.py",),
    "click": ("provision/cli/", "provision/verbs/"),
    "conda_lock": ("provision/lockfile/",),
    "docker": ("provision/adapters/docker.py",),
    "elftools": ("provision/channel/",),
    "jinja2": ("provision/render/",),
    "jsonschema_rs": ("provision/core/schema.py",),
    "rattler": ("provision/adapters/conda/",),
    "requests": (
        "provision/adapters/http/",
        "provision/adapters/docker.py",
        "provision/image/registry/",
    ),
    "rich": ("provision/cli/console.py",),
    "subprocess": ("provision/core/process.py", "provision_runtime/"),
    "uv": ("provision/adapters/uv/",),
    "xxhash": ("provision_runtime/checkpoint/hashes.py",),
}
HEAVY = {
    "ClusterShell",
    "rattler",
    "docker",
    "jinja2",
    "jsonschema_rs",
    "yaml",
    "rich",
    "elftools",
}


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    named = {}
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            parts = path.relative_to(package.parent).with_suffix("").parts
            named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return named


MODULES = modules()


@functools.cache
def imports(name: str) -> tuple[tuple[str, bool], ...]:
    """Every module that a module imports, by its absolute name, and whether the import runs when the module is imported."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[tuple[str, bool]]:
    path = MODULES[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    at_top = {id(node) for statement in tree.body for node in _statements(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in at_top
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join(
                    [*parents[: len(parents) - node.level + 1], *([base] if base else [])]
                )
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in MODULES else base, id(node) in at_top


def _statements(statement: ast.stmt) -> Iterator[ast.AST]:
    """The statements that run at import: not the bodies of functions, and not what is for type checkers alone."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    if (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Name)
        and statement.test.id == "TYPE_CHECKING"
    ):
        return
    yield statement
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            yield from _statements(child)


def part(name: str) -> str | None:
    """The package below `provision` or `provision_runtime` that a module belongs to; None for their own `__init__`."""
    if name in ("provision.cli.main", "provision.cli.start"):
        return name.removeprefix("provision.")
    return name.split(".")[1] if "." in name else None


def violations(package: str, rules: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for name in MODULES:
        if not name.startswith(f"{package}.") or part(name) == "__main__":
            continue
        own = part(name)
        assert own in rules, f"{name} lies in no package of the rules"
        for imported, _ in imports(name):
            if imported.startswith(f"{package}."):
                other = part(imported)
                if other not in (own, *rules[own]):
                    yield f"{name} imports {imported}"


def test_host_packages_import_only_what_lies_below_them() -> None:
    assert list(violations("provision", HOST_RULES)) == []


def test_no_verb_imports_another() -> None:
    for name in MODULES:
        if name.startswith("provision.verbs."):
            verb = name.split(".")[2]
            for imported, _ in imports(name):
                if imported.startswith("provision.verbs."):
                    assert imported.split(".")[2] == verb, f"{name} imports {imported}"


def test_only_what_two_verbs_use_lies_in_workflow_and_cluster() -> None:
    """What one verb alone uses lies in its folder."""
    graph = {name: {other for other, _ in imports(name)} for name in MODULES}

    def verbs_that_use(name: str, seen: set[str]) -> set[str]:
        verbs = set()
        for user in (user for user, used in graph.items() if name in used and user not in seen):
            seen.add(user)
            if user.startswith("provision.verbs."):
                verbs.add(user.split(".")[2])
            else:
                verbs |= verbs_that_use(user, seen)
        return verbs

    shared = [
        name
        for name in MODULES
        if name.startswith(("provision.workflow.", "provision.cluster.")) and graph[name]
    ]
    alone = {name: verbs for name in shared if len(verbs := verbs_that_use(name, set())) < 2}
    assert alone == {}


def test_only_commands_of_verbs_know_click() -> None:
    for name in MODULES:
        if name.startswith("provision.verbs.") and not name.endswith("command"):
            assert "click" not in {imported for imported, _ in imports(name)}, name


def test_runtime_packages_import_only_what_lies_below_them() -> None:
    assert list(violations("provision_runtime", RUNTIME_RULES)) == []


def test_host_imports_few_parts_of_the_runtime() -> None:
    for name in MODULES:
        for imported, _ in imports(name):
            if name.startswith("provision.") and imported.startswith("provision_runtime"):
                is_version = imported == "provision_runtime"
                assert is_version or imported.startswith(RUNTIME_FOR_HOST), (
                    f"{name} imports {imported}"
                )
            assert not (
                name.startswith("provision_runtime") and imported.split(".")[0] == "provision"
            ), f"{name} imports {imported}"


def test_no_import_circles() -> None:
    """Imports within functions and for type checkers count too."""
    graph = {}
    for name in MODULES:
        imported_modules = {imported for imported, _ in imports(name) if imported in MODULES}
        graph[name] = imported_modules - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_runtime_needs_only_the_standard_library_and_torch() -> None:
    for name in MODULES:
        if not name.startswith("provision_runtime"):
            continue
        for imported, at_top in imports(name):
            top = imported.split(".")[0]
            # Without xxhash checkpoints are slower.
            # numpy's generator is one of those that a random state has.
            is_optional = top in ("xxhash", "numpy", "safetensors") and not at_top
            # A module of integrations is imported by who has the library of its name.
            package, _, library = name.rpartition(".")
            is_optional |= package.endswith(".integrations") and top == library
            # Type checkers bring it with them.
            is_optional |= top == "typing_extensions" and not at_top
            assert (
                top in sys.stdlib_module_names
                or top in ("torch", "provision_runtime")
                or is_optional
            ), f"{name} imports {imported}"


def test_runtime_imports_itself_relatively() -> None:
    """So that it also runs as a copied folder, under any name."""
    for name, path in MODULES.items():
        if name.startswith("provision_runtime"):
            assert not re.search(
                r"^\s*(from|import) provision_runtime", path.read_text(), re.MULTILINE
            ), name


def test_each_outside_tool_has_one_owner() -> None:
    for name, path in MODULES.items():
        relative_path = path.relative_to(ROOT).as_posix()
        for imported, _ in imports(name):
            owners = TOOL_OWNERS.get(imported.split(".")[0])
            assert owners is None or relative_path.startswith(owners), (
                f"{relative_path} imports {imported}"
            )


def test_no_heavy_import_at_the_top() -> None:
    for name in MODULES:
        for imported, at_top in imports(name):
            assert not (at_top and imported.split(".")[0] in HEAVY), (
                f"{name} imports {imported} when it is imported"
            )


def test_package_init_imports_nothing() -> None:
    assert {imported for imported, _ in imports("provision")} == {"sys", "os.path"}
    assert {imported for imported, _ in imports("provision_runtime")} <= {"__future__"}


@pytest.mark.needs("git")
def test_no_index_address_or_machine_path_in_the_tree() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    canonical = re.compile(
        r"https://conda\.ana[c]onda\.org/(pytorch|nvidia|conda-forge)/"
    )  # what a lock must name: its channels' own URLs
    foreign = re.compile(
        r"py[p]i\.org|python[h]osted\.org|ana[c]onda\.org|download\.py[t]orch|/opt/whe[e]ls|/opt/py[p]i|/root/\.py[e]nv"
    )
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_dir():  # a link to a folder, which is listed too
            continue
        text = (ROOT / name).read_text(errors="replace")
        match = foreign.search(canonical.sub("", text) if name.endswith("conda-lock.yml") else text)
        assert not match, f"{name} holds {match and match[0]}"


def test_a_class_has_a_name_of_its_own() -> None:
    modules_of: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_of.setdefault(node.name, []).append(name)
    assert {name: found for name, found in modules_of.items() if len(found) > 1} == {}
