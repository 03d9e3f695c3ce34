from __future__ import annotations

from pathlib import Path

import pytest

from provision.adapters import conda
from provision.core.errors import IntegrityError
from provision.core.mirrors import Mirrors, MirrorSetting
from provision.core.types import LockedPackage
from provision.verbs.channel import mirror

SHA, OTHER = "a" * 64, "b" * 64
FORGE = "https://channels.invalid/conda-forge"


def conda_package(name: str, sha256: str = SHA, channel: str = FORGE) -> LockedPackage:
    url = f"{channel}/linux-64/{name}-1-0.conda"
    return LockedPackage(manager="conda", name=name, version="1", url=url, sha256=sha256)


def wheel(
    url: str = "https://files.invalid/x-1.0-py3-none-any.whl", sha256: str = SHA
) -> LockedPackage:
    return LockedPackage(manager="pip", name="x", version="1.0", url=url, sha256=sha256)


@pytest.fixture(autouse=True)
def no_repodata(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The channels for which rattler would write it."""
    indexed: list[Path] = []
    monkeypatch.setattr(conda, "index_channel", indexed.append)
    return indexed


@pytest.mark.parametrize(
    "package,path",
    [
        (conda_package("a"), "channels.invalid/conda-forge/linux-64/a-1-0.conda"),
        (conda_package("a", channel="https://me:pw@h.invalid:80/lab"), "h.invalid:80/lab/linux-64/a-1-0.conda"),
        (conda_package("a", channel="file:///home/me/py3.11.7"), "local/home/me/py3.11.7/linux-64/a-1-0.conda"),
        (wheel("https://f.invalid/x-1%2Bcu121-py3-none-any.whl#sha256=0"), "f.invalid/x-1+cu121-py3-none-any.whl"),
    ],
)  # fmt: skip
def test_path_of_a_file(package: LockedPackage, path: str) -> None:
    assert mirror.file_path(package) == f"files/{path}"


@pytest.mark.parametrize(
    "url",
    [
        "https://f.invalid/",
        "https://f.invalid/..",
        "https://f.invalid/../../etc/x.whl",
        "https://f.invalid/%2e%2e/x.whl",
        "https://f.invalid/a%2fb.whl",
    ],
)
def test_url_without_a_mirror_path_is_refused(url: str) -> None:
    with pytest.raises(IntegrityError, match="cannot be mirrored"):
        mirror.file_path(wheel(url))
    with pytest.raises(IntegrityError, match="no well-formed sha256"):
        mirror.file_path(wheel(sha256="abc"))


def test_locks_with_conflicting_hashes() -> None:
    a, b = conda_package("a"), conda_package("b")
    assert list(mirror.unique_files([b, a, b]).values()) == [a, b]
    with pytest.raises(IntegrityError, match=r"disagree about .*a-1-0\.conda"):
        mirror.unique_files([a, conda_package("a", OTHER)])


def test_folder_stands_for_its_addresses(tmp_path: Path, no_repodata: list[Path]) -> None:
    """Also after another run, with other files."""
    local = conda_package("c", channel="file:///home/a%20b/lab")
    mirror.write_descriptions(tmp_path, mirror.unique_files([conda_package("a"), local]))
    mirror.write_descriptions(tmp_path, mirror.unique_files([wheel()]))
    assert no_repodata == [
        tmp_path / "files/channels.invalid/conda-forge",
        tmp_path / "files/local/home/a b/lab",
    ]
    setting = MirrorSetting(name=None, url="file:///m/")
    mirrors = Mirrors([setting], manifest=lambda url: (tmp_path / "mirrors.txt").read_text())
    assert mirrors.index == "file:///m/simple"
    for canonical, actual in [
        (f"{FORGE}/linux-64/a-1-0.conda", "channels.invalid/conda-forge/linux-64/a-1-0.conda"),
        (local.url, "local/home/a%20b/lab/linux-64/c-1-0.conda"),
        ("https://files.invalid/x%2B1.whl", "files.invalid/x%2B1.whl"),
    ]:
        assert mirrors.actual_url(canonical) == f"file:///m/files/{actual}"
        assert mirrors.canonical_url(f"file:///m/files/{actual}") == canonical
    assert mirrors.actual_url("file:///home/a%20b/lab2/x") == "file:///home/a%20b/lab2/x"
    page = (tmp_path / "simple" / "x" / "index.html").read_text()
    name = "x-1.0-py3-none-any.whl"
    assert f'href="../../files/files.invalid/{name}#sha256={SHA}">{name}</a>' in page
