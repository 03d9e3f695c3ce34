"""Packages for another CUDA than torch's are named, with the one for torch's."""

from __future__ import annotations

from typing import Any

import pytest

from provision import catalog, resolver
from provision.core.types import Resolution
from provision.resolver import cuda_packages, spec


def resolution(cuda: str | None, *pip: str) -> Resolution:
    options: dict[str, Any] = {"torch": "2.14.0", "source": "wheels", "pip": list(pip)}
    options |= {"cuda": cuda} if cuda else {"cpu": True}
    return resolver.resolve(spec.combine({}, options, name="lab"))


def warning(cuda: str | None, *pip: str) -> str:
    found = [item for item in resolution(cuda, *pip).warnings if item.what == "other-cuda"]
    assert len(found) <= 1
    return f"{found[0].reason}. {found[0].value}" if found else ""


@pytest.mark.parametrize(
    "cuda,package,proposal",
    [
        ("13.0", "cupy-cuda12x", "Request `cupy-cuda13x`."),
        ("12.6", "cupy_cuda13x>=13", "Request `cupy-cuda12x`."),
        ("12.6", "cupy-cuda11x", "Request `cupy-cuda12x`."),
        ("13.0", "jax[cuda12]>=0.5", "Request `jax[cuda13]`."),
        ("13.0", "jax[cuda12-local]", "Request `jax[cuda13]`."),
        ("13.0", "nvidia-dali-cuda120==1.50", "Request `nvidia-dali-cuda130`."),
        ("13.0", "cudf-cu12", "Request `cudf-cu13`."),
        ("13.0", "faiss-gpu-cu12", "Request another build of `faiss-gpu-cu12`."),
        ("13.0", "spconv-cu126", "Request another build of `spconv-cu126`."),
    ],
)
def test_package_for_another_cuda_is_named_with_a_replacement(
    cuda: str, package: str, proposal: str
) -> None:
    text = warning(cuda, "einops", package)
    assert f"`{package}` (CUDA 1" in text and text.endswith(proposal)


@pytest.mark.parametrize(
    "cuda,package",
    [
        ("13.0", "cupy-cuda13x"),
        ("12.6", "cudf-cu12"),
        ("13.0", "jax[cuda13]"),
        ("13.0", "jax"),
        ("13.0", "focus-cu"),
        (None, "cupy-cuda12x"),
    ],
)
def test_package_of_the_same_cuda_or_of_none_is_not(cuda: str | None, package: str) -> None:
    assert warning(cuda, package) == ""


def test_every_row_names_packages_that_its_rule_recognizes() -> None:
    for row in catalog.cuda_packages():
        assert row.source
        for name in row.packages:
            for major, ending in row.endings.items():
                match = cuda_packages.ENDING.fullmatch(f"{name}{ending}")
                assert match and (match["base"], match["major"]) == (name, major)
            for major, extra in row.extras.items():
                match = cuda_packages.EXTRA.fullmatch(extra)
                assert match and match["major"] == major
