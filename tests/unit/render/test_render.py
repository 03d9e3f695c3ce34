"""Rendered files: whole texts against golden files, valid YAML, and nobody's edits lost."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision import render, resolver
from provision.core.errors import StaleLock
from provision.render.templates import as_command, as_yaml
from provision.resolver import spec
from tests.paths import DATA

GOLDEN = DATA / "golden"
REQUESTS: dict[str, dict[str, Any]] = {
    "wheels": {"torch": "2.3", "cuda": "12.1"},
    "wheels-extras": {
        "torch": "2.9",
        "cuda": "13.0",
        "pip": ("einops>=0.7,<1", "x[extra]~=1.0"),
        "conda": ("ffmpeg=7.*",),
        "channels": ("lab/label/x", "conda-forge"),
    },
    "cpu": {"torch": "2.13", "cpu": True, "companions": False},
    "pytorch": {"torch": "2.3", "cuda": "12.1", "source": "pytorch"},
    "conda-forge": {"torch": "2.6", "cuda": "12.6"},
    "pytorch-1.12": {"torch": "1.12", "cuda": "11.3", "source": "pytorch"},
    "pytorch-cpu": {"torch": "2.3", "cpu": True, "source": "pytorch"},
    "conda-forge-cpu": {"torch": "2.6", "cpu": True, "source": "conda-forge", "pip": ("einops",)},
    "aarch64": {
        "torch": "2.8",
        "cuda": "12.9",
        "platforms": ["linux-aarch64"],
    },
    "two-platforms": {"torch": "2.11", "cuda": "13.0", "platforms": ["linux-64", "linux-aarch64"]},
    "machine": {
        "torch": ">=2.3,<2.6",
        "cuda": "auto",
        "gpu": ["H100"],
        "driver": "550.54.15",
        "glibc": "2.31",
        "infiniband": True,
    },
}


def texts(case: str) -> dict[str, str]:
    resolution = resolver.resolve(spec.combine({}, REQUESTS[case], name=""))
    spec_text = render.render_spec(resolution.spec.name, spec.content(resolution.spec))
    return {**render.render_inputs(resolution), render.SPEC: spec_text}


@pytest.mark.parametrize("case", REQUESTS)
def test_golden(case: str, request: pytest.FixtureRequest) -> None:
    for name, text in texts(case).items():
        path = GOLDEN / case / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {path}: run with --update-golden"
        assert text == path.read_text()


@pytest.mark.parametrize("case", REQUESTS)
def test_rendering_then_parsing_gives_the_request_back(case: str) -> None:
    rendered = texts(case)
    resolution = resolver.resolve(spec.combine({}, REQUESTS[case], name=""))
    environment = yaml.safe_load(rendered[render.ENVIRONMENT])
    assert set(environment) == {
        "name",
        "channels",
        "dependencies",
    }  # the keys that conda env, micromamba and repo2docker know
    plain = [item for item in environment["dependencies"] if isinstance(item, str)]
    pip: list[str] = next(
        (item["pip"] for item in environment["dependencies"] if isinstance(item, dict)), []
    )
    assert plain == [pin.requirement for pin in resolution.pins if pin.manager == "conda"]
    assert pip == [pin.requirement for pin in resolution.pins if pin.manager == "pip"]
    machines = yaml.safe_load(rendered[render.VIRTUAL_PACKAGES])["subdirs"]
    assert machines == {
        platform: {"packages": dict(resolution.virtual_packages)}
        for platform in resolution.platforms
    }


@pytest.mark.parametrize("case", REQUESTS)
def test_every_pin_has_a_reason(case: str) -> None:
    lines = texts(case)[render.ENVIRONMENT].splitlines()
    pins = [
        index
        for index, line in enumerate(lines)
        if line.strip().startswith("- ") and index > lines.index("dependencies:")
    ]
    for index in pins:
        if lines[index].strip() != "- pip:":
            assert lines[index - 1].strip().startswith("# ") and "(source: " in lines[index - 1]


@pytest.mark.parametrize("case", REQUESTS)
def test_spec_file_round_trip(case: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    path.write_text(texts(case)[render.SPEC])
    first = resolver.resolve(spec.combine({}, REQUESTS[case], name=""))
    again = resolver.resolve(spec.combine(spec.read(path), {}, name=first.spec.name))
    assert again.pins[1:] == first.pins[1:]
    assert again.spec == first.spec


@pytest.mark.parametrize(
    "value",
    [
        "yes", "1.10", "null", "a: b", "- x", "#x", "é", "x y", "", "@a", "[x]", '"q"', "a\tb",
        "=1", "12.1", "off",
    ],
)  # fmt: skip
def test_yaml_scalars_round_trip(value: str) -> None:
    assert yaml.safe_load(f"- {as_yaml(value)}") == [value]


def test_command_is_one_line_that_bash_parses_back() -> None:
    samples = [
        "plain", "", "a b  c", "a\nb", "\n", "a\r\nb\tc", "it's", '"', "'\n'", "[a](b){c,d}", "\\", "\\n\n", "a\\\n", "\x1b[0mdead",
        "\x1bd", "$HOME `id` $(id)\n", "~", "*", "# x", "!!\n", "\x7f", "\x85\u2028\u202e1f", "ü\n\N{SNOWMAN}", "\udcff",
    ]  # fmt: skip
    line = as_command(samples)
    assert line.isprintable()
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"], check=True, capture_output=True
    ).stdout
    assert printed.split(b"\0")[:-1] == [os.fsencode(argument) for argument in samples]


def test_states(tmp_path: Path) -> None:
    path = tmp_path / "environment.yml"
    assert render.file_state(path) == "missing"
    path.write_text(render.with_header("lab", "a: 1\n"))
    assert render.file_state(path) == "ours"
    path.write_text(path.read_text() + "b: 2\n")
    assert render.file_state(path) == "edited"
    path.write_text("a: 1\n")
    assert render.file_state(path) == "edited"


def test_write_never_overwrites_an_edit_without_force(tmp_path: Path) -> None:
    expected = {
        "a.yml": render.with_header("lab", "a: 2\n"),
        "b.yml": render.with_header("lab", "b: 2\n"),
    }
    (tmp_path / "b.yml").write_text("mine: true\n")
    with pytest.raises(StaleLock, match=r"b\.yml was edited by hand"):
        render.write_files(tmp_path, expected)
    assert not (tmp_path / "a.yml").exists()
    assert (tmp_path / "b.yml").read_text() == "mine: true\n"
    assert render.write_files(tmp_path, expected, force=True) == ["a.yml", "b.yml"]
    assert render.write_files(tmp_path, expected) == []
