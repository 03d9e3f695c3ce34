"""Other forms in which people write versions and GPUs: pip's, conda's, wheel tags, nvidia-smi's.

A text in another form is returned unchanged; other modules decide whether it is valid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.core.errors import InvalidSpec

CPU = "cpu"
# v2.3, torch==2.3, pytorch=2.3.1, torch>=2.3,<2.6
_TORCH = re.compile(r"(?:v|(?:py)?torch\s*(?:={1,2}\s*)?v?)(?P<release>[\d<>=!~].*)", re.IGNORECASE)
# 2.3.1+cu121, 2.3.1+cpu
_LOCAL_VERSION = re.compile(r"(?P<release>\d+(?:\.\d+)*)\+(?P<build>cu\d{3,}|cpu)")
# cu121, cuda12.1, cuda-12.1, v12.1
_CUDA_PREFIX = re.compile(r"(?:cuda|cu|v)[\s=_-]*(?=\d)", re.IGNORECASE)
_CUDA_DIGITS = re.compile(r"(\d{2})(\d)")  # 121, as wheel tags have it
_CUDA_PATCH = re.compile(r"(\d+\.\d+)\.\d+")  # 12.1.1, a toolkit's version
# py311, cp311, python3.11, python=3.11
_PYTHON_PREFIX = re.compile(r"(?:python|py|cp|v)[\s=]*(?=\d)", re.IGNORECASE)
_PYTHON_DIGITS = re.compile(r"(3)(\d{1,2})")  # 311
_PYTHON_PATCH = re.compile(r"(\d+\.\d+)(?:\.\d+|\.\*)")  # 3.11.7, 3.11.*


@dataclass(frozen=True, kw_only=True)
class TorchForm:
    """A release of torch, and the build that a local version names."""

    release: str
    cuda: str | None = None  # 12.1, or CPU; None: the text names no build


def torch_form(text: str) -> TorchForm:
    """2.3 of v2.3 and torch==2.3; 2.3.1 and CUDA 12.1 of 2.3.1+cu121."""
    release = text.strip()
    prefixed = _TORCH.fullmatch(release)
    if prefixed:
        release = prefixed["release"].strip()
    local = _LOCAL_VERSION.fullmatch(release)
    if local is None:
        return TorchForm(release=release)
    build = local["build"]
    cuda = CPU if build == CPU else cuda_form(build)
    return TorchForm(release=local["release"], cuda=cuda)


def cuda_form(text: str) -> str:
    """12.1 of cu121, 121 and 12.1.1."""
    return _minor_version(_CUDA_PREFIX.sub("", text.strip(), count=1), _CUDA_DIGITS, _CUDA_PATCH)


def python_form(text: str) -> str:
    """3.11 of py311, 3.11.7 and python3.11."""
    version = _PYTHON_PREFIX.sub("", text.strip(), count=1)
    return _minor_version(version, _PYTHON_DIGITS, _PYTHON_PATCH)


def _minor_version(version: str, digits: re.Pattern[str], patch: re.Pattern[str]) -> str:
    """Major and minor version of one without a point, or of one with a patch number."""
    without_point = digits.fullmatch(version)
    if without_point:
        return f"{without_point[1]}.{without_point[2]}"
    with_patch = patch.fullmatch(version)
    return with_patch[1] if with_patch else version


def gpu_form(text: str) -> str:
    """The product's name as the table has it: RTX 4090 of 4090."""
    from provision import catalog

    try:
        gpu = catalog.find_gpu(text)
    except InvalidSpec:
        return text  # reported with the other mistakes
    return text if gpu.name == gpu.architecture else gpu.name
