"""A GPU is compared with its data sheet."""

from __future__ import annotations

import pytest

from provision_runtime.report.codec import packaged_json
from provision_runtime.smoke import device_rates

H100 = "NVIDIA H100 80GB HBM3"


def slow(device: str, **rates: float) -> list[str]:
    findings = device_rates.slow_operations(device, rates, 3)
    assert all(finding.ranks == (3,) for finding in findings)
    return [finding.message.split()[0] for finding in findings]


@pytest.mark.parametrize(
    ("device", "bfloat16", "float32", "copy"),
    [
        (H100, 640.0, 50.0, 2900.0),
        ("NVIDIA B200", 1600.0, 60.0, 6500.0),
        ("NVIDIA A100-SXM4-80GB", 250.0, 19.0, 1750.0),
        ("NVIDIA RTX A6000", 95.0, 30.0, 660.0),
        ("NVIDIA L4", 60.0, 14.0, 250.0),
    ],
)
def test_usual_rates_pass(device: str, bfloat16: float, float32: float, copy: float) -> None:
    assert slow(device, matmul_bfloat16=bfloat16, matmul_float32=float32, copy=copy) == []


def test_a_gpu_at_a_third_of_its_clock_is_slow() -> None:
    assert slow(H100, matmul_bfloat16=210.0, matmul_float32=17.0, copy=2900.0) == [
        "bfloat16",
        "float32",
    ]
    assert slow(H100, copy=900.0) == ["copy"]


def test_a_type_that_a_gpu_lacks_and_an_unlisted_gpu_are_not_judged() -> None:
    assert slow("Tesla V100-SXM2-32GB", matmul_bfloat16=1.0, matmul_float32=14.0, copy=800.0) == []
    assert slow("NVIDIA GB300", matmul_bfloat16=1.0, copy=1.0) == []


def test_every_device_has_a_source_and_rates() -> None:
    models = packaged_json("provision_runtime.checks", "device_models.json")["models"]
    names = [model["name"] for model in models]
    assert len(set(names)) == len(names)
    for model in models:
        assert model["source"]
        assert 0 < model.get("float32", 1) < 200
        assert 0 < model.get("copy", 1) < 10000
