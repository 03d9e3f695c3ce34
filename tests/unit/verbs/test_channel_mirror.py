from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import IntegrityError
from provision.core.mirrors import Mirrors, MirrorSetting
from provision.verbs.channel import mirror_folder as mirror
from provision.verbs.channel.mirror_folder import MirrorFile, mirror_file

SHA, OTHER = "a" * 64, "b" * 64
FORGE = "https://channels.invalid/conda-forge"


def conda_file(
    name: str,
    sha256: str = SHA,
    channel: str = FORGE,
    subdir: str = "linux-64",
    end: str = ".conda",
) -> MirrorFile:
    return mirror_file("conda", name, f"{channel}/{subdir}/{name}-1-0{end}", sha256)


def wheel(name: str, sha256: str = SHA) -> MirrorFile:
    return mirror_file("pip", name, f"https://files.invalid/{name}-1.0-py3-none-any.whl", sha256)


def record(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": "1",
        "build": "0",
        "build_number": 0,
        "depends": [],
        "sha256": SHA,
    }


def put(folder: Path, *files: MirrorFile) -> None:
    for file in files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).touch()


def write(folder: Path, *files: MirrorFile) -> None:
    put(folder, *files)
    rows = {file.url: record(file.name) for file in files if file.manager == "conda"}
    mirror.write(folder, files, rows)


@pytest.mark.parametrize(
    "file,path",
    [
        (conda_file("a"), "channels/channels.invalid/conda-forge/linux-64/a-1-0.conda"),
        (conda_file("a", channel="https://me:pw@h.invalid:80/t/x/lab"), "channels/h.invalid_80/t/x/lab/linux-64/a-1-0.conda"),
        (conda_file("a", channel="https://h.invalid/../../etc"), "channels/h.invalid/etc/linux-64/a-1-0.conda"),
        (
            mirror_file("pip", "x", "https://f.invalid/x-1%2Bcu121-py3-none-any.whl#sha256=0", SHA),
            f"wheels/{SHA}/x-1+cu121-py3-none-any.whl",
        ),
    ],
)  # fmt: skip
def test_path_of_a_file(file: MirrorFile, path: str) -> None:
    assert file.path == path


def test_local_channel_does_not_leak_its_path() -> None:
    path = conda_file("a", channel="file:///home/me/channels/py3.11.7").path
    assert path.startswith("channels/local/py3.11.7-") and "home" not in path


@pytest.mark.parametrize(
    "url",
    [
        "https://f.invalid/",
        "https://f.invalid/..",
        "https://f.invalid/%2e%2e",
        "https://f.invalid/a%2fb.whl",
    ],
)
def test_url_without_a_mirror_path_is_refused(url: str) -> None:
    with pytest.raises(IntegrityError, match="cannot be mirrored"):
        mirror_file("pip", "x", url, SHA)
    with pytest.raises(IntegrityError, match="no well-formed sha256"):
        mirror_file("pip", "x", "https://f.invalid/x-1-py3-none-any.whl", "abc")


def test_locks_with_conflicting_hashes() -> None:
    assert mirror.unique_files([conda_file("b"), conda_file("a"), conda_file("b")]) == [
        conda_file("a"),
        conda_file("b"),
    ]
    with pytest.raises(IntegrityError, match=r"disagree about .*a-1-0\.conda"):
        mirror.unique_files([conda_file("a"), conda_file("a", OTHER)])


def test_manifest_round_trip(tmp_path: Path) -> None:
    files = [
        conda_file("a"),
        conda_file("b", subdir="noarch", end=".tar.bz2"),
        wheel("x"),
        wheel("x", OTHER),
    ]
    write(tmp_path, *files)
    manifest = (tmp_path / "mirror.json").read_text()
    setting = MirrorSetting(name=None, url="file:///m/")
    mirrors = Mirrors([setting], manifest=lambda url: manifest)
    forge = "file:///m/channels/channels.invalid/conda-forge/"
    assert mirrors.actual_url(f"{FORGE}/linux-64/a-1-0.conda") == f"{forge}linux-64/a-1-0.conda"
    for sha256 in (SHA, OTHER):
        file = "x-1.0-py3-none-any.whl"
        actual = f"file:///m/wheels/{sha256}/{file}"
        assert mirrors.actual_url("https://elsewhere.invalid/x", sha256) == actual
        assert mirrors.canonical_url(actual, sha256) == f"https://files.invalid/{file}"
    channel = tmp_path / "channels/channels.invalid/conda-forge"
    assert list(
        json.loads((channel / "linux-64" / "repodata.json").read_text())["packages.conda"]
    ) == ["a-1-0.conda"]
    noarch = json.loads((channel / "noarch" / "repodata.json").read_text())
    assert (list(noarch["packages"]), noarch["info"]) == (["b-1-0.tar.bz2"], {"subdir": "noarch"})
    page = (tmp_path / "simple" / "x" / "index.html").read_text()
    for sha256 in (SHA, OTHER):
        assert f'href="../../wheels/{sha256}/x-1.0-py3-none-any.whl#sha256={sha256}"' in page


def test_manifest_bytes_are_reproducible(tmp_path: Path) -> None:
    files = [conda_file("a"), wheel("x")]
    write(tmp_path / "one", *files)
    write(tmp_path / "two", *reversed(files))
    texts = [
        {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file()
        }
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert texts[0] == texts[1]


def test_earlier_files_stay(tmp_path: Path) -> None:
    old, new = [conda_file("a"), wheel("x")], [conda_file("b"), wheel("y", OTHER)]
    write(tmp_path, *old)
    write(tmp_path, *new)
    repodata = tmp_path / "channels/channels.invalid/conda-forge/linux-64/repodata.json"
    assert list(json.loads(repodata.read_text())["packages.conda"]) == [
        "a-1-0.conda",
        "b-1-0.conda",
    ]
    assert set(json.loads((tmp_path / "mirror.json").read_text())["wheels"]) == {SHA, OTHER}


def test_records_of_removed_files_are_removed(tmp_path: Path) -> None:
    write(tmp_path, conda_file("a"))
    (tmp_path / conda_file("a").path).unlink()
    write(tmp_path, conda_file("b"))
    repodata = tmp_path / "channels/channels.invalid/conda-forge/linux-64/repodata.json"
    assert list(json.loads(repodata.read_text())["packages.conda"]) == ["b-1-0.conda"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"schema": 2, "channels": {}, "wheels": {}}',
        '{"schema": 1, "channels": 1, "wheels": {}}',
    ],
)
def test_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mirror.json").write_text(text)
    with pytest.raises(IntegrityError, match=r"mirror\.json"):
        mirror.read_manifest(tmp_path)
