"""Runs everything that needs a GPU, and writes what came of it as evidence.

The smoke test in all profiles over NCCL with one rank per GPU, with two ranks over Gloo that share
one GPU, and the tests marked `gpu`. The result is docs/gpu-evidence/HARDWARE.json and, made from all
such files, docs/gpu-evidence/README.md. Names of hosts and folders are left out.

    python tools/gpu_evidence.py --python PYTHON    # an environment with torch, for example a prefix
    python tools/gpu_evidence.py --check            # is the page what the files say?
    python tools/gpu_evidence.py --driver           # can this machine run it?

Exit status: 0 everything passed, 1 something failed or the page is not current, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "gpu-evidence"
PAGE = "README.md"
RUNTIME = ROOT / "provision_runtime"
SCHEMA = 1
TIMEOUT_S = 1800
DEVICE = Path("/dev/nvidiactl")
SHARED_GPU = ("--backend", "gloo", "--device", "cuda", "--ranks", "2", "--quick")
# Name of the run, the smoke test's options, and whether it sees one GPU only.
SMOKE_RUNS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("quick", ("--quick", "--require-gpu"), False),
    ("default", ("--require-gpu",), False),
    ("full", ("--profile", "full", "--require-gpu", "--timeout", "1200"), False),
    ("one GPU, two ranks over Gloo", SHARED_GPU, True),
)
NO_DRIVER = (
    f"This machine has no NVIDIA driver ({DEVICE} is missing), so nothing was run: run it on a machine"
    " with a GPU, and in a container with --gpus all."
)
NONE_YET = """\
No machine with a GPU has run these tests yet. So all that only a GPU can show is unproven:
collectives and DDP over NCCL, what NCCL's log says of the transports, the limits for bandwidth and
compute, throttling, checkpoints from device memory. The same code passes over Gloo on CPUs, and
the parsers and judgments pass on output that others published and on constructed figures."""
HEADER = """\
# GPU evidence

What `nox -s gpu` found on machines with GPUs. The command runs the smoke test in all profiles over
NCCL, over Gloo with two ranks on one GPU, and all tests marked `gpu` (checkpoints from device
memory with streams among them). tools/gpu_evidence.py makes this page.

"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Run what needs a GPU and write evidence.")
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--check", action="store_true", help="only compare the page with the files")
    parser.add_argument("--driver", action="store_true", help="only say if there is no driver")
    options = parser.parse_args(arguments)
    if options.check:
        return check(FOLDER)
    if not DEVICE.exists():
        print(NO_DRIVER, file=sys.stderr)
        return 2
    if options.driver:
        return 0
    document = collect(options.python)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{hardware_name(document['gpus'])}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    (FOLDER / PAGE).write_text(page(FOLDER))
    print(f"wrote {path.relative_to(ROOT)}")
    return 0 if all(run["passed"] for run in document["runs"]) else 1


def check(folder: Path) -> int:
    path = folder / PAGE
    if path.exists() and path.read_text() == page(folder):
        return 0
    print(f"{path} is not what the files say: run `nox -s gpu`, or write the page again")
    return 1


def collect(python: str) -> dict[str, Any]:
    runs = []
    facts: dict[str, Any] = {}
    for name, options, one_gpu in SMOKE_RUNS:
        run, report = smoke_run(python, name, options, one_gpu)
        print(f"{name}: {run['verdict']}", flush=True)
        runs.append(run)
        facts = facts or report.get("facts", {})
    runs.append(marked_tests(python))
    torch = facts.get("torch") or {}
    return {
        "schema": SCHEMA,
        "commit": revision(),
        "gpus": [device["name"] for device in torch.get("devices", [])],
        "driver": facts.get("driver"),
        "torch": torch.get("version"),
        "nccl": (torch.get("nccl") or {}).get("loaded"),
        "runs": runs,
    }


def smoke_run(
    python: str, name: str, options: tuple[str, ...], one_gpu: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The evidence of one smoke test, and its whole report."""
    environment = {**os.environ}
    if one_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = "0"
    with tempfile.TemporaryDirectory() as out:
        command = [python, str(RUNTIME), "smoke", "--out", out, *options]
        started = time.monotonic()
        status = subprocess.run(
            command, env=environment, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        ).returncode
        duration_s = time.monotonic() - started
        path = Path(out) / "report.json"
        report = json.loads(path.read_text()) if path.exists() else {}
    phases = []
    for phase in report.get("phases", []):
        phases.append(
            {
                "name": phase["name"],
                "verdict": phase["verdict"],
                "duration_s": phase["duration_s"],
                "message": phase["message"],
                "findings": [finding["id"] for finding in phase["findings"]],
            }
        )
    run = {
        "name": f"smoke test, {name}",
        "options": list(options),
        "passed": status == 0,
        "verdict": report.get("verdict", f"ended with status {status}"),
        "duration_s": round(duration_s, 1),
        "ranks": report.get("world_size"),
        "phases": phases,
        "bandwidths": bandwidths(report),
    }
    return run, report


def bandwidths(report: dict[str, Any]) -> list[dict[str, Any]]:
    """all_reduce in float32: what was measured at each size, and how it was judged."""
    lines = []
    for phase in report.get("phases", []):
        if phase["name"] != "collectives":
            continue
        for row in phase["data"].get("rows", []):
            if (row["collective"], row["dtype"]) == ("all_reduce", "float32"):
                lines.append({key: row[key] for key in ("bytes", "busbw_gb_s", "judged")})
    return lines


def marked_tests(python: str) -> dict[str, Any]:
    """The tests marked `gpu`, with this Python's torch."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "tests.xml"
        # Only these files: others import what a machine with a GPU may lack.
        files = []
        for path in sorted((ROOT / "tests/integration").glob("test_*.py")):
            if "mark.gpu" in path.read_text():
                files.append(str(path))
        command = [sys.executable, "-m", "pytest", *files, "-m", "gpu", "-q"]
        command += [f"--junitxml={results}"]
        environment = {
            **os.environ,
            "PROVISION_TEST_PYTHON": python,
            "PROVISION_REQUIRE": "gpu,torch",
        }
        started = time.monotonic()
        status = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=TIMEOUT_S, check=False
        ).returncode
        counts: dict[str, int] = {}
        if results.exists():
            suite = ElementTree.parse(results).getroot().find("testsuite")
            assert suite is not None
            counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "skipped")}
    return {
        "name": "tests marked gpu",
        "passed": status == 0,
        "verdict": "pass" if status == 0 else "fail",
        "duration_s": round(time.monotonic() - started, 1),
        **counts,
    }


def revision() -> str:
    answer = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"


def hardware_name(gpus: list[str]) -> str:
    """As `8x-nvidia-h100-80gb-hbm3`, for the file's name."""
    name = re.sub(r"[^a-z0-9]+", "-", gpus[0].lower()).strip("-") if gpus else "unknown"
    return f"{len(gpus)}x-{name}"


def page(folder: Path) -> str:
    """The page for all evidence in a folder."""
    documents = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not documents:
        return f"{HEADER}{NONE_YET}\n"
    lines = []
    for document in documents:
        lines += _section(document)
    return HEADER + "\n".join(lines) + "\n"


def _section(document: dict[str, Any]) -> list[str]:
    gpus = document["gpus"]
    lines = [
        f"## {len(gpus)} x {gpus[0] if gpus else 'unknown'}",
        "",
        f"torch {document['torch']}, NCCL {document['nccl']}, driver {document['driver']},"
        f" commit {document['commit']}.",
        "",
        "| run | verdict | seconds | findings |",
        "|---|---|---|---|",
    ]
    for run in document["runs"]:
        findings = [name for phase in run.get("phases", []) for name in phase["findings"]]
        text = ", ".join(findings) or (
            "none" if "phases" in run else f"{run.get('tests', 0)} tests"
        )
        lines.append(f"| {run['name']} | {run['verdict']} | {run['duration_s']:g} | {text} |")
    largest = _largest_bandwidth(document["runs"])
    if largest is not None:
        lines += ["", largest]
    return [*lines, ""]


def _largest_bandwidth(runs: list[dict[str, Any]]) -> str | None:
    measured = []
    for run in runs:
        for line in run.get("bandwidths", []):
            if line["busbw_gb_s"] is not None:
                measured.append(line)
    if not measured:
        return None
    best = max(measured, key=lambda line: line["bytes"])
    mib = best["bytes"] / (1 << 20)
    return f"all_reduce of {mib:g} MiB in float32: busbw {best['busbw_gb_s']:.4g} GB/s ({best['judged']})."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
