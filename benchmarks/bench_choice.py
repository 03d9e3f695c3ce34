"""The versions of packages that a lab names: those of `provision lock`, and those of plain `uv pip compile` with the same torch.

Usage: python benchmarks/bench_choice.py CHANNELS [PACKAGE ...]   (CHANNELS: as for bench_lock.py; the package index must respond)
Prints both versions for each request and what `provision lock verify` says of ours; then how many are at
least as new, and how many locks verify. Of a package that must be compiled first, where this machine cannot, the
version is that of `provision lock --dry-run`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from measure import PROVISION, box, environment
from packaging.utils import canonicalize_name
from packaging.version import Version

from provision.adapters.uv import uv_executable

TORCH, CUDA, PYTHON = "2.14.0", "13.0", "3.11"
REQUESTS = (
    "vllm", "sglang", "deepspeed", "xformers", "torchao", "bitsandbytes", "torchtitan", "nvidia-dali-cuda130",
    "cupy-cuda13x", "jax", "torch-geometric", "lightning", "ray", "trl", "unsloth", "transformers", "accelerate",
    "peft", "datasets", "timm", "diffusers", "torchmetrics", "hydra-core", "einops", "wandb", "tensorboard",
    "torchdata", "sentence-transformers", "open-clip-torch", "litgpt", "transformer-engine", "torchrec", "megatron-core",
    "flash-attn", "mmcv", "torch-scatter",
)  # fmt: skip


def main() -> None:
    channels = sys.argv[1] if "://" in sys.argv[1] else Path(sys.argv[1]).resolve().as_uri()
    place = box() / "choice"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    env = {**environment(), "PROVISION_MIRRORS": f"*={channels}"}
    newer = compared = sound = refused = 0
    print(
        f"torch {TORCH}, CUDA {CUDA}, Python {PYTHON}\n{'package':24}{'provision':>16}{'uv':>16}  verify"
    )
    for package in sys.argv[2:] or REQUESTS:
        ours, is_locked = _locked(package, place, env)
        theirs = _compiled(package, place)
        verified = "not locked here"
        if is_locked:
            verified = _verified(package, place, env)
        print(
            f"{package:24}{ours or 'refused':>16}{theirs or 'refused':>16}  {verified}", flush=True
        )
        compared += bool(ours or theirs)
        refused += not ours and not theirs
        newer += bool(ours and (not theirs or Version(ours) >= Version(theirs)))
        sound += verified == "sound"
    print(
        f"{newer} of {compared} at least as new; {sound} locks verify; {refused} that both refuse"
    )


def _verified(package: str, place: Path, env: dict[str, str]) -> str:
    """`sound`, or what is wrong. A folder of records holds no conda packages: these cannot be downloaded from it."""
    command = [PROVISION, "lock", "verify", "--json", f"choice-{canonicalize_name(package)}"]
    run = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True)
    wrong = []
    for lock in json.loads(run.stdout)["locks"]:
        wrong += [
            f"{row['package']} {row['message']}"
            for row in lock["findings"]
            if not _is_record(row, env)
        ]
    return "; ".join(wrong) or "sound"


def _is_record(finding: dict[str, str], env: dict[str, str]) -> bool:
    return (
        finding["kind"] == "gone"
        and "(the file does not exist)" in finding["message"]
        and "=file:" in env["PROVISION_MIRRORS"]
    )


def _locked(package: str, place: Path, env: dict[str, str]) -> tuple[str, bool]:
    """The version, and whether there is a lock."""
    name = f"choice-{canonicalize_name(package)}"
    command = [PROVISION, "--json", "lock", name, "--torch", TORCH, "--cuda", CUDA]
    command += ["--python", PYTHON, "--pip", package]
    run = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True)
    if run.returncode == 0:
        document = yaml.safe_load((place / "envs" / name / "conda-lock.yml").read_text())
        return _version_of(package, document["package"]), True
    print(run.stderr.strip().splitlines()[-1], file=sys.stderr)
    command.append("--dry-run")
    run = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True)
    return _version_of(package, json.loads(run.stdout).get("packages", [])), False


def _version_of(package: str, rows: Sequence[Mapping[str, str]]) -> str:
    versions = {row["name"]: row["version"] for row in rows}
    return versions.get(canonicalize_name(package), "")


def _compiled(package: str, place: Path) -> str:
    requirements = place / "requirements.in"
    requirements.write_text(f"torch=={TORCH}\n{package}\n")
    command = [uv_executable(), "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    command += ["--python-version", PYTHON, "--python-platform", "x86_64-manylinux_2_28"]
    run = subprocess.run([*command, str(requirements)], cwd=place, capture_output=True, text=True)
    for line in run.stdout.splitlines():
        name, _, version = line.partition("==")
        if canonicalize_name(name) == canonicalize_name(package):
            return version
    return ""


if __name__ == "__main__":
    main()
