from __future__ import annotations

from pathlib import Path

import pytest

from provision.core import settings
from provision.core.credentials import without_credentials, without_login
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.mirrors import (
    NO_MIRRORS,
    Mirrors,
    MirrorSetting,
    merge_settings,
    parse_mirror,
)

DIRECTORY = Path("/desk")
FORGE = "https://channels.invalid/conda-forge/"


def mirrors(*texts: str, manifest: str = "") -> Mirrors:
    names = {"*": "https://channels.invalid/", "conda-forge": FORGE}
    return Mirrors(
        [parse_mirror(text, DIRECTORY) for text in texts],
        channel_url=names.__getitem__,
        manifest=lambda folder: manifest,
    )


@pytest.mark.parametrize(
    "text,name,url",
    [
        ("conda-forge=https://m.invalid/cf", "conda-forge", "https://m.invalid/cf/"),
        ("https://a.invalid/x=https://m.invalid/y/", "https://a.invalid/x", "https://m.invalid/y/"),
        ("pypi=/srv/simple", "pypi", "file:///srv/simple/"),
        ("*=file:///srv/all", "*", "file:///srv/all/"),
        ("lab=channels/lab", "lab", "file:///desk/channels/lab/"),
        ("/srv/mirror", None, "file:///srv/mirror/"),
        ("/srv/a=b", None, "file:///srv/a%3Db/"),
        ("./mirror of all", None, "file:///desk/mirror%20of%20all/"),
        ("https://m.invalid/mirror", None, "https://m.invalid/mirror/"),
    ],
)
def test_mirror_settings_are_parsed(text: str, name: str | None, url: str) -> None:
    assert parse_mirror(text, DIRECTORY) == MirrorSetting(name=name, url=url)


@pytest.mark.parametrize("text", ["", "=", "lab=", "=https://m.invalid", "lab=ftp://m.invalid"])
def test_text_that_is_not_a_mirror_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_mirror(text, DIRECTORY)


def test_urls_are_translated_both_ways() -> None:
    resolved_mirrors = mirrors(
        "conda-forge=https://m.invalid/cf", "https://files.invalid/packages=file:///srv/files"
    )
    for canonical, real in [
        (f"{FORGE}linux-64/a-1-0.conda", "https://m.invalid/cf/linux-64/a-1-0.conda"),
        ("https://files.invalid/packages/ab/cd/x.whl", "file:///srv/files/ab/cd/x.whl"),
        ("https://channels.invalid/conda-forge-testing/linux-64/a-1-0.conda",) * 2,
        ("https://elsewhere.invalid/x",) * 2,
    ]:
        assert resolved_mirrors.actual_url(canonical) == real
        assert resolved_mirrors.canonical_url(real) == canonical


@pytest.mark.parametrize("login", ["", "me:secret@"])
def test_credentials_do_not_change_the_canonical_url(login: str) -> None:
    resolved_mirrors = mirrors("https://files.invalid=https://me:secret@m.invalid/files")
    assert (
        resolved_mirrors.actual_url("https://files.invalid/x.whl")
        == "https://me:secret@m.invalid/files/x.whl"
    )
    assert (
        resolved_mirrors.canonical_url(f"https://{login}m.invalid/files/x.whl")
        == "https://files.invalid/x.whl"
    )


def test_the_longest_matching_url_decides() -> None:
    resolved_mirrors = mirrors("*=https://all.invalid", "conda-forge=https://m.invalid/cf")
    assert resolved_mirrors.actual_url(f"{FORGE}noarch/x") == "https://m.invalid/cf/noarch/x"
    assert (
        resolved_mirrors.actual_url("https://channels.invalid/nvidia/noarch/x")
        == "https://all.invalid/nvidia/noarch/x"
    )


def test_no_mirrors_need_no_lookup() -> None:
    assert NO_MIRRORS.actual_url(FORGE) == NO_MIRRORS.canonical_url(FORGE) == FORGE
    assert NO_MIRRORS.index is None


def test_a_mirror_folder_stands_for_addresses_and_the_index() -> None:
    text = "https://channels.invalid/=files/channels.invalid/\n"
    folder = mirrors("/srv/mirror", "pypi=https://m.invalid", manifest=text)
    assert folder.index == "file:///srv/mirror/simple"
    actual = "file:///srv/mirror/files/channels.invalid/conda-forge/noarch/x"
    assert folder.actual_url(f"{FORGE}noarch/x") == actual
    assert folder.actual_url("https://other.invalid/x") == "https://other.invalid/x"


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "https://channels.invalid/=/etc/",
        "https://channels.invalid/=files/../../etc/",
        "https://channels.invalid/=files/%2e%2e/%2E./etc/",
        "https://channels.invalid=files/channels.invalid",
    ],
)
def test_a_text_that_is_not_of_a_mirror_folder_is_refused(line: str) -> None:
    with pytest.raises(IntegrityError, match=r"mirrors\.txt"):
        mirrors("/srv/mirror", manifest=line).actual_url(FORGE)


def test_the_strongest_source_decides_for_each_name() -> None:
    options = [parse_mirror("lab=https://option.invalid", DIRECTORY)]
    variables = [
        parse_mirror("lab=https://variable.invalid", DIRECTORY),
        parse_mirror("nvidia=https://variable.invalid", DIRECTORY),
    ]
    assert {setting.name: setting.url for setting in merge_settings(options, variables)} == {
        "lab": "https://option.invalid/",
        "nvidia": "https://variable.invalid/",
    }
    with pytest.raises(InvalidSpec, match="lab is given two mirrors"):
        merge_settings([*options, *variables])


def test_passwords_are_not_shown() -> None:
    assert (
        without_login("got https://me:secret@m.invalid/x and http://t@h/y")
        == "got https://m.invalid/x and http://h/y"
    )
    assert without_login("https://me:secret@m.invalid:80/x?y") == "https://m.invalid:80/x?y"


def test_a_quote_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(settings.MIRRORS, "'*=/our mirror")
    with pytest.raises(InvalidSpec, match="PROVISION_MIRRORS has no closing quotation"):
        settings.mirror_settings(())


def test_settings_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "provision").mkdir()
    (tmp_path / "provision" / "settings.yml").write_text(
        "mirrors:\n- lab=channels/lab\n- pypi=https://file.invalid\n"
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    variable = f"nvidia=https://variable.invalid pypi=https://variable.invalid '*={tmp_path}'"
    monkeypatch.setenv(settings.MIRRORS, variable)
    result = {
        setting.name: setting.url
        for setting in settings.mirror_settings(["nvidia=https://option.invalid"])
    }
    assert result == {
        "nvidia": "https://option.invalid/",
        "pypi": "https://variable.invalid/",
        "*": f"{tmp_path.as_uri()}/",
        "lab": f"{tmp_path.as_uri()}/provision/channels/lab/",
    }


@pytest.mark.parametrize(
    "text,message",
    [
        ("mirrors: [", "is not YAML"),
        ("- a\n", "the top level"),
        ("mirror: []\n", "'mirror' was unexpected"),
        ("mirrors: {lab: x}\n", "mirrors: "),
        ("mirrors: [1]\n", "mirrors.0.: "),
        ("mirrors: ['=']\n", "is not a mirror"),
    ],
)
def test_a_malformed_settings_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(text)
    monkeypatch.setenv(settings.CONFIG, str(path))
    with pytest.raises(InvalidSpec, match=message):
        settings.mirror_settings([])
    path.unlink()
    with pytest.raises(InvalidSpec, match="does not exist"):
        settings.mirror_settings([])


def test_an_empty_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yml"
    path.touch()
    monkeypatch.setenv(settings.CONFIG, str(path))
    assert settings.mirror_settings([]) == ()


@pytest.mark.parametrize(
    "url,public_url",
    [
        (
            "https://lab:secret@host/t/tk-1/lab/linux-64/a-1-0.conda",
            "https://host/lab/linux-64/a-1-0.conda",
        ),
        ("https://host/t/tk-1", "https://host"),
        ("https://host/conda/t/tk-1/lab", "https://host/conda/lab"),
        (
            "https://host/conda-forge/linux-64/t-1-0.conda",
            "https://host/conda-forge/linux-64/t-1-0.conda",
        ),
    ],
)
def test_urls_without_credentials(url: str, public_url: str) -> None:
    assert without_credentials(url) == public_url
