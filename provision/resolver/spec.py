"""spec.yml and options -> Spec.

Checks the form of a request, not whether its build exists. The keys and the forms of their values
are declared in `core/spec_fields.py`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from provision import sources
from provision.core.credentials import credential_problems
from provision.core.errors import InvalidSpec
from provision.core.package_names import package_name
from provision.core.platforms import PLATFORM, PLATFORMS, Platform
from provision.core.remembered import remembered
from provision.core.requirement_urls import source_address, source_packages
from provision.core.schema import schema_error
from provision.core.spec_fields import SPEC_KEYS, BuildSettings, Spec, SpecContent, SpecKey
from provision.core.yaml_text import (
    YamlError,
    compose_yaml,
    exact_document,
    parse_yaml,
    read_source,
)

# One rule for every use of a name: a folder, a Docker repository (lower case, no double
# separators), a Jupyter kernel.
NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")
NAME_LENGTH = 100

# What people pass as a package and is a file of packages. (ruamel.yaml is a package.)
FILE_NAME = re.compile(r"[^\s=<>@]*\.txt|[^\s=<>@]*requirements[^\s=<>@]*\.in|environment\.ya?ml")

# What takes the place of keys that a spec had.
_BY_BUILD = "each build of torch has its own; of conda-forge's, `conda: [{0}=VERSION]` chooses it"
REMOVED_KEYS = {name: _BY_BUILD.format(name) for name in ("nccl", "cudnn")}

KEYS = tuple(key.name for key in SPEC_KEYS)
GPU_KEYS = tuple(key.name for key in SPEC_KEYS if key.is_gpu_key)
_KEYS_BY_NAME = {key.name: key for key in SPEC_KEYS}


def check_name(name: str) -> str:
    """Return a name that is safe as a folder, an image and a kernel. Raises InvalidSpec."""
    if len(name) > NAME_LENGTH or not NAME.fullmatch(name):
        raise InvalidSpec(
            f"`{name}` cannot be an environment's name.",
            advice="Use lower-case letters and digits, joined by single `.`, `_` or `-`; "
            f"{NAME_LENGTH} characters at most.",
        )
    return name


def read(path: Path) -> dict[str, Any]:
    """The content of a spec file. All its mistakes are reported at once, each with its line."""
    try:
        text = read_source(path)
    except YamlError as error:
        raise InvalidSpec(error.in_file(path)) from error
    # Facts and GPUs may change meanwhile: `combine` checks it again.
    content: dict[str, Any] = remembered("spec", path, text, lambda: parse(text, path))
    return content


def parse(text: bytes, path: Path) -> dict[str, Any]:
    """The same of a text. path: where it is or will be, for messages."""
    try:
        root = compose_yaml(text)
        content = parse_yaml(text)
    except YamlError as error:
        raise InvalidSpec(
            error.in_file(path),
            advice="Correct it and run again.",
        ) from error
    if root is None or not isinstance(content, dict):
        raise InvalidSpec(f"{path}: a spec is a mapping with keys among {', '.join(KEYS)}.")
    first_lines: dict[str, int] = {}
    scalars = {}
    mistakes: list[tuple[int, str]] = []
    for key_node, value_node in root.value:
        line = key_node.start_mark.line + 1
        if key_node.value in first_lines:
            mistakes.append((line, f"`{key_node.value}` is here a second time."))
        first_lines.setdefault(key_node.value, line)
        if value_node.id == "scalar":
            scalars[key_node.value] = value_node.value
        elif key_node.value == "build":
            content["build"] = exact_document(value_node)
    for key, sentence in _mistakes(content, scalars):
        mistakes.append((first_lines.get(str(key), 1), sentence))
    if mistakes:
        listed = [f"{path}:{line}: {sentence}" for line, sentence in sorted(mistakes)]
        raise InvalidSpec(" ".join(listed))
    return content


def combine(file: SpecContent, options: SpecContent, *, name: str) -> Spec:
    """Lay options over a spec file's content.

    An option that is None or empty leaves what the file says. Packages are added to the file's, and
    replace those of the same name.
    """
    overrides = {
        key: value
        for key, value in options.items()
        if value not in (None, (), []) and (key, value) != ("cpu", False)
    }
    if overrides.get("cuda") and overrides.get("cpu"):
        raise InvalidSpec(
            "--cuda and --cpu were both given.",
            advice="Request one: a CUDA version, or a build without CUDA.",
        )
    merged = {**file, **overrides}
    for key in SPEC_KEYS:
        if key.name not in overrides:
            continue
        if key.extends_file:
            merged[key.name] = replace_packages(file.get(key.name, ()), overrides[key.name])
        elif key.kind == "sources of packages":
            merged[key.name] = with_sources(file.get(key.name, ()), overrides[key.name])
    if "cuda" in overrides:
        merged.pop("cpu", None)
    if "cpu" in overrides:
        for key_name in GPU_KEYS:
            if key_name not in overrides:
                merged.pop(key_name, None)
    mistakes = [sentence for _, sentence in _mistakes(merged)]
    if not mistakes:
        merged["platforms"], problem = _platforms_of_gpus(merged)
        mistakes += [problem] if problem else []
    if "torch" not in merged:
        mistakes.append("torch: which PyTorch? Give --torch, e.g. 2.3 (or write it in spec.yml).")
    if not merged.get("cpu") and (merged.get("gpu") or merged.get("driver")):
        merged.setdefault("cuda", "auto")
    if not merged.get("cuda") and not merged.get("cpu"):
        example = "e.g. 12.1"
        cudas = [] if mistakes else _cudas_of(merged["torch"], merged.get("source", sources.AUTO))
        if cudas:
            example = f"for torch {merged['torch']}: {', '.join(cudas)}"
        mistakes.append(
            f"cuda: which CUDA? Give --cuda ({example}), or --cpu for machines without GPUs."
        )
    if mistakes:
        raise InvalidSpec("\n".join(mistakes))
    values = {
        key: _field_value(key, value)
        for key, value in merged.items()
        if key not in ("cuda", "cpu") and value not in (None, (), [])
    }
    cuda = None if merged.get("cpu") else merged["cuda"]
    return Spec(name=check_name(name) if name else "", cuda=cuda, **values)


def _platforms_of_gpus(
    content: SpecContent,
) -> tuple[Sequence[Platform] | None, str | None]:
    """The platforms of a request and the problem with them, or None. Without platforms, GPUs on one
    module with their CPU say which it is."""
    from provision import catalog

    requested: Sequence[Platform] | None = content.get("platforms")
    gpus = [catalog.find_gpu(name) for name in content.get("gpu") or ()]
    if not requested and gpus and all(gpu.platform for gpu in gpus):
        return [gpu.platform for gpu in gpus if gpu.platform], None
    for gpu in gpus:
        if gpu.platform and gpu.platform not in (requested or (PLATFORM,)):
            return requested, (
                f"`gpu`: {gpu.name} is on one module with an Arm CPU; request platform "
                f"{gpu.platform} ({gpu.platform_source})."
            )
    return requested, None


def _cudas_of(torch: str, source: str) -> list[str]:
    """The CUDA versions that a source, or any, has releases for, newest first. Raises NoSuchBuild
    for releases that are not known."""
    from provision import catalog

    cudas = set()
    for release in catalog.matching_releases(torch):
        for candidate in sources.candidates_of(release.version):
            if candidate.cuda and source in (sources.AUTO, candidate.source.name):
                cudas.add(candidate.cuda)
    return sorted(cudas, key=catalog.version_key, reverse=True)


def _field_value(key: str, value: Any) -> Any:
    """Lists as tuples without duplicates; platforms in a fixed order, so that equal specs give
    equal bytes."""
    if key == "platforms":
        return tuple(platform for platform in PLATFORMS if platform in value)
    if isinstance(value, (list, tuple)):
        return tuple(dict.fromkeys(value))
    if key == "build":
        return {package_name(name): settings for name, settings in value.items()}
    return value


def replace_packages(listed: Sequence[str], added: Sequence[str]) -> list[str]:
    """Requirements with more of them, which replace those of the same package."""
    names = {package_name(requirement) for requirement in added}
    remaining = [requirement for requirement in listed if package_name(requirement) not in names]
    return remaining + list(added)


def with_sources(
    listed: Sequence[str], added: Sequence[str], removed: Collection[str] = ()
) -> list[str]:
    """Sources of packages with more of them, and without packages that were removed or that another
    source has now. removed: canonical names."""
    moved = set(removed)
    for text in added:
        moved.update(source_packages(text))
    remaining = []
    for text in listed:
        names = source_packages(text)
        if not moved.isdisjoint(names):
            names = [name for name in names if name not in moved]
            text = f"{' '.join(names)} @ {source_address(text)}" if names else ""
        remaining.append(text)
    return list(dict.fromkeys(filter(None, (*remaining, *added))))


def content(spec: Spec) -> dict[str, Any]:
    """What spec.yml holds for this spec: only what differs from the defaults, in the order of the
    keys."""
    defaults = Spec(name="", torch="", cuda=None)
    values: dict[str, Any] = {}
    for key in KEYS:
        if key == "cpu":
            if spec.cuda is None:
                values["cpu"] = True
            continue
        value = getattr(spec, key)
        if value != getattr(defaults, key):
            values[key] = list(value) if isinstance(value, tuple) else value
    return values


def _mistakes(
    content: Mapping[Any, Any], scalars: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """A (key, sentence) pair for every wrong key or value. scalars: the values' texts in the
    file."""
    mistakes = []
    for name, value in content.items():
        key = _KEYS_BY_NAME.get(name)
        if name in REMOVED_KEYS:
            mistakes.append((name, f"`{name}` is no key of a spec any more: {REMOVED_KEYS[name]}."))
            continue
        if key is None:
            listed = ", ".join(KEYS)
            mistakes.append((str(name), f"`{name}` is not a key of a spec; the keys are {listed}."))
            continue
        problem = value_problem(key, value, (scalars or {}).get(name))
        if problem:
            mistakes.append((name, problem))
    if content.get("cuda") and content.get("cpu"):
        mistakes.append(("cpu", "`cuda` and `cpu: true` exclude each other."))
    elif content.get("cpu"):
        for name in GPU_KEYS:
            if content.get(name):
                sentence = f"`{name}` is about GPUs, and `cpu: true` requests a build without CUDA."
                mistakes.append((name, sentence))
    return mistakes


def value_problem(key: SpecKey, value: Any, scalar: str | None = None) -> str | None:
    """The problem with a key's value, or None. scalar: the value's text in the file."""
    if key.kind in ("flag", "switch"):
        if isinstance(value, bool):
            return None
        return f"`{key.name}` is true or false, not `{value}`."
    if problems := list(credential_problems(value)):
        return f"`{key.name}`: {' '.join(problems)}"
    if key.kind == "builds":
        return _build_problem(key, value)
    if key.is_list:
        return _list_problem(key, value)
    if isinstance(value, str):
        return _text_problem(key, value)
    if value is None:
        return f"`{key.name}` has no value; give it one, or leave the line out."
    if isinstance(value, (list, dict, set)):
        return f"`{key.name}` is one text, not `{value}`."
    # YAML reads 2.10 without quotes as the number 2.1, and yes as true: quote the file's own text.
    text = str(value) if scalar is None else scalar
    return (
        _text_problem(key, text)
        or f'`{key.name}` must be text; write it in quotes: {key.name}: "{text}".'
    )


def _rocm_problem(key: SpecKey, value: str) -> str | None:
    """What AMD's users request."""
    if key.name not in ("torch", "cuda") or not re.search(r"rocm|\bhip\b", value, re.IGNORECASE):
        return None
    return (
        f"`{key.name}` {value}: ROCm is for AMD's GPUs, and there are builds for NVIDIA GPUs only. "
        "A CPU build (`cpu: true`, `--cpu`) runs there, without the GPU."
    )


def _text_problem(key: SpecKey, value: str) -> str | None:
    if problem := _rocm_problem(key, value):
        return problem
    if key.kind in ("choice", "source"):
        choices = sources.allowed_choices(key)
        expected, is_valid = f"one of {', '.join(choices)}", value in choices
    elif key.kind == "release":
        expected, is_valid = f"like {key.example}", _is_release(value)
    elif key.kind == "day":
        expected, is_valid = "a day like 2024-06-30", _is_day(value)
    else:
        expected = f"like {key.example}"
        is_valid = re.fullmatch(key.pattern, value) is not None
    return None if is_valid else f"`{key.name}` must be {expected}, not `{value}`."


def _is_release(value: str) -> bool:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if value == "latest" or re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){0,2}(\.dev\d+)?", value):
        return True
    try:
        return bool(re.fullmatch(r"[0-9A-Za-z.*,<>=!~ ]+", value) and SpecifierSet(value))
    except InvalidSpecifier:
        return False


def _is_day(value: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", value) and date.fromisoformat(value))
    except ValueError:
        return False


def _list_problem(key: SpecKey, value: Any) -> str | None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        return f"`{key.name}` is a list of texts."
    files = [item for item in value if FILE_NAME.fullmatch(item)]
    if files and key.name in ("pip", "conda"):
        problem = f"`{key.name}` holds `{files[0]}`, which looks like a file and is not a package."
        if not files[0].startswith("environment."):
            problem += f" Did you mean -r? `provision add NAME -r {files[0]}` adds what it lists."
        return problem
    wrong = [item for item in value if not re.fullmatch(key.pattern, item)]
    if wrong:
        listed = ", ".join(repr(item) for item in wrong)
        return f"`{key.name}` has entries that cannot be {key.item}: {listed}."
    if key.kind == "pip requirements":
        return _pip_problem(key, value)
    if key.kind == "gpus":
        return _gpu_problem(key, value)
    return None


def _pip_problem(key: SpecKey, requirements: Sequence[str]) -> str | None:
    from provision.core.requirement_lines import parse_lines

    keys = {"find-links": "find_links", "extra-index": "indexes"}
    for text in requirements:
        for entry in parse_lines(text):
            sentence = f"`{key.name}` holds `{entry.text}`"
            if entry.kind == "unknown":
                step = f"; {entry.next_step}" if entry.next_step else ""
                return f"{sentence}: {entry.reason}{step}."
            if entry.kind != "pip":
                step = f"; `provision add NAME '{entry.text}'` reads it"
                if entry.kind in keys:
                    step = f"; write its address under `{keys[entry.kind]}`"
                return f"{sentence}, an option of pip{step}."
    return None


def _build_problem(key: SpecKey, value: Any) -> str | None:
    if problem := schema_error(value, "package-builds"):
        keys = ", ".join(BuildSettings.__annotations__)
        return f"`{key.name}`: {problem}. It is a mapping of packages, each with some of {keys}."
    needs = [text for settings in value.values() for text in settings.get("needs", ())]
    return _pip_problem(key, needs)


def _gpu_problem(key: SpecKey, names: Sequence[str]) -> str | None:
    """A misspelled GPU is reported with the other mistakes."""
    from provision import catalog

    for name in names:
        try:
            catalog.find_gpu(name)
        except InvalidSpec as error:
            return f"`{key.name}`: {error.message} {error.advice}".strip()
    return None
