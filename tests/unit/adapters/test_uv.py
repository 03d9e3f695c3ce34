"""uv's failures as our errors (captured from uv 0.13.9), dependencies of its answers, and index
settings of pip."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.adapters import uv
from provision.adapters.uv import configuration, indexes, resolver
from provision.adapters.uv.build_environment import BUILD_ENV, chosen_variables
from provision.adapters.uv.configuration import (
    IndexSettings,
    read_uv_settings,
    uv_environment,
)
from provision.core import toml_text
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    NoSpace,
    ProvisionError,
    ToolFailed,
    Unreachable,
    Unsolvable,
)
from provision.core.mirrors import Mirrors, parse_mirror
from provision.core.process import run
from provision.core.types import LockedPackage
from tests.paths import DATA
from tests.programs import write_program

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CAPTURED = DATA / "uv"
REQUEST = uv.ResolveRequest(requirements=(), python="3.11", glibc="2.28")


@pytest.mark.parametrize(
    "case,kind,message",
    [
        ("hash-mismatch", IntegrityError, "comm==0.2.3 is not the file that the lock names"),
        ("disk-full", NoSpace, "`/home/user/small/.tmpknqKs1/nvidia/"),
        ("gone", Unreachable, "A package is gone from the index: Failed to download `comm==0.2.3`"),
        (
            "gone-address",
            Unreachable,
            "/foo-9.0.tar.gz` does not exist: the server answers 404. Name",
        ),
        (
            "no-file",
            InvalidSpec,
            "There is nothing at file:///nowhere/foo-1.0-py3-none-any.whl. Name",
        ),
        (
            "unreachable",
            Unreachable,
            "The package index did not answer: Failed to fetch: https://index.invalid/simple/torch/",
        ),
        ("unsolvable", Unsolvable, "torch==2.9.1 depends on nvidia-nccl-cu12"),
        ("refused", Unreachable, "403 Forbidden"),
        ("failed", Unreachable, "500 Internal Server Error"),
        ("silent", Unreachable, "network timeout"),
        ("cut-off", Unreachable, "end of file before message length reached"),
        ("no-wheel", IntegrityError, "not the wheel that the lock names"),
        (
            "git",
            Unreachable,
            "`git+file:///nowhere/repository` cannot be read: '/nowhere/repository' does not appear",
        ),
        ("damaged", Unreachable, "does not serve a complete wheel"),
    ],
)
def test_uv_failures_become_our_errors(case: str, kind: type[ProvisionError], message: str) -> None:
    failed = ToolFailed(["uv", "pip"], 1, (CAPTURED / f"{case}.txt").read_text())
    error = uv.translate_failure(failed)
    assert type(error) is kind
    assert message in str(error)
    assert "Using Python" not in str(error)


def test_a_file_that_is_gone_is_not_chosen_again() -> None:
    """`--relock` may choose it again: uv keeps what an index listed."""
    failed = ToolFailed(["uv", "pip"], 1, (CAPTURED / "gone.txt").read_text())
    advice = uv.translate_failure(failed).advice
    assert "`provision add NAME 'PACKAGE!=VERSION'`" in advice and "relock" not in advice


def test_an_unknown_failure_stays_a_tool_failure() -> None:
    failed = ToolFailed(["uv", "pip"], 101, "thread 'main' panicked\n")
    assert uv.translate_failure(failed) is failed


def test_dependencies_from_annotations() -> None:
    annotated = (
        "comm==0.2.3\n    # via ipykernel\nfilelock==4.2.11\n    # via\n    #   torch\n    #   triton\n"
        "ipykernel==7.4.0\n    # via -r requirements.in\ntorch==2.3.1+cpu\n    # via\n    #   -r requirements.in\n    #   torchvision\n"
    )
    assert resolver._parse_dependencies(annotated) == {
        "ipykernel": ("comm",),
        "torch": ("filelock",),
        "triton": ("filelock",),
        "torchvision": ("torch",),
    }


def test_requirements_of_conda_packages_are_not_installed_as_wheels() -> None:
    """conda's pytorch provides torch, so torch's own NVIDIA wheels are not needed; what both
    require is."""
    dependencies = {
        "torchmetrics": ("numpy", "packaging", "torch"),
        "torch": ("nvidia-nccl-cu12", "packaging"),
        "nvidia-nccl-cu12": ("deep",),
    }
    request = uv.ResolveRequest(
        requirements=("TorchMetrics>=1", "torch"),
        python="3.11",
        glibc="2.28",
        provided={"torch": "2.3.1", "numpy": "2"},
    )
    assert resolver._needed_wheels(request, dependencies) == {"torchmetrics", "packaging"}


def test_pip_settings_become_uv_settings() -> None:
    settings = {
        "index-url": "https://one.invalid/simple",
        "extra-index-url": "https://two.invalid/simple file:///srv/simple",
        "find-links": "/srv/wheels https://three.invalid/links",
    }
    result = indexes._from_pip(settings)
    assert result.indexes == (
        {"url": "https://one.invalid/simple", "default": True},
        {"url": "https://two.invalid/simple"},
    )
    assert result.find_links == ("https://three.invalid/links",)
    assert result.local and result.local.indexes == ({"url": "file:///srv/simple"},)
    assert result.local.find_links == ("/srv/wheels",)
    assert result.origins == ("pip's index-url", "pip's extra-index-url", "pip's find-links")


def test_local_sources_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"index-url": "https://one.invalid/simple", "find-links": "/srv/wheels"}
    monkeypatch.setattr(indexes, "pip_settings", lambda: settings)
    monkeypatch.setattr(indexes, "read_uv_settings", lambda environ: IndexSettings())
    monkeypatch.setenv(uv.TORCH_INDEX, "https://torch.invalid/whl")
    result = uv.index_settings("cu126")
    assert "/srv/wheels" not in result.to_toml()
    assert result.local is not None
    content = tomllib.loads(result.with_local(result.local).to_toml())
    assert content == {
        "index-strategy": "unsafe-best-match",
        "find-links": ["/srv/wheels"],
        "index": [
            {"url": "https://one.invalid/simple", "default": True},
            {"url": "https://torch.invalid/whl/cu126"},
        ],
    }


# `pip config list` of pip 26 lists all values of a key, by the names of their files.
PIP_SETTINGS = """
import json
from pip._internal.configuration import Configuration
configuration = Configuration(isolated=False)
configuration.load()
values = {}
for key, value in configuration.items():
    values.update(value if isinstance(value, dict) else {key: value})
print(json.dumps(values))
"""
PIP_FILE = """
[install]
find-links =
    /srv/a
    /srv/b
no_index = false
[global]
index-url = https://one.invalid/simple
find-links = /srv/other
cert = /srv/ca.pem
[download]
index-url = https://download.invalid
"""


@pytest.mark.parametrize(
    "files",
    [
        ["elsewhere/pip.conf"],
        ["home/.config/pip/pip.conf"],
        ["home/.pip/pip.conf"],
        ["home/.config/pip/pip.conf", "home/.pip/pip.conf"],
        ["xdg/pip/pip.conf", "home/.pip/pip.conf"],
        ["home/.pip/pip.conf", "named.conf"],
    ],
)
def test_pips_files_are_read_as_pip_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str]
) -> None:
    for key in [key for key in os.environ if key.startswith(("PIP_", "XDG_"))]:
        monkeypatch.delenv(key)
    monkeypatch.setattr(indexes, "_PIP_SYSTEM_FILE", tmp_path / "none")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://two.invalid https://three.invalid")
    monkeypatch.setenv("PIP_NO_INDEX", "")
    for number, name in enumerate(files):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PIP_FILE.replace("one.invalid", f"{number}.invalid"))
        if name == "named.conf":
            monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    settings = indexes.pip_settings()
    printed = run([sys.executable, "-c", PIP_SETTINGS], env=dict(os.environ)).stdout
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for key, value in json.loads(printed).items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = value.replace("\n", " ")
    expected = {**sections["global"], **sections["install"], **sections[":env:"]}
    if Path("/etc/pip.conf").exists():
        expected.pop("cert", None)
        settings.pop("cert", None)
    assert settings == expected
    assert ("index-url" in settings) is (files != ["elsewhere/pip.conf"])


def test_a_file_that_pip_cannot_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pip.conf"
    path.write_text("index-url = https://one.invalid")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    with pytest.raises(InvalidSpec, match=r"pip\.conf"):
        indexes.pip_settings()


def test_uv_settings_override_pips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://one.invalid/simple")
    monkeypatch.setattr(indexes, "pip_settings", lambda: {"index-url": "https://pip.invalid"})
    result = uv.index_settings()
    assert result.default_index == "https://one.invalid/simple"
    assert "pip.invalid" not in result.to_toml()


def test_torch_index_is_used_for_builds_that_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://one.invalid/simple")
    monkeypatch.setenv(uv.TORCH_INDEX, "https://torch.invalid/whl/")
    assert {"url": "https://torch.invalid/whl/cu126"} in uv.index_settings("cu126").indexes
    assert len(uv.index_settings(None).indexes) == 1


def test_uv_sees_only_settings_of_where_packages_are(tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").write_text(
        'exclude-newer = "2026-01-01"\n'
        'constraint-dependencies = ["tqdm<4"]\n'
        'link-mode = "symlink"\n'
        '[[index]]\nname = "lab"\nurl = "wheels"\n'
        '[pip]\ntarget = "/elsewhere"\nindex-strategy = "first-index"\n'
    )
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path / "none"),
        "UV_INDEX": "lab2=https://lab.invalid/simple",
        "UV_CONSTRAINT": "/tmp/constraints.txt",
    }
    result = read_uv_settings(environ)
    assert result.indexes == (
        {"name": "lab2", "url": "https://lab.invalid/simple"},
        {"name": "lab", "url": str(tmp_path / "uv" / "wheels")},
    )
    assert result.further == {"exclude-newer": "2026-01-01", "index-strategy": "first-index"}
    file = tmp_path / "uv" / "uv.toml"
    assert result.ignored == (
        f"constraint-dependencies of {file}",
        f"link-mode of {file}",
        f"target of {file}",
        "UV_CONSTRAINT",
    )


def test_uv_gets_no_variable_that_changes_what_is_installed() -> None:
    environ = {
        "PATH": "/bin",
        "UV_TARGET": "/elsewhere",
        "UV_OVERRIDE": "o.txt",
        "UV_LINK_MODE": "symlink",
        "UV_CACHE_DIR": "/cache",
        "UV_INDEX_LAB_PASSWORD": "secret",
        "UV_HTTP_TIMEOUT": "9",
    }
    assert sorted(uv_environment(environ)) == [
        "PATH",
        "UV_CACHE_DIR",
        "UV_HTTP_TIMEOUT",
    ]
    assert uv_environment({"UV_LINK_MODE": "copy"}) == {"UV_LINK_MODE": "copy"}


def test_build_code_sees_a_few_variables() -> None:
    secrets = (
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "SSH_AUTH_SOCK",
        "PIP_INDEX_URL",
    )
    plain = (
        "PATH",
        "HOME",
        "LC_ALL",
        "https_proxy",
        "SSL_CERT_FILE",
        "CUDA_HOME",
        "CMAKE_ARGS",
        "CC",
    )
    logins = ("UV_INDEX_LAB_USERNAME", "UV_INDEX_LAB_PASSWORD")
    environ = dict.fromkeys((*secrets, *plain, *logins), "x")
    assert sorted(uv_environment(environ)) == sorted(plain)
    assert chosen_variables({**environ, BUILD_ENV: "HF_TOKEN CC"}) == {"HF_TOKEN": "x", "CC": "x"}
    for name in ("UV_INDEX_LAB_PASSWORD", "UNSET"):
        with pytest.raises(InvalidSpec, match=name):
            chosen_variables({**environ, BUILD_ENV: name})


@pytest.mark.parametrize(
    ("index", "url"),
    [
        ({"name": "my-lab.1", "url": "https://h/s"}, "https://a%40b:p%2Fw@h/s"),
        ({"name": "my-lab.1", "url": "https://old:x@h:8/s"}, "https://a%40b:p%2Fw@h:8/s"),
        ({"name": "other", "url": "https://h/s"}, "https://h/s"),
        ({"url": "https://h/s"}, "https://h/s"),
    ],
)
def test_a_login_of_variables_reaches_uv_in_its_file(
    index: configuration.IndexTable, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX_MY_LAB_1_USERNAME", "a@b")
    monkeypatch.setenv("UV_INDEX_MY_LAB_1_PASSWORD", "p/w")
    content = tomllib.loads(uv.IndexSettings(indexes=(index,)).to_toml())
    assert content["index"] == [{**index, "url": url}]


@pytest.mark.parametrize(("starter", "seen"), [("uv", "all"), ("python", "small")])
def test_only_for_uv_git_has_the_users_variables(tmp_path: Path, starter: str, seen: str) -> None:
    """The starter is a shell under that name, as the kernel knows it."""
    real, wrappers = tmp_path / "real", tmp_path / "wrappers"
    for folder in (real, wrappers):
        folder.mkdir()
    write_program(real / "git", '#!/bin/sh\necho "$SECRET,$GIT_DIR,$SHARED,$*"\n')
    shell = tmp_path / starter
    shell.symlink_to("/bin/bash")
    environ = {"PATH": str(real), "SECRET": "s3cr3t", "GIT_DIR": "/x", "SHARED": "ours"}
    code = (
        "import subprocess, sys; from pathlib import Path; "
        "from provision.adapters.uv.build_environment import write_wrappers; "
        "import os; visible = {'PATH': os.environ['PATH'], 'SHARED': 'uv'}; "
        f"write_wrappers(Path({str(wrappers)!r}), os.environ, visible); "
        f"command = [{str(shell)!r}, '-c', {shlex.quote(str(wrappers / 'git'))!r} + ' fetch \"a b\"; true']; "
        "sys.exit(subprocess.run(command, env=visible).returncode)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    expected = {"all": "s3cr3t,,uv,fetch a b\n", "small": ",,uv,fetch a b\n"}
    assert result.stdout == expected[seen], result.stderr


@pytest.mark.parametrize("chosen", ["UV_CACHE_DIR", "XDG_CACHE_HOME", "uv.toml", "nothing"])
def test_the_cache_is_where_uv_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """Known without running uv, which needs room on the disk."""
    for name in ("UV_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    if chosen == "uv.toml":
        (tmp_path / "config" / "uv").mkdir(parents=True)
        (tmp_path / "config" / "uv" / "uv.toml").write_text(f'cache-dir = "{tmp_path}/chosen"')
    elif chosen != "nothing":
        monkeypatch.setenv(chosen, str(tmp_path / "chosen"))
    told = run([uv.uv_executable(), "cache", "dir"], cwd=tmp_path).stdout.strip()
    monkeypatch.setattr(subprocess, "Popen", None)
    assert uv.cache_folder() == Path(told)


def test_a_relative_cache_starts_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv itself runs in a temporary folder: its cache would go with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_CACHE_DIR", "cache")
    assert uv.cache_folder() == tmp_path / "cache"


def test_uv_file_that_is_not_toml_is_named(tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text("index = [")
    with pytest.raises(InvalidSpec, match=r"uv\.toml cannot be read"):
        read_uv_settings({"UV_CONFIG_FILE": str(tmp_path / "uv.toml")})


@pytest.mark.parametrize(
    "glibc,expected",
    [
        ("2.17", "2.17"),
        ("2.28", "2.28"),
        ("2.30", "2.28"),
        ("2.36", "2.36"),
        ("2.99", "2.40"),
        ("2.5", "2.17"),
    ],
)
def test_glibc_is_never_rounded_up(glibc: str, expected: str) -> None:
    request = uv.ResolveRequest(requirements=(), python="3.11", glibc=glibc)
    assert resolver._python_platform(request) == f"x86_64-manylinux_{expected.replace('.', '_')}"


def test_wheels_are_installed_by_hash() -> None:
    def row(url: str, *, direct: bool = False) -> str:
        package = LockedPackage(
            manager="pip", name="six", version="1.17.0", url=url, sha256="a" * 64, direct=direct
        )
        return uv.hashed_requirements([package])

    file = "six-1.17.0-py2.py3-none-any.whl"
    hashed = f"--hash=sha256:{'a' * 64}\n"
    assert row(f"https://index.invalid/{file}") == f"six==1.17.0 {hashed}"
    assert row(f"file:///srv/{file}") == f"six @ file:///srv/{file} {hashed}"
    assert (
        row(f"https://lab.invalid/{file}", direct=True)
        == f"six @ https://lab.invalid/{file} {hashed}"
    )


def test_a_pylock_is_read() -> None:
    text = '[[packages]]\nname = "six"\nversion = "1.17.0"\nwheels = [{ url = "https://x.invalid/six.whl", hashes = { sha256 = "ab" } }]\n'
    (entry,) = toml_text.parse_toml(text)["packages"]
    package = resolver._locked_package(entry, {"six": ("toml",)}, REQUEST)
    assert (package.name, package.version, package.sha256) == ("six", "1.17.0", "ab")
    assert (package.depends, package.direct) == (("toml",), False)


def test_a_package_without_a_fitting_file_is_refused() -> None:
    with pytest.raises(Unsolvable, match="x 1 has no file with a sha256"):
        resolver._locked_package({"name": "x", "version": "1"}, {}, REQUEST)


def test_as_of_excludes_files_without_an_upload_time() -> None:
    dated: Any = {"name": "a", "version": "1", "wheels": [{"upload-time": "2024-01-01"}]}
    direct: resolver.PylockPackage = {
        "name": "b",
        "version": "1",
        "archive": {"url": "https://x.invalid/b.whl"},
    }
    resolver._require_upload_times([dated, direct], "2024-06-01")
    with pytest.raises(Unsolvable, match=r"no upload time for c 2.*`as_of` 2024-06-01"):
        resolver._require_upload_times(
            [dated, {"name": "c", "version": "2", "wheels": [{}]}], "2024-06-01"
        )


@pytest.mark.parametrize(
    "name,version,expected",
    [
        ("numpy", "1.26.4", True),
        ("ruamel.yaml", "0.18", True),
        ("_libgcc_mutex", "0.1", False),
        ("openssl", "1.1.1w", False),
    ],
)
def test_only_pep_440_versions_constrain_wheels(name: str, version: str, expected: bool) -> None:
    assert resolver._is_pep440(name, version) is expected


def mirrors(*texts: str) -> Mirrors:
    return Mirrors([parse_mirror(text, Path("/srv/lab")) for text in texts])


def test_an_index_has_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "read_uv_settings", lambda environ: IndexSettings())
    settings = {
        "index-url": "https://one.invalid/simple",
        "extra-index-url": "https://two.invalid/simple",
    }
    monkeypatch.setattr(indexes, "pip_settings", lambda: settings)
    result = uv.index_settings(
        mirrors=mirrors("pypi=https://m.invalid/simple", "https://two.invalid=file:///srv/two")
    )
    assert result.indexes == (
        {"url": "https://m.invalid/simple", "default": True},
        {"url": "file:///srv/two/simple"},
    )


def test_a_lock_names_a_file_by_its_canonical_url() -> None:
    pypi = f"/packages/ab/cd/{'e' * 60}/x-1.0-py3-none-any.whl"
    behind = mirrors("pypi=https://m.invalid/simple")
    result = indexes.canonical_file_url(f"https://m.invalid/repository/pypi{pypi}", behind)
    assert result.endswith(pypi) and "m.invalid" not in result
    for url in (
        "https://m.invalid/packages/x-1.0-py3-none-any.whl",
        f"https://m.invalid{pypi}/more",
    ):
        assert indexes.canonical_file_url(url, behind) == url
    assert (
        indexes.canonical_file_url(f"https://m.invalid{pypi}", mirrors())
        == f"https://m.invalid{pypi}"
    )
    prefixed = mirrors("pypi=https://m.invalid/simple", "https://f.invalid=https://m.invalid/files")
    assert (
        indexes.canonical_file_url("https://m.invalid/files/a/x.whl", prefixed)
        == "https://f.invalid/a/x.whl"
    )


def test_a_dated_lock_checks_the_days_of_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    undated = {"name": "x", "version": "1", "wheels": [{"url": "https://x.invalid/x.whl"}]}
    monkeypatch.setattr(resolver, "_remote_then_local", lambda request, function: ([undated], {}))
    dated = dataclasses.replace(REQUEST, as_of="2026-01-01")
    with pytest.raises(Unsolvable, match="no upload time for x 1"):
        uv.resolve(dated)
