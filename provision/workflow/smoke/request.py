"""What a user requests of the smoke test, and the test's own options for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.types import Resolution

# The test's own default, so that its deadline and the host's agree.
TIMEOUT_S = 600.0


@frozen
class SmokeRequest:
    """How to run the smoke test.

    ranks: None starts one rank per GPU, or two without GPUs. timeout_s: for the whole test. out:
    where the test leaves everything (None: the data folder). folder: where files and checkpoints
    are tested (None: in `out`). strict: warnings about speed are failures. deadlines: seconds for a
    phase (`barrier=60`) or for every phase (`60`). inject: faults to rehearse.
    """

    ranks: int | None = None
    backend: Literal["auto", "gloo", "nccl"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    profile: Literal["quick", "default", "full"] = "default"
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    require_gpu: bool = False
    strict: bool = False
    inject: tuple[str, ...] = ()
    deadlines: tuple[str, ...] = ()
    timeout_s: float = TIMEOUT_S
    out: Path | None = None
    folder: Path | None = None

    @property
    def is_whole(self) -> bool:
        """Whether this tests the environment, and not only a part of it or the test itself."""
        return not (self.only or self.skip or self.inject)


def _switch(text: str) -> bool:
    return {"true": True, "false": False}[text]


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


# The field of SmokeRequest that a setting fills, and how its text is read. The test's own options
# have the same names, and `check` judges the values.
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


def check(request: SmokeRequest) -> None:
    """Raise InvalidSpec for options that contradict one another, before anything runs."""
    from provision_runtime.smoke import options

    try:
        options.parse(["--out", ".", *_request_arguments(request)])
    except options.UsageError as error:
        # Users write the test's options as settings.
        refusal = re.sub(
            r"--([a-z-]+)",
            lambda option: f"the setting {option[1].replace('-', '_')}",
            str(error).removeprefix("argument ").rstrip("."),
        )
        raise InvalidSpec(f"{refusal}.") from error


def arguments(resolution: Resolution, request: SmokeRequest) -> list[str]:
    """The test's own options, but for --out, and what the lock promises of this environment."""
    argv = [*_request_arguments(request), "--expect-torch", resolution.local_version]
    argv += ["--expect-cuda", resolution.cuda or "none"]
    if resolution.nccl:
        argv += ["--expect-nccl", resolution.nccl]
    return argv


def _request_arguments(request: SmokeRequest) -> list[str]:
    argv = []
    for name, (field, _) in SETTINGS.items():
        value = getattr(request, field)
        option = f"--{name.replace('_', '-')}"
        if value is True:
            argv.append(option)
        elif value not in (None, False):
            for item in value if isinstance(value, tuple) else (value,):
                argv += [option, str(item.absolute() if isinstance(item, Path) else item)]
    return argv


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
