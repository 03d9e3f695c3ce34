"""The text that a node's own Python runs: the sources of the few modules that an action needs, and
the call.

Nothing is copied to the node and nothing remains there. The first lines run on any Python, 2.7
included, so a Python that is too old says so itself.
"""

from __future__ import annotations

import ast
import base64
import json
import shlex
import threading
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

from provision_runtime.node.program import ACTIONS, MARK

PACKAGE = "provision_runtime"
PROGRAM = f"{PACKAGE}.node.program"
OLDEST_PYTHON = (3, 8)
# ast.parse is not for several threads at once before Python 3.13 (SystemError: "AST constructor
# recursion depth mismatch", python/cpython#106905), and one of them is enough.
_PARSING = threading.Lock()
# The node's Python reads no settings, user packages or site-packages: the program needs none, and
# what a user installed there must not change what it does.
PYTHON_OPTIONS = "-SsE"
# Written for Python 2.7 as well. The braces are filled in below.
_HEADER = """\
import sys
if sys.version_info < {oldest}:
    import json, os
    text = "%s is Python %s" % (sys.executable or "python3", sys.version.split()[0])
    reply = {{"error": {{"reason": "python-too-old", "message": text}}}}
    sys.stdout.write("\\n" + {mark!r} + json.dumps(reply) + "\\n")
    sys.stdout.flush()
    os._exit(0)
# A module in the current folder must not hide one of the standard library.
sys.path[:] = [entry for entry in sys.path if entry not in ("", ".")]
import base64, importlib.abc, importlib.machinery, json, os, zlib
class ProgramModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, sources):
        self.sources = sources
    def find_spec(self, name, path, target=None):
        if name not in self.sources:
            return None
        is_package = any(other.startswith(name + ".") for other in self.sources)
        return importlib.machinery.ModuleSpec(name, self, is_package=is_package)
    def get_data(self, path):
        return self.sources[path].encode()
    def exec_module(self, module):
        name = module.__name__
        # Data lie beside the modules of a package (pkgutil.get_data).
        module.__file__ = name.replace(".", "/") + "/__init__.py"
        exec(compile(self.sources[name], "<" + name + ">", "exec"), module.__dict__)
sys.meta_path.insert(0, ProgramModules(json.loads(zlib.decompress(base64.b64decode({payload!r})).decode())))
"""
_CALL = """\
importlib.import_module({program!r}).main(*json.loads({request!r}))
# A fact that hangs (a dead NFS server) has a thread that never ends.
os._exit(0)
"""


def node_program(action: str, arguments: Mapping[str, object]) -> bytes:
    """The program that runs an action of `provision_runtime/node/program.py` with these arguments,
    which JSON must be able to hold. ASCII."""
    request = json.dumps([action, dict(arguments)])
    with _PARSING:
        text = _modules_text(action)
    return text + _CALL.format(program=PROGRAM, request=request).encode("ascii")


def node_command(length: int | None = None, python: str = "python3") -> str:
    """The command that a node's login shell runs to read the program from its standard input.

    length: of the program in bytes, where data follow it on standard input; the action reads them
    from `sys.stdin.buffer`. None: the program is all there is. python: a command, as
    `nodes.yml` has it; it may have arguments.
    """
    if length is None:
        return f"{python} {PYTHON_OPTIONS} -"
    reader = f'import sys; exec(getattr(sys.stdin, "buffer", sys.stdin).read({length}))'
    return f"{python} {PYTHON_OPTIONS} -c {shlex.quote(reader)}"


@cache
def _modules_text(action: str) -> bytes:
    module_name = ACTIONS[action].partition(":")[0]
    modules = [PROGRAM, f"{PACKAGE}.node.{module_name}"]
    payload = zlib.compress(json.dumps(_sources(modules), sort_keys=True).encode(), level=9)
    header = _HEADER.format(
        oldest=OLDEST_PYTHON,
        mark=MARK,
        payload=base64.b64encode(payload).decode(),
    )
    return header.encode("ascii")


def _sources(modules: list[str]) -> dict[str, str]:
    """The sources of these modules, and of all modules of ours that they import, by name; and the
    data that they name, by path."""
    sources: dict[str, str] = {}
    open_names = list(modules)
    while open_names:
        name = open_names.pop()
        if name in sources:
            continue
        path = _source_path(name)
        sources[name] = path.read_text(encoding="utf-8")
        for data in path.parent.glob("*.json"):
            if data.name in sources[name]:
                sources[str(data.relative_to(_source_path(PACKAGE).parent.parent))] = (
                    data.read_text()
                )
        is_package = path.name == "__init__.py"
        open_names += _imported_modules(name, is_package, sources[name])
        parent = name.rpartition(".")[0]
        if parent:
            open_names.append(parent)
    return sources


def _imported_modules(name: str, is_package: bool, source: str) -> Iterator[str]:
    """The modules that a module of the runtime imports relatively, in functions too."""
    package_parts = name.split(".") if is_package else name.split(".")[:-1]
    statements = ast.parse(source).body
    running = [node for node in statements if not _is_for_type_checkers(node)]
    for node in chain.from_iterable(map(ast.walk, running)):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base_parts = package_parts[: len(package_parts) - node.level + 1]
        base = ".".join([*base_parts, *(node.module.split(".") if node.module else [])])
        yield base
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            if _source_path(submodule).exists():
                yield submodule


def _is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _source_path(name: str) -> Path:
    """Where the source of a module would be."""
    folder = Path(str(files(PACKAGE))).joinpath(*name.split(".")[1:])
    if (folder / "__init__.py").exists():
        return folder / "__init__.py"
    return folder.with_suffix(".py")
