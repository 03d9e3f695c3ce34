"""spec.yml and command-line options -> Spec. Owns what may be asked for and in which words, not whether it exists."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from provision.core.errors import NOT_YAML, InvalidSpec
from provision.core.types import PLATFORMS, Spec

# One rule for every place a name goes: a folder, a Docker repository (lower case, no double separators), a Jupyter kernel.
NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
NAME_LENGTH = 100
# Docker's reference grammar, loosely: what must never reach a Dockerfile or an engine is white space, quotes and braces.
REFERENCE = r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"
REQUIREMENT = r"[A-Za-z0-9][^\n\r#{}$`\"';|&\\]*"
CHANNEL = r"[A-Za-z0-9][^\s#{}`\"';|&\\]*"
GPU = r"[A-Za-z0-9][A-Za-z0-9 ._()/+-]*"

KEYS = (
    "torch",
    "cuda",
    "cpu",
    "python",
    "nccl",
    "cudnn",
    "gpu",
    "driver",
    "glibc",
    "platforms",
    "infiniband",
    "as_of",
    "source",
    "channels",
    "conda",
    "pip",
    "base",
    "python_from",
    "companions",
    "jupyter",
    "fast_checkpoints",
)
# What says something about GPUs, and nothing about a build without CUDA.
ABOUT_GPUS = ("cuda", "nccl", "cudnn", "gpu", "driver")
FLAGS = ("cpu", "companions", "jupyter", "fast_checkpoints", "infiniband")
# A text's form, and what one looks like.
TEXTS = {
    "cuda": (r"\d+(\.\d+)?|auto", "12.1, 12 (the newest 12.x) or auto"),
    "python": (r"\d+\.\d+", "3.11"),
    "nccl": (r"\d+(\.\d+){0,3}", "2.20.5"),
    "cudnn": (r"\d+(\.\d+){0,3}", "8.9.2.26 or 9.1"),
    "driver": (r"\d+(\.\d+){0,2}", "535 or 535.54.03"),
    "glibc": (r"\d+\.\d+", "2.28"),
    "base": (REFERENCE, "debian:bookworm-slim"),
}
CHOICES = {
    "source": ("auto", "wheels", "pytorch", "conda-forge"),
    "python_from": ("auto", "channel", "host"),
}
# A list's items' form, and what one is called.
LISTS = {
    "channels": (CHANNEL, "a channel"),
    "conda": (REQUIREMENT, "a requirement"),
    "pip": (REQUIREMENT, "a requirement"),
    "gpu": (GPU, "a GPU"),
    "platforms": ("|".join(PLATFORMS), f"a platform ({', '.join(PLATFORMS)})"),
}
TORCH_FORM = "2, 2.3, 2.3.1, >=2.3,<2.6 or latest"


def check_name(name: str) -> str:
    """A name that is safe as a folder, an image and a kernel, or InvalidSpec."""
    if len(name) > NAME_LENGTH or not NAME.fullmatch(name):
        raise InvalidSpec(
            f"`{name}` cannot be an environment's name.",
            advice=f"Use lower-case letters and digits, joined by single `.`, `_` or `-`; {NAME_LENGTH} characters at most.",
        )
    return name


def read(path: Path) -> dict[str, Any]:
    """The content of a spec file. All its mistakes are reported at once, each with its line."""
    import yaml

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=loader)
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, *NOT_YAML) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InvalidSpec(
            f"{where}: this is not YAML: {getattr(error, 'problem', None) or error}.",
            advice="Mend it and run again.",
        ) from error
    if root is None or not isinstance(content, dict):
        raise InvalidSpec(f"{path}: a spec is a mapping with keys among {', '.join(KEYS)}.")
    first = {key.value: key.start_mark.line + 1 for key, _ in reversed(root.value)}
    places = [(key.start_mark.line + 1, key.value) for key, _ in root.value]
    repeated = [(line, f"`{key}` stands here again.") for line, key in places if line != first[key]]
    written = {
        key.value: value.value for key, value in root.value if isinstance(value, yaml.ScalarNode)
    }
    _refuse(
        repeated + [(first.get(str(key), 1), text) for key, text in _mistakes(content, written)],
        path,
    )
    return content


def combine(file: Mapping[str, Any], options: Mapping[str, Any], *, name: str) -> Spec:
    """Options laid over a spec file's content; an option that was not given (None, empty) leaves the file's word. Packages are
    added to the file's, and replace those of the same name."""
    given = {
        key: value
        for key, value in options.items()
        if value not in (None, (), []) and (key, value) != ("cpu", False)
    }
    if given.get("cuda") and given.get("cpu"):
        raise InvalidSpec(
            "--cuda and --cpu were both given.",
            advice="Ask for one: a CUDA version, or a build without CUDA.",
        )
    added: dict[str, Any] = {
        key: _with(file.get(key, ()), given[key]) for key in ("conda", "pip") if key in given
    }
    merged: dict[str, Any] = {**file, **given, **added}
    if "cuda" in given:
        merged.pop("cpu", None)
    if "cpu" in given:
        merged = {
            key: value for key, value in merged.items() if key not in ABOUT_GPUS or key in given
        }
    mistakes = _mistakes(merged)
    if "torch" not in merged:
        mistakes.append(
            ("torch", "torch: which PyTorch? Give --torch, e.g. 2.3 (or write it in spec.yml).")
        )
    if not merged.get("cuda") and not merged.get("cpu"):
        mistakes.append(
            (
                "cuda",
                "cuda: which CUDA? Give --cuda, e.g. 12.1, or --cpu for machines without GPUs.",
            )
        )
    if mistakes:
        raise InvalidSpec(" ".join(text for _, text in mistakes))
    return Spec(
        name=check_name(name) if name else "",
        torch=merged["torch"],
        cuda=None if merged.get("cpu") else merged["cuda"],
        **{
            key: _settled(key, merged[key])
            for key in merged.keys() - {"torch", "cuda", "cpu"}
            if merged[key] not in (None, (), [])
        },
    )


def _settled(key: str, value: Any) -> Any:
    """Lists as the Spec holds them, each entry once; platforms in one order, so that the same ones give the same bytes."""
    if key == "platforms":
        return tuple(platform for platform in PLATFORMS if platform in value)
    return tuple(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else value


def _with(listed: Sequence[str], given: Sequence[str]) -> list[str]:
    names = {_package(text) for text in given}
    return [text for text in listed if _package(text) not in names] + list(given)


def _package(requirement: str) -> str:
    """The name in a requirement of either kind, as both compare it."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement.rpartition("::")[2], maxsplit=1)[0]
    return re.sub(r"[._-]+", "-", name).lower()


def content(spec: Spec) -> dict[str, Any]:
    """What spec.yml holds for this spec: only what differs from the defaults, in the order of KEYS."""
    asked: dict[str, Any] = {"torch": spec.torch}
    asked |= {"cuda": spec.cuda} if spec.cuda else {"cpu": True}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if (
            field.name in KEYS
            and field.name not in asked
            and field.name != "cuda"
            and value != field.default
        ):
            asked[field.name] = list(value) if isinstance(value, tuple) else value
    return {key: asked[key] for key in KEYS if key in asked}


def _refuse(mistakes: Sequence[tuple[int, str]], path: Path) -> None:
    if mistakes:
        listed = " ".join(f"{path}:{line}: {text}" for line, text in sorted(mistakes))
        raise InvalidSpec(listed)


def _mistakes(
    content: Mapping[Any, Any], written: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Every key or value that is not what it must be, as (key, sentence). written: scalars as they stand in the file."""
    found = []
    for key, value in content.items():
        if key not in KEYS:
            found.append(
                (str(key), f"`{key}` is not a key of a spec; the keys are {', '.join(KEYS)}.")
            )
        elif problem := _problem(key, value, (written or {}).get(key)):
            found.append((key, problem))
    if content.get("cuda") and content.get("cpu"):
        found.append(("cpu", "`cuda` and `cpu: true` exclude each other."))
    elif content.get("cpu"):
        found += [
            (key, f"`{key}` is about GPUs, and `cpu: true` asks for a build without CUDA.")
            for key in ABOUT_GPUS
            if content.get(key)
        ]
    return found


def _problem(key: str, value: Any, written: str | None = None) -> str | None:
    if key in FLAGS:
        return None if isinstance(value, bool) else f"`{key}` is true or false, not `{value}`."
    if key in LISTS:
        return _list_problem(key, value)
    if not isinstance(value, str):
        return _not_text(key, value, written)
    if key in CHOICES:
        return (
            None
            if value in CHOICES[key]
            else f"`{key}` is one of {', '.join(CHOICES[key])}, not `{value}`."
        )
    if key in TEXTS:
        if key == "python" and re.fullmatch(r"\d+\.\d+t", value):
            return (
                f"`python` {value} is a free-threaded Python, of which no environments are made; which wheels there are says "
                + (f"`provision matrix --python {value}`. Ask for {value[:-1]}.")
            )
        pattern, example = TEXTS[key]
        return (
            None if re.fullmatch(pattern, value) else f"`{key}` is like {example}, not `{value}`."
        )
    return {"torch": _torch_problem, "as_of": _date_problem}[key](value)


def _not_text(key: str, value: Any, written: str | None) -> str:
    """YAML reads 2.10 without quotes as the number 2.1, and yes as true: what to write is what stands in the file."""
    if value is None:
        return f"`{key}` says nothing; give it a value, or leave the line out."
    if isinstance(value, (list, dict, set)):
        return f"`{key}` is one text, not `{value}`."
    text = str(value) if written is None else written
    return _problem(key, text) or f'`{key}` must be text; write it in quotes: {key}: "{text}".'


def _torch_problem(value: str) -> str | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if value == "latest" or re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){0,2}", value):
        return None
    try:
        if re.fullmatch(r"[0-9A-Za-z.*,<>=!~ ]+", value) and SpecifierSet(value):
            return None
    except InvalidSpecifier:
        pass
    return f"`torch` is like {TORCH_FORM}, not `{value}`."


def _date_problem(value: str) -> str | None:
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", value) and date.fromisoformat(value):
            return None
    except ValueError:
        pass
    return f"`as_of` is a day like 2024-06-30, not `{value}`."


def _list_problem(key: str, value: Any) -> str | None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        return f"`{key}` is a list of texts."
    pattern, kind = LISTS[key]
    wrong = [item for item in value if not re.fullmatch(pattern, item)]
    if wrong:
        return f"`{key}` holds what cannot be {kind}: {', '.join(map(repr, wrong))}."
    further = {"pip": _requirement_problem, "gpu": _gpu_problem}.get(key)
    return further(value) if further else None


def _requirement_problem(requirements: Sequence[str]) -> str | None:
    from packaging.requirements import InvalidRequirement, Requirement

    for text in requirements:
        try:
            Requirement(text)
        except InvalidRequirement as error:
            return (
                f"`pip` holds `{text}`, which is not a requirement: {str(error).splitlines()[0]}."
            )
    return None


def _gpu_problem(names: Sequence[str]) -> str | None:
    """GPUs are named in words that the facts know; a misspelt one is a mistake like the others, and told with them."""
    from provision import catalog

    for name in names:
        try:
            catalog.find_gpu(name)
        except InvalidSpec as error:
            return f"`gpu`: {error.message} {error.advice}".strip()
    return None
