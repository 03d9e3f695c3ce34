"""YAML text -> the document in it, through PyYAML, with one kind of error for every text that is
not YAML.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

# PyYAML's C loader calls itself for every level. With a stack of 8 MB it was seen to crash the
# process at 50,000 levels, not at 20,000; no document of ours has ten.
MAX_DEPTH = 1000


class YamlError(Exception):
    """The text is not YAML. line: where, counted from 1, if PyYAML says so."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line

    def location(self, path: Path) -> str:
        """The file, with the line if it is known."""
        if self.line is None:
            return str(path)
        return f"{path}:{self.line}"


def parse_yaml(text: str | bytes) -> Any:
    """The document in the text. Raises YamlError."""
    import yaml

    return _run(yaml.load, text)


def compose_yaml(text: str | bytes) -> Any:
    """The text's root node, which has the lines of keys and values; None for an empty text.

    Raises YamlError.
    """
    import yaml

    return _run(yaml.compose, text)


def _run(function: Callable[..., Any], text: str | bytes) -> Any:
    import yaml

    # libyaml's loader, where PyYAML was built with it, is about 10 times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if _depth_bound(text) > MAX_DEPTH:
            _check_depth(text, loader)
        return function(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise YamlError(problem, mark.line + 1 if mark else None) from error
    except RecursionError as error:
        raise YamlError("it is nested too deeply") from error
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        # Nothing but PyYAML runs inside this `try`. Its constructors raise these for values that do
        # not fit their tag (`!!int`, `!!bool x`, `!!timestamp x`), for days that no month has, and
        # for numbers of 5000 digits.
        raise YamlError("a value does not fit its type") from error


def _depth_bound(text: str | bytes) -> int:
    """At least the number of levels: every level starts with a bracket or is indented further."""
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    longest_line = max(map(len, data.splitlines()), default=0)
    return data.count(b"[") + data.count(b"{") + longest_line


def _check_depth(text: str | bytes, loader: Any) -> None:
    """Raise RecursionError if the text has more than MAX_DEPTH levels.

    Goes through the parser's events, which takes about as long as loading.
    """
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise RecursionError
