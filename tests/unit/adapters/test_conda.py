"""Where channels are, and what of that a lock may name."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provision import lockfile
from provision.adapters import conda
from provision.adapters.conda import logins, solver
from provision.core.errors import IntegrityError, InvalidSpec, Unsolvable
from provision.core.types import LockedPackage
from tests.records import alias, make_channel, record
from tests.small import lock_text


def request(*specs: str, channels: tuple[str, ...] = ("lab",), **more: Any) -> conda.SolveRequest:
    return conda.SolveRequest(
        specs=specs, channels=channels, virtual_packages=(("__glibc", "2.28"),), **more
    )


def test_lock_names_the_channel_not_the_mirror(tmp_path: Path) -> None:
    mirror = make_channel(tmp_path / "all channels" / "lab", {"noarch": [record("six")]})
    solver = conda.Solver(alias(tmp_path / "all channels"))
    for spec in ("six", "lab::six"):
        (package,) = solver.solve(request(spec))
        assert package.url == f"{conda.channel_url('lab')}noarch/six-1-0.conda"
    (package,) = conda.Solver().solve(request("six", channels=(mirror.as_uri(),)))
    assert package.url.startswith("file:///")


def test_rattler_gets_logins_and_tokens_apart_from_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cache holds the addresses."""
    monkeypatch.setattr(logins, "_logins", {})
    monkeypatch.setenv(logins.AUTH_FILE, str(tmp_path / "credentials.json"))
    (tmp_path / "credentials.json").write_text('{"own.invalid": {"BearerToken": "x"}}')
    assert logins.public_url("https://m.invalid/c") == "https://m.invalid/c"
    assert logins.public_url("https://u:p%40w@m.invalid/c") == "https://m.invalid/c"
    assert logins.public_url("https://t.invalid:8/t/abc/c") == "https://t.invalid:8/c"
    # rattler takes one for a host: a second token stays where it is.
    assert logins.public_url("https://t.invalid:8/t/d/c") == "https://t.invalid:8/t/d/c"
    with logins.client_environment({}):
        content = json.loads(Path(os.environ[logins.AUTH_FILE]).read_text())
    assert content == {
        "own.invalid": {"BearerToken": "x"},
        "m.invalid": {"BasicHTTP": {"username": "u", "password": "p@w"}},
        "t.invalid": {"CondaToken": "abc"},
    }


@pytest.mark.parametrize(
    "mirror,channel,url",
    [
        ("https://m.invalid/c/", "https://m.invalid/c/", "https://m.invalid/c/noarch/x-1-0.conda"),
        (
            "https://me:secret@m.invalid/c/",
            "https://me:********@m.invalid/c/",
            "https://me:secret@m.invalid/c/noarch/x-1-0.conda",
        ),
        ("https://m.invalid/c/", "https://m.invalid/c/", "https://elsewhere.invalid/x-1-0.conda"),
    ],
    ids=["plain", "password", "packages elsewhere"],
)
def test_package_url_never_contains_a_mirror_or_password(
    mirror: str, channel: str, url: str
) -> None:
    record: Any = SimpleNamespace(
        channel=channel, url=url, subdir="noarch", file_name="x-1-0.conda"
    )
    assert (
        solver._canonical_url(record, {mirror: "https://own.invalid/c/"})
        == "https://own.invalid/c/noarch/x-1-0.conda"
    )
    direct = solver._canonical_url(record, {mirror: mirror})
    assert "secret" not in direct and direct.endswith("x-1-0.conda")


def test_solver_reads_a_channel_once(tmp_path: Path) -> None:
    folder = make_channel(
        tmp_path / "lab", {"noarch": [record("six"), record("seven", depends=["six"])]}
    )
    solver = conda.Solver(alias(tmp_path))
    assert [package.name for package in solver.solve(request("seven"))] == ["seven", "six"]
    (folder / "noarch" / "repodata.json").write_text("gone")
    assert [package.name for package in solver.solve(request("six"))] == ["six"]


def test_as_of_hides_later_and_undated_records(tmp_path: Path) -> None:
    day = 1_704_067_199_999  # 2023-12-31T23:59:59.999Z
    rows = [
        record("six", str(version), timestamp=when)
        for version, when in ((1, day - 1), (2, day), (3, day + 1), (4, None))
    ]
    make_channel(tmp_path / "lab", {"noarch": rows})
    solver = conda.Solver(alias(tmp_path))

    def newest(as_of: str | None) -> str:
        (package,) = solver.solve(dataclasses.replace(request("six"), as_of=as_of))
        return package.version

    assert (newest("2023-12-31"), newest("2024-01-01"), newest(None)) == ("2", "3", "4")
    with pytest.raises(Unsolvable):
        newest("2023-12-30")


def test_package_without_any_hash_is_named_and_not_taken_from_elsewhere(tmp_path: Path) -> None:
    make_channel(tmp_path / "lab", {"noarch": [record("six", "1", sha256=None)]})
    make_channel(tmp_path / "forge", {"noarch": [record("six", "2")]})
    solver = conda.Solver(alias(tmp_path))
    with pytest.raises(IntegrityError, match=r"six-1-0\.conda has no sha256"):
        solver.solve(request("six", channels=("lab", "forge")))


@pytest.mark.parametrize("name", ["http://[", "a::b", "ht tp://x"])
def test_text_that_is_not_a_channel_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a channel"):
        conda.channel_url(name)


def test_lock_file_equals_conda_locks(tmp_path: Path) -> None:
    """Our emitter is libyaml, conda-lock's is PyYAML: on ugly values, too, they must agree."""
    from conda_lock.lockfile import parse_conda_lock_file, write_conda_lock_file

    ugly = (
        "six >=1,<2|3.*",
        "nothing",
        "long " + ",".join(f"!=1.{minor}.*" for minor in range(60)),
        "é >=1",
        "null ==0x1F",
        "b *",
    )
    make_channel(tmp_path / "lab", {"noarch": [record("six")]})
    (package,) = conda.Solver(alias(tmp_path)).solve(request("six"))
    packages = [lock_package(package, "six", ()), lock_package(package, "ugly", ugly)]
    inputs = lockfile.read_inputs(
        "channels: [lab, nodefaults]\ndependencies: [six]\n",
        "subdirs: {linux-64: {packages: {__glibc: '2.28'}}}\n",
        Path("envs/lab"),
    )
    own_file, conda_locks_file = tmp_path / "conda-lock.yml", tmp_path / "again" / "conda-lock.yml"
    own_file.write_text(lock_text(inputs, packages), encoding="utf-8")
    conda_locks_file.parent.mkdir()
    write_conda_lock_file(parse_conda_lock_file(own_file), conda_locks_file, metadata_choices=None)
    assert body(own_file) == body(conda_locks_file)
    text, composed = lockfile.compose(own_file, inputs, packages, python_from="channel")
    assert text == own_file.read_text(encoding="utf-8") and composed == lockfile.read(own_file)


def body(path: Path) -> list[str]:
    """All but the comment that it opens with."""
    return [
        line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]


def lock_package(model: LockedPackage, name: str, depends: tuple[str, ...]) -> LockedPackage:
    return dataclasses.replace(model, name=name, depends=depends)
