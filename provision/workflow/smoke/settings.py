"""Settings of the smoke test: `smoke:` in spec.yml, and `--set KEY=VALUE`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from provision.core.errors import InvalidSpec
from provision.workflow.smoke.runner import SmokeRequest


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


# The field of SmokeRequest that a setting fills, and how its text is read. `runner.check` judges
# the values.
SETTINGS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "ranks": ("ranks", int),
    "backend": ("backend", str),
    "device": ("device", str),
    "profile": ("profile", str),
    "only": ("only", _list),
    "skip": ("skip", _list),
    "require_gpu": ("require_gpu", _switch),
    "strict": ("strict", _switch),
    "timeout": ("timeout_s", float),
    "deadline": ("deadlines", _list),
    "inject": ("inject", _list),
    "folder": ("folder", Path),
}
FORMS = {int: "a number", float: "a number of seconds", _switch: "true or false"}


def with_settings(request: SmokeRequest, texts: Iterable[str]) -> SmokeRequest:
    """A request whose open fields are filled by settings, KEY=VALUE. Raises InvalidSpec."""
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in SETTINGS:
            raise InvalidSpec(
                f"`{name}` is not a setting of the smoke test.",
                advice=f"The settings are {', '.join(SETTINGS)}.",
            )
        field, read = SETTINGS[name]
        try:
            values[field] = read(value)
        except (ValueError, KeyError) as error:
            form = FORMS[read]
            raise InvalidSpec(f"The setting {name} is {form}, not `{value}`.") from error
    for declared in fields(request):
        value = getattr(request, declared.name)
        if value != declared.default:
            values[declared.name] = value
    return replace(request, **values)
