"""Starts this folder as a package: `python -m provision_runtime`, or `python /any/folder/of/it`.

The verbs are in cli.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

PACKAGE = "provision_runtime"


def main() -> int:
    if not __package__:
        return _load_cli()(sys.argv[1:])
    from .cli import main as run

    return run(sys.argv[1:])


def _load_cli() -> Callable[[Sequence[str]], int]:
    """Makes the folder importable as a package, and returns the main function of its cli.py.

    Python puts the folder itself on sys.path, where `facts` or `report` could shadow other modules:
    so it is removed before anything else is imported.
    """
    import os

    folder = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) != folder]

    import importlib.util

    initial = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        PACKAGE, initial, submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    run: Callable[[Sequence[str]], int] = importlib.import_module(PACKAGE + ".cli").main
    return run


if __name__ == "__main__":
    sys.exit(main())
