"""Checkpoints in transformers, Lightning, accelerate and PEFT: the real libraries, and the page's examples as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from provision_runtime.comm.addresses import free_port
from tests.conftest import LIBRARIES_PYTHON, ROOT

pytestmark = [pytest.mark.libraries, pytest.mark.exhaustive]

TIMEOUT_S = 900
EXAMPLES = re.findall(
    r"^## (.+?)$.*?^```python\n(.*?)^```$",
    (ROOT / "docs" / "training-libraries.md").read_text(),
    flags=re.DOTALL | re.MULTILINE,
)


def run(folder: Path, *arguments: str) -> str:
    completed = subprocess.run(
        [LIBRARIES_PYTHON, "-W", "ignore", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-4000:]
    return completed.stdout


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("transformers", [True] * 6),
        ("lightning", [True, [[0], True], 30, ["callbacks", "epoch", "global_step"]]),
        ("fabric", True),
        ("torchdata", [True, True]),
        (
            "accelerate",
            [True, ["optimizer.bin", "random_states_0.pkl", "scheduler.bin", "weights"]],
        ),
        ("peft", [True, 2, True]),
        (
            "safetensors",
            [
                [[False, True], [True, True]],
                dict.fromkeys(["f8", "scalar", "empty", "turned", "half"], True),
                True,
            ],
        ),
    ],
)
def test_a_stopped_run_continues_as_if_it_had_not(
    tmp_path: Path, case: str, expected: object
) -> None:
    script = Path(__file__).with_name("training_libraries.py")
    printed = run(tmp_path, str(script), case, str(tmp_path))
    assert json.loads(printed.rpartition("found ")[2]) == expected


@pytest.mark.parametrize(("title", "example"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_the_examples_run_twice_as_printed(tmp_path: Path, title: str, example: str) -> None:
    (tmp_path / "train.py").write_text(example)
    for _ in range(2):
        run(tmp_path, "train.py")
        assert list(tmp_path.rglob("step-*/manifest.json"))
