"""The public API of provision_runtime: every name in `__all__` has Google-style Args, Returns and Raises that match it."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from provision_runtime import checkpoint, fs
from provision_runtime.comm import collective, ranks, store
from provision_runtime.facts import ddp_check

MODULES = (checkpoint, fs, collective, ranks, store, ddp_check)
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises):\n((?:(?: {4}.*)?\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\w+): \S", re.MULTILINE)


def sections(documented: object) -> dict[str, str]:
    return dict(SECTION.findall(inspect.cleandoc(documented.__doc__ or "") + "\n"))


def entries(text: str) -> list[str]:
    return ENTRY.findall(text)


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def raised(function: Callable[..., Any]) -> set[str]:
    """The classes in the function's own `raise` statements, without those of functions in it."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    names = set()
    nodes = list(ast.iter_child_nodes(definition))
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            names.add(ast.unparse(node.exc.func).rpartition(".")[2])
        nodes += ast.iter_child_nodes(node)
    return names


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            else:
                for method, function in inspect.getmembers(value, inspect.isfunction):
                    if not method.startswith("_") and function.__module__ == value.__module__:
                        yield f"{module.__name__}.{name}.{method}", function


def public_classes() -> Iterator[tuple[str, type]]:
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                yield f"{module.__name__}.{name}", value


FUNCTIONS, CLASSES = dict(public_functions()), dict(public_classes())


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_public_names_exist_and_are_documented(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__, key=lambda name: (name.islower(), name))
    for name in module.__all__:
        assert inspect.getdoc(getattr(module, name)), name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sections_of_a_function_match_it(name: str) -> None:
    function = FUNCTIONS[name]
    documented = sections(function)
    assert entries(documented.get("Args", "")) == parameters(function)
    returns = inspect.signature(function).return_annotation not in ("None", None)
    assert ("Returns" in documented) == returns
    assert raised(function) <= set(entries(documented.get("Raises", "")))


@pytest.mark.parametrize("name", CLASSES)
def test_sections_of_a_class_match_it(name: str) -> None:
    """Fields are Attributes; the arguments of another class's constructor are Args."""
    kind = CLASSES[name]
    documented = sections(kind)
    if dataclasses.is_dataclass(kind):
        fields = [field.name for field in dataclasses.fields(kind)]
        assert entries(documented.get("Attributes", "")) == fields
    elif "__init__" in vars(kind) and inspect.isfunction(vars(kind)["__init__"]):
        constructor = vars(kind)["__init__"]
        if constructor.__module__ == kind.__module__:
            assert entries(documented.get("Args", "")) == parameters(constructor)
            assert raised(constructor) <= set(entries(documented.get("Raises", "")))
    for attribute, value in vars(kind).items():
        if isinstance(value, property):
            assert value.__doc__, attribute


def test_the_rules_notice_what_is_missing() -> None:
    def incomplete(path: str, timeout_s: float) -> int:
        """Waits.

        Args:
            path: A file.
        """
        if timeout_s:
            raise ValueError(path)
        return 0

    documented = sections(incomplete)
    assert entries(documented["Args"]) == ["path"] != parameters(incomplete)
    assert "Returns" not in documented
    assert raised(incomplete) == {"ValueError"}
