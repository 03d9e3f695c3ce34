"""`provision matrix explain`, and how requests that leave something open come through the command
line into files."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from provision import catalog, resolver, sources
from provision.cli.main import cli
from provision.core import host
from provision.core.types import HostGpus
from provision.resolver import spec
from tests.programs import write_program


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PROVISION_ENVS", str(tmp_path / "envs"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    host.this_machine.cache_clear()
    yield
    host.this_machine.cache_clear()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def explain(*arguments: str) -> resolver.Explanation:
    options = dict(zip(arguments[::2], arguments[1::2]))
    return resolver.explain(spec.combine({}, options, name=""))


def gpu_machine(folder: Path, says: str) -> None:
    """This machine, as nvidia-smi describes it."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    write_program(program, f'#!/bin/sh\necho "{says}"\n')


def test_every_choice_has_a_reason_and_source() -> None:
    explanation = explain("torch", "2.3", "cuda", "12.1")
    reasons = {choice.what: choice for choice in explanation.choices}
    assert set(reasons) == {
        "torch", "source", "python", "cuda", "nccl", "driver", "cudnn", "triton", "gpu", "torchvision", "torchaudio", "glibc",
        "channels",
    }  # fmt: skip
    assert (reasons["nccl"].value, reasons["cudnn"].value, reasons["triton"].value) == (
        "2.20.5",
        "8.9.2.26",
        "2.3.1",
    )
    assert (
        "a package of its own" in reasons["nccl"].reason
        and reasons["nccl"].source == "PyPI metadata torch==2.3.1"
    )
    assert reasons["gpu"].value.split() == [
        "sm_50",
        "sm_60",
        "sm_70",
        "sm_75",
        "sm_80",
        "sm_86",
        "sm_90",
    ]
    assert all(
        choice.reason and choice.source for choice in (*explanation.choices, *explanation.rules)
    )
    assert all(pin.reason and pin.source for pin in explanation.pins)


def test_every_applied_rule_is_explained() -> None:
    explanation = explain("torch", "2.3", "cuda", "12.1", "source", "pytorch")
    assert [rule.what for rule in explanation.rules] == [
        "numpy",
        "setuptools-82",
        "mkl-iomp",
        "blas-is-mkl",
        "libcurand-of-cuda-12.5",
        "libcufile-of-cuda-12.5",
        "cuda-opencl-of-cuda-12.5",
        "cuda-graph-hang",
    ]
    assert {rule.value for rule in explanation.rules if rule.what == "mkl-iomp"} == {"mkl<2024.1"}
    assert [warning.what for warning in explanation.warnings] == ["cuda-graph-hang"]


def test_the_cuda_of_a_machine_is_explained() -> None:
    request = spec.combine({}, {"torch": "2.10", "cuda": "auto", "source": "wheels"}, name="")
    explanation = resolver.explain(request, HostGpus(driver="550.54.15", gpus=("sm_90",)))
    assert {choice.what: choice.value for choice in explanation.choices}["cuda"] == "12.8"


def test_unusual_source_has_a_reason() -> None:
    explanation = resolver.explain(
        spec.combine({}, {"torch": "2.4", "cuda": "auto"}, name=""),
        HostGpus(driver="550.54.15", gpus=("sm_90",)),
    )
    why = next(choice.reason for choice in explanation.choices if choice.what == "source")
    assert why.startswith("usually it is the pytorch channel, but whether ")


@pytest.mark.parametrize("release", catalog.releases())
def test_every_build_can_be_explained(release: str) -> None:
    for source in sources.names():
        for build in sources.by_name(source).builds(catalog.releases()[release]):
            explanation = explain("torch", release, "cuda", build.cuda, "source", source)
            assert all(row.reason for row in explanation.choices)


def test_text_and_json_agree() -> None:
    arguments_given = ("matrix", "explain", "--torch", "2.3", "--cuda", "12.1")
    text, data = (
        invoke(*arguments_given).stdout,
        json.loads(invoke(*arguments_given, "--json").stdout),
    )
    fields = {field.name for field in dataclasses.fields(resolver.Explanation)}
    assert set(data) == fields | {"schema"}
    for part in ("choices", "pins", "rules", "warnings"):
        for row in data[part]:
            assert (
                row["reason"] in text
                and row["source"] in text
                and str(row.get("value", row.get("requirement"))) in text
            )
    assert "solved for linux-64 with __cuda 12.1, __glibc 2.28" in text


def test_environment_is_explained_by_name(tmp_path: Path) -> None:
    invoke("render", "lab", "--torch", "2.3", "--cuda", "11.8", "--python-from", "channel")
    assert invoke("matrix", "explain", "lab").stdout.startswith("lab\n")
    assert "There is no" in invoke("matrix", "explain", "nosuch").output
    assert invoke("matrix", "explain", "lab", "--cuda", "12.6").exit_code == 4
    assert (
        json.loads(invoke("matrix", "explain", "lab", "--cuda", "12.1", "--json").stdout)[
            "virtual_packages"
        ]["__cuda"]
        == "12.1"
    )


def test_explaining_writes_nothing(tmp_path: Path) -> None:
    invoke("matrix", "explain", "--torch", "2.3", "--cuda", "12.1")
    assert list(tmp_path.iterdir()) == []


def test_warnings_come_on_standard_error() -> None:
    arguments_given = (
        "--torch",
        "2.6",
        "--cuda",
        "12.6",
        "--gpu",
        "B200",
        "--python-from",
        "channel",
        "--conda",
        "distributed",
    )
    result = invoke("render", *arguments_given, "--dry-run")
    assert result.exit_code == 0, result.output
    reasons = " ".join(result.stderr.split())
    assert "holds no code for B200" in reasons
    assert "torch.distributed is part of torch" in reasons
    assert "Remove it unless you want Dask" in reasons
    assert "warning:" not in result.stdout


def test_resolved_auto_is_written_to_the_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next machine, which is another one, gets the same. No index answers: the facts choose."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    gpu_machine(tmp_path, "550.54.15, 8.0, NVIDIA A100-SXM4-40GB")
    assert (
        invoke(
            "render",
            "--torch",
            "2",
            "--cuda",
            "auto",
            "--source",
            "wheels",
            "--python-from",
            "channel",
        ).exit_code
        == 0
    )
    folder = tmp_path / "envs" / "torch2.14-cuda12.6-py311"
    arguments_given = yaml.safe_load((folder / "spec.yml").read_text())
    assert arguments_given == {
        "torch": "2.14.1",
        "cuda": "12.6",
        "python": "3.11",
        "source": "wheels",
        "python_from": "channel",
    }
    (tmp_path / "bin" / "nvidia-smi").unlink()
    host.this_machine.cache_clear()
    assert "nothing to write" in invoke("render", "torch2.14-cuda12.6-py311").stdout
    assert (
        "needs a GPU and its driver: there is no nvidia-smi"
        in invoke("render", "--torch", "2", "--cuda", "auto").stderr
    )


def test_spec_file_does_not_default_to_this_machine(tmp_path: Path) -> None:
    gpu_machine(tmp_path, "550.54.15, 8.0, NVIDIA A100-SXM4-40GB")
    path = tmp_path / "envs" / "lab" / "spec.yml"
    path.parent.mkdir(parents=True)
    path.write_text('torch: "2.9"\ncuda: auto\npython_from: channel\n')
    result = invoke("render", "lab")
    assert result.exit_code == 3
    assert 'on this one it is 12.9: write cuda: "12.9"' in " ".join(result.stderr.split())
    path.write_text(path.read_text() + 'gpu: [V100]\ndriver: "535.54.03"\n')
    assert invoke("render", "lab").exit_code == 0
    assert '__cuda: "12.9"' in (path.parent / "virtual-packages.yml").read_text()


def test_nvidia_smi_runs_once(tmp_path: Path) -> None:
    gpu_machine(tmp_path, "")
    program = tmp_path / "bin" / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\necho x >> "{tmp_path}/asked"\necho "550.54.15, 8.0, NVIDIA A100"\n'
    )
    invoke(
        "render", "--torch", "2", "--cuda", "auto", "--source", "wheels", "--python-from", "channel"
    )
    assert (tmp_path / "asked").read_text() == "x\n"


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        (["--torch", "2.3", "--cuda", "12.1", "--gpu", "B200"], 4, "B200 is sm_100"),
        (["--torch", "2.3", "--cuda", "12.1", "--gpu", "Radeon"], 3, "GPU 'Radeon' is made by AMD; there are builds for NVIDIA GPUs only"),
        (["--torch", "2.3", "--cuda", "12.1", "--driver", "470"], 4, "needs driver 525.60.13 or later"),
        (["--torch", "2.3", "--cuda", "12.1", "--pip", "nvidia-nccl-cu11"], 3, "nvidia-nccl-cu11"),
        (["--torch", "newest", "--cuda", "12.1"], 3, "`torch` must be like 2, 2.3, 2.3.1, >=2.3,<2.6 or latest"),
        (["--torch", ">=3", "--cuda", "12.1"], 4, "not in the table"),
        (["--torch", "2.3", "--cuda", "twelve"], 3, "`cuda` must be like 12.1, 12 (the newest 12.x) or auto"),
        (["--torch", "2.3", "--cuda", "12.1", "--glibc", "new"], 3, "`glibc` must be like 2.28"),
        (["--torch", "2.3", "--cpu", "--gpu", "H100"], 3, "`gpu` is about GPUs"),
        (["--torch", "2.3", "--cuda", "12.1", "--platform", "win-64"], 2, "linux-aarch64"),
        (["--torch", "2.3", "--cuda", "12.1", "--conda", "foo >>1"], 3, "`foo >>1` is not a conda requirement"),
    ],
)  # fmt: skip
def test_bad_requests_give_one_line_and_an_exit_code(
    arguments: list[str], code: int, message: str
) -> None:
    for verb in (["matrix", "explain"], ["render", "--python-from", "channel"]):
        result = invoke(*verb, *arguments)
        assert result.exit_code == code, result.output
        assert message in " ".join(result.output.split())
        assert len(re.findall(r"^error:|^Error:", result.output, flags=re.MULTILINE)) == 1
