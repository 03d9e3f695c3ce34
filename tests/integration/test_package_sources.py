"""Packages that come from an index or a page of wheels of their own, by real uv from servers on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from provision import sources
from provision.adapters import uv
from provision.core.types import HostGpus, LockedPackage
from provision.resolver import spec
from provision.workflow import named_wheels
from tests.faulty import Server, served
from tests.small import write_wheel

TORCH = sources.by_name("wheels").torch_build("2.3.1", "12.1", "linux-64")


def add(simple: Path, name: str, version: str, needs: tuple[str, ...] = ()) -> None:
    write_wheel(simple / name, name.replace("-", "_"), version, needs)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Indexes `public`, which uv uses by default, and `lab`, and a page of wheels."""
    public, lab, page = (tmp_path / "served" / name for name in ("public", "lab", "page"))
    for name in ("labpkg", "labtools", "einops", "torch-scatter"):
        add(public, name, "9.0")
    add(lab, "labpkg", "1.0", ("labtools", "einops"))
    add(lab, "labpkg", "2.0", ("einops>=99",))
    add(lab, "labtools", "1.0")
    add(lab, "einops", "99.0")
    for version in ("2.1.1+pt23cu121", "2.1.2+pt23cu121", "2.1.2+pt23cu122", "2.1.2+pt24cu121"):
        write_wheel(page, "torch_scatter", version)
    for folder in {wheel.parent for wheel in (tmp_path / "served").rglob("*.whl")}:
        links = [f'<a href="{quote(path.name)}">{path.name}</a>' for path in folder.glob("*.whl")]
        (folder / "index.html").write_text("\n".join(links))
    with served(tmp_path / "served") as running:
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{running.url}/public")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("HOME", str(tmp_path))
        yield running


def resolve(*requirements: str, sources: tuple[str, ...]) -> dict[str, LockedPackage]:
    request = uv.ResolveRequest(
        requirements=requirements, python="3.11", glibc="2.28", sources=sources, torch=TORCH
    )
    return {package.name: package for package in uv.resolve(request)}


def test_an_index_serves_the_packages_named_for_it_and_no_others(server: Server) -> None:
    source = f"indexes: labpkg, LabTools @ {server.url}/lab"
    packages = resolve("labpkg", sources=(source,))
    versions = {name: package.version for name, package in packages.items()}
    assert versions == {"labpkg": "1.0", "labtools": "1.0", "einops": "9.0"}
    assert {name for name, package in packages.items() if package.direct} == {"labpkg", "labtools"}
    assert packages["labpkg"].url == f"{server.url}/lab/labpkg/labpkg-1.0-py3-none-any.whl"
    assert not [path for path in server.log if path.startswith("/public/lab")]
    assert "labtools" not in resolve("einops", sources=(source,))


@pytest.mark.parametrize("names", ["torch-scatter @ ", ""])
@pytest.mark.parametrize("is_folder", [True, False])
def test_the_wheel_for_the_locked_torch(server: Server, names: str, is_folder: bool) -> None:
    """One for another torch, or for another CUDA than the build's own, has a higher version."""
    address = (server.folder / "page").as_uri() if is_folder else f"{server.url}/page/"
    source = f"find_links: {names}{address}"
    (package,) = resolve("torch-scatter>=2", sources=(source,)).values()
    assert package.version == "2.1.2+pt23cu121"
    assert package.direct and len(package.sha256) == 64
    exact = resolve("torch-scatter==2.1.1+pt23cu121", sources=(source,))
    assert exact["torch-scatter"].version == "2.1.1+pt23cu121"


@pytest.mark.parametrize(
    "requirement,message",
    [
        ("torch-scatter==2.1.2+pt24cu121", r"no torch-scatter for torch 2\.3\.1.*torch 2\.4"),
        ("torch-scatter>3", "lists no torch-scatter"),
    ],
)
def test_a_page_without_a_wheel_that_fits_is_named(
    server: Server, requirement: str, message: str
) -> None:
    with pytest.raises(uv.NoWheelFits, match=message) as error:
        resolve(requirement, sources=(f"find_links: torch-scatter @ {server.url}/page/",))
    assert "page" in error.value.advice


def test_a_release_left_open_is_one_that_the_page_has(server: Server) -> None:
    # With `auto`, each release counts with the CUDA that it would have.
    content = {"torch": ">=2.2", "cuda": "auto", "gpu": ["H100"], "source": "wheels"}
    request_spec = spec.combine({}, content, name="lab")
    request = uv.ResolveRequest(
        requirements=("torch-scatter",),
        python="3.11",
        glibc="2.28",
        sources=(f"find_links: {server.url}/page/",),
    )
    releases = ["2.15.0", "2.5.1", "2.4.1", "2.3.1", "2.2.2"]
    request, possible = named_wheels._with_listed_wheels(
        request_spec, HostGpus(), request, releases
    )
    assert possible == ["2.4.1", "2.3.1"]
    assert request.torch is not None and request.torch.torch == "2.4.1"
