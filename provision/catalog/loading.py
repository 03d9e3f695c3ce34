"""Reading the data files. That every row states its source is checked when they are read: a row without is a mistake of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
PACKAGE = Path(__file__).parent.parent
# In a wheel they lie in the package, in a checkout at its root.
TEMPLATES = next(
    path for path in (PACKAGE / "templates", PACKAGE.parent / "templates") if path.is_dir()
)
# What makes a mapping a row that states something about the world.
STATES = frozenset({"version", "versions", "requirement", "minimum", "sm", "capability", "builds"})


def load(name: str) -> Any:
    """A data file, parsed and checked for sources."""
    import yaml

    content = yaml.load(
        (DATA / name).read_text(encoding="utf-8"),
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    )
    check_sources(content, name)
    return content


def check_sources(content: Any, where: str) -> None:
    """Every row that states something says where that was read."""
    if isinstance(content, dict):
        if not content.get("source") and any(
            content[key] is not None for key in STATES & content.keys()
        ):
            stated = sorted(key for key in STATES & content.keys() if content[key] is not None)
            if any(not isinstance(content[key], dict) for key in stated):
                raise ValueError(f"{where} states {', '.join(stated)} without a source")
        for key, row in content.items():
            if type(row) is dict or type(row) is list:
                check_sources(row, f"{where}: {key}")
    elif isinstance(content, list):
        for index, row in enumerate(content):
            if type(row) is dict:
                check_sources(row, f"{where}[{index}]")
