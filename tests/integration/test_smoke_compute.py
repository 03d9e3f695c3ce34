"""Products with known values, on this machine's processor with real torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision_runtime.comm.addresses import free_port
from provision_runtime.report import model
from tests.integration.smoke_process import FOLDER, PYTHON, environment, smoke

pytestmark = pytest.mark.torch

EXACT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from provision_runtime.smoke.phases import exact_product
for dtype in (torch.float32, torch.bfloat16):
    for side in (2, 7, 64, 384):
        for seed in range(3):
            left, right, product = exact_product.matrices(side, dtype, "cpu", seed)
            assert exact_product.wrong_elements(left, right, product) == 0, (dtype, side, seed)
            exact = left.double() @ right.double()
            assert torch.equal(exact, product.double()), (dtype, side, seed)
            left[0, 0] += 1
            assert exact_product.wrong_elements(left, right, product) > 0
print("exact")
"""


# More ranks than a bfloat16 can count, and more elements than a table has.
SUMS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from provision_runtime.smoke import test_values
keys = [test_values.key("sums", rank) for rank in range(300)]
summed = keys[: test_values.EXACT["bfloat16"]]
most = test_values.largest("bfloat16", len(keys))
total = torch.zeros(5000, dtype=torch.bfloat16)
for rank, key in enumerate(keys):
    part = torch.empty_like(total)
    largest = most if rank < len(summed) else 0
    test_values.fill(part, key, largest)
    if rank % 50 == 0:
        assert test_values.count_wrong(part, [key], largest) == (0, None)
    total += part
assert total.max() > 100
assert test_values.count_wrong(total, summed, most) == (0, None)
total[4500] += 1
count, (index, value, expected) = test_values.count_wrong(total, summed, most)
assert (count, index, value) == (1, 4500, expected + 1)
print("exact")
"""


@pytest.mark.parametrize(
    "program", [pytest.param(EXACT, marks=pytest.mark.exhaustive), SUMS], ids=["product", "sums"]
)
def test_values_that_are_known_are_exact_in_every_type(program: str) -> None:
    answer = subprocess.run(
        [PYTHON, "-c", program, str(FOLDER.parent)],
        capture_output=True,
        text=True,
        timeout=180,
        env=environment(),
        check=False,
    )
    assert answer.stdout == "exact\n", answer.stderr


@pytest.mark.exhaustive
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs a core for each of two ranks")
@pytest.mark.needs("nice", "taskset")
def test_other_work_on_a_core_makes_no_straggler(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(free_port())
    usual = ["smoke", "--out", str(tmp_path), "--quick", "--backend", "gloo", "--only", "compute"]
    # The second rank starts with a tenth of its core.
    usual += ["--deadline", "rendezvous=200"]
    busy = ["taskset", "-c", str(cores[1]), sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(busy) for _ in range(3)]
    try:
        ranks = []
        for rank, priority in enumerate(("0", "5")):
            command = ["nice", "-n", priority, "taskset", "-c", str(cores[rank]), PYTHON]
            own = {**environment(), **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            ranks.append(subprocess.Popen([*command, str(FOLDER), *usual], env=own))
        statuses = [child.wait(300) for child in ranks]
    finally:
        for process in others:
            process.kill()
            process.wait()
    report = model.loads((tmp_path / "report.json").read_text())
    assert (statuses, report.verdict) == ([0, 0], "pass")


@pytest.mark.exhaustive  # CI: test_nonfatal_faults_are_named
def test_a_wrong_element_names_its_rank(tmp_path: Path) -> None:
    run = smoke(tmp_path, "--only", "compute", "--inject", "wrong-product:1")
    assert run.status == 1
    assert ("compute", "wrong-product", (1,)) in run.findings
    # Once before the measurement and once after it.
    assert run.message("wrong-product") == "2 elements wrong in matrix products"
