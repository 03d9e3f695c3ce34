"""YAML text -> the document in it, through PyYAML, with one kind of error for every text that is
not YAML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# PyYAML's C loader calls itself for every level. With a stack of 8 MB it was seen to crash the
# process at 50,000 levels, not at 20,000; our own functions reach Python's limit between 480 and 900. No
# document of ours has ten.
MAX_DEPTH = 400
# Nodes of a document with every alias written out. The largest lock that we have seen has 10,000; nine
# levels of nine aliases each, 400 bytes, stand for 387 million.
MAX_NODES = 1_000_000
# The largest lock that we have seen has 3 MiB.
MAX_BYTES = 16 << 20


class YamlError(Exception):
    """The text is not YAML. line: where, counted from 1, if PyYAML says so."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line

    def in_file(self, path: Path) -> str:
        """A sentence that says what is wrong, with file and line."""
        location = str(path) if self.line is None else f"{path}:{self.line}"
        return f"{location}: this is not YAML: {self.problem}."


def read_source(path: Path) -> bytes:
    """The bytes of a file that somebody wrote. Raises OSError as reading does, and YamlError for a
    file that is too large: in a repository, a link may name a device that never ends."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    _check_size(len(content))
    return content


def read_source_text(path: Path) -> str:
    """The same as text, with any line ends as `\n`. Raises UnicodeDecodeError too."""
    with path.open(encoding="utf-8") as file:
        text = file.read(MAX_BYTES + 1)
    _check_size(len(text))
    return text


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise YamlError(f"it has more than {MAX_BYTES >> 20} MiB")


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


def exact_document(node: Any) -> Any:
    """The document of a node, with numbers as the file's own text: YAML reads 12.10 as 12.1."""
    if node.id == "mapping":
        return {exact_document(key): exact_document(value) for key, value in node.value}
    if node.id == "sequence":
        return [exact_document(item) for item in node.value]
    if node.tag.endswith((":bool", ":null")):
        return parse_yaml(node.value)
    return node.value


class YamlLines:
    """The lines of keys and list items in a file, counted from 1. root: from `compose_yaml`."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def line(self, path: Sequence[str | int]) -> int:
        """The line of the innermost key or list item that the path leads to."""
        node, line = self._root, 1
        for step in path:
            child = self._child(node, step)
            if child is None:
                break
            line, node = child
        return line

    def repeated_keys(self) -> Iterator[tuple[int, str]]:
        """The line of each key that its mapping has already, and a sentence about it."""
        pending = [self._root]
        while pending:
            node = pending.pop()
            if node is None or node.id == "scalar":
                continue
            children = node.value
            if node.id == "mapping":
                children = [value for _, value in node.value]
                keys = set()
                for key, _ in node.value:
                    if key.value in keys:
                        yield key.start_mark.line + 1, f"`{key.value}` is repeated."
                    keys.add(str(key.value))
            pending += children

    def _child(self, node: Any, step: str | int) -> tuple[int, Any] | None:
        if node is None:
            return None
        if node.id == "mapping":
            for key, value in reversed(node.value):  # of a repeated key, YAML takes the last
                if key.value == step:
                    return key.start_mark.line + 1, value
        if node.id == "sequence" and isinstance(step, int) and step < len(node.value):
            item = node.value[step]
            return item.start_mark.line + 1, item
        return None


def _run(function: Callable[..., Any], text: str | bytes) -> Any:
    import yaml

    # libyaml's loader, where PyYAML was built with it, is about 10 times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        # A query in an address looks like an anchor.
        if _depth_bound(data) > MAX_DEPTH or b"&" in data:
            _check_structure(text, loader)
        return function(text, Loader=loader)
    except yaml.reader.ReaderError as error:
        if "UTF-8" in error.reason:
            raise YamlError("it is not UTF-8") from error
        raise YamlError(" ".join(str(error).split())) from error
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


def _depth_bound(data: bytes) -> int:
    """At least the number of levels: every level starts with a bracket or is indented further."""
    return data.count(b"[") + data.count(b"{") + max(map(len, data.splitlines()), default=0)


def _check_structure(text: str | bytes, loader: Any) -> None:
    """Raise RecursionError for a text of more than MAX_DEPTH levels, and YamlError for one of aliases
    that stand for more than MAX_NODES, or for themselves.

    PyYAML loads aliases at once, as references. What goes through such a document, as a schema or
    `str` does, never ends. Goes through the parser's events, which takes about as long as loading.
    """
    import yaml

    sizes: dict[str, int] = {}  # by anchor
    open_anchors: list[str | None] = []
    open_sizes = [0]
    for event in yaml.parse(text, Loader=loader):
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(anchor)
            open_sizes.append(1)
            if len(open_anchors) > MAX_DEPTH:
                raise RecursionError
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_anchors.pop(), open_sizes.pop()
        elif isinstance(event, yaml.AliasEvent):
            if anchor in open_anchors:
                raise YamlError(f"*{anchor} stands for itself", _line(event))
            anchor, size = None, sizes.get(str(anchor), 1)  # PyYAML refuses an unknown one
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if anchor:
            sizes[anchor] = size
        open_sizes[-1] += size
        if open_sizes[-1] > MAX_NODES:
            raise YamlError("its aliases expand to too much data", _line(event))


def _line(event: Any) -> int:
    line: int = event.start_mark.line
    return line + 1
