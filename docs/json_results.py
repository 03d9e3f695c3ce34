"""What every verb prints with --json: the name of its schema, the verbs, what it holds, its fields.

A dataclass stands for its fields, a mapping for its keys; a key that ends with `?` may be missing.
docs/make_schemas.py makes the schemas and the table of docs/json.md from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from provision.channel.host_python import HostPython, HostPythonChannel
from provision.cluster.failures import NodeFailure
from provision.cluster.fitness import NodeVerdict
from provision.cluster.inventory import Engine
from provision.core.types import (
    BuildResult,
    EnvironmentOutcome,
    Image,
    Kernel,
    ListedJob,
    Prefix,
    SmokeResult,
)
from provision.environment.drift import Drift
from provision.environment.kernel import KernelSpec
from provision.image.registry.push import IndexResult, PushResult
from provision.launch import FileFormat, JobFormat, RunFormat
from provision.lockfile import VerifyReport
from provision.lockfile.tree import TreeNode
from provision.resolver.explanation import Explanation
from provision.resolver.table import Table
from provision.verbs.change.change import ChangeResult
from provision.verbs.channel.mirror import MirrorResult
from provision.verbs.clean.clean import Removable
from provision.verbs.env.env import Product
from provision.verbs.facts.facts import FactsCheck, FactsSummary, FactsUpdate
from provision.verbs.image.diff import ImageDiff
from provision.verbs.image.registry import VerifiedImage
from provision.verbs.init.init import Proposal
from provision.verbs.join.steps import Note, StepName, StepStatus
from provision.verbs.lab.check import LabProblem
from provision.verbs.launch.jobs import Engine as LaunchEngine
from provision.verbs.launch.launch import SubmittedJob
from provision.verbs.lock.inspection import ExportedLock
from provision.verbs.report.lab import LabReport
from provision.verbs.status.status import MachineStatus
from provision.verbs.why.why import WhyResult
from provision.workflow.environments import Environment
from provision.workflow.lock import LockPreview
from provision.workflow.ship.stages import Verb
from provision.workflow.ship.states import State
from provision_runtime.checkpoint.inspection.audit import Audit
from provision_runtime.checkpoint.inspection.contents import Contents
from provision_runtime.checkpoint.inspection.inventory import CheckpointInventory, Cleanup
from provision_runtime.checkpoint.inspection.transfer import Transfer
from provision_runtime.node.results import RemovedEnvironments, StoreContents, StoreLog
from provision_runtime.report.diagnosis import Diagnosis


@dataclass(frozen=True)
class FileFields:
    """The fields of a file that provision writes, by its schema in provision/schemas."""

    schema: str


Shape = type | Mapping[str, Any] | FileFields


@dataclass(frozen=True)
class PrintedResult:
    """name: of the schema. verbs: as typed. holds: a phrase for the table. shapes: whose fields the
    object has, all of them."""

    name: str
    verbs: Sequence[str]
    holds: str
    shapes: Sequence[Shape]


def _result(name: str, verbs: str, holds: str, *shapes: Shape) -> PrintedResult:
    return PrintedResult(name, verbs.split(", "), holds, shapes)


DOCTOR = (Diagnosis, {"kind": Literal["doctor"], "verdict": str})
NODE = {
    "name": str,
    "host": str,
    "engine": Engine,
    "address": str,
    "state": str,
    "gpus": int | None,
    "partition": str,
    "context": str,
    "rack": str,
    "zone": str,
}
NODE_CHECK = {
    **NODE,
    "verdict": NodeVerdict,
    "problems": list[NodeFailure],
    "warnings": list[NodeFailure],
    "facts": dict[str, Any],
}
SHIPPED_NODE = {
    "state": State,
    "method": str | None,
    "stage?": str,
    "reason?": str,
    "message?": str,
    "note": str,
    "ends_at_boot": bool,
    "removed": list[str],
    "in_use": list[str],
}
CI_JOB = {
    "environment": str,
    "platform": str,
    "runner": str | None,
    "gpu": bool,
    "ranks": int,
    "notes": list[str],
}
JOIN_STEP = {"step": StepName, "status": StepStatus, "changed": bool, "notes": list[Note]}
RESULTS = (
    _result(
        "error",
        "any verb",
        "why a command ended without a result",
        {"kind": str, "message": str, "advice": str, "exit_code": int},
    ),
    _result(
        "plan",
        "build --dry-run, env create --dry-run, image build --dry-run, pack --dry-run",
        "what each stage would do",
        {"steps": [{"stage": str, "would": str}]},
    ),
    _result(
        "outcomes",
        "lock --all",
        "what became of each environment",
        {"environments": list[EnvironmentOutcome]},
    ),
    _result("build", "build", "request, pins, lock, prefix, image, smoke results", BuildResult),
    _result("init", "init, import", "the proposed spec.yml, with reasons", Proposal),
    _result(
        "command",
        "run --dry-run, image run --dry-run",
        "the command that would run",
        {"command": list[str]},
    ),
    _result("kernel-add", "kernel add", "the registered kernel", Kernel),
    _result(
        "kernel-add-preview",
        "kernel add --dry-run",
        "kernel.json as it would be",
        {"kernel": KernelSpec},
    ),
    _result("kernel-list", "kernel list", "the registered kernels", {"kernels": list[Kernel]}),
    _result(
        "kernel-remove",
        "kernel remove",
        "the folder that was removed, or would be",
        {"removed": Path, "dry_run": bool},
    ),
    _result(
        "change",
        "add, remove, update",
        "which packages changed, and where that was installed",
        ChangeResult,
    ),
    _result(
        "lock",
        "lock",
        "the lock, and how many packages it has",
        {
            "path": Path,
            "sha256": str,
            "packages": int,
            "portable": bool,
            "made": bool,
            "platforms": dict[str, int],
        },
    ),
    _result("lock-preview", "lock --dry-run", "the packages that would be locked", LockPreview),
    _result(
        "lock-verify", "lock verify", "what is wrong with each lock", {"locks": [VerifyReport]}
    ),
    _result(
        "lock-export",
        "lock export",
        "the lock in another format: its text, or the file with it",
        ExportedLock,
        {"path": Path | None, "text": str | None},
    ),
    _result("render", "render", "the files that changed", {"written": list[str]}),
    _result("render-preview", "render --dry-run", "each file's text", {"files": dict[str, str]}),
    _result("why", "why", "why ranks hang, or how they ended", WhyResult),
    _result("status", "status", "machine, engine, disk, environments", MachineStatus),
    _result("env-create", "env create", "the installed prefix", Prefix),
    _result("env-list", "env list", "every environment", {"environments": list[Environment]}),
    _result("env-tree", "env tree", "packages, each with what it needs", {"packages": [TreeNode]}),
    _result(
        "env-remove",
        "env remove",
        "what was removed, or would be",
        {"removed": list[Product], "dry_run": bool},
    ),
    _result("env-diff", "env diff", "what differs from the lock", {"differences": list[Drift]}),
    _result("facts", "facts show", "which facts are in use", FactsSummary),
    _result("facts-update", "facts update", "the facts before and after", FactsUpdate),
    _result(
        "facts-check",
        "facts check",
        "each file of facts, and whether it is valid",
        {"checks": list[FactsCheck]},
    ),
    _result("matrix", "matrix", "every build that fits", Table),
    _result("matrix-explain", "matrix explain", "choices, pins and rules", Explanation),
    _result(
        "matrix-ci",
        "matrix ci",
        "jobs, and the workflow's text; `path` is null if it was not written",
        {
            "path": Path | None,
            "jobs": [CI_JOB],
            "text": str,
        },
    ),
    _result("passport-sign", "passport sign", "the signature of a passport", {"signature": Path}),
    _result(
        "passport-verify",
        "passport verify",
        "who signed a passport",
        {"passport": Path, "signer": str},
    ),
    _result(
        "passport-show",
        "passport show",
        "the passport, and whether it is outdated",
        FileFields("passport"),
    ),
    _result(
        "report",
        "report",
        "the passports and smoke reports, and the worst verdict",
        {
            "title": str,
            "verdict": str,
            "missing": list[str],
            "files": [
                {
                    "source": str,
                    "outdated": str,
                    "passport": dict[str, Any] | None,
                    "runs": [
                        {"location": str, "verdict": str, "host": str, "report": dict[str, Any]}
                    ],
                }
            ],
        },
    ),
    _result(
        "report-lab", "report", "what each machine recorded, where no PASSPORT is named", LabReport
    ),
    _result("smoke", "smoke", "the report of each tested place", {"results": list[SmokeResult]}),
    _result("smoke-nodes", "smoke --on", "every node and every test", FileFields("smoke-nodes")),
    _result("smoke-health-check", "smoke --health-check", "the script", {"script": str}),
    _result("doctor", "doctor, doctor script", "every finding, with evidence", *DOCTOR),
    _result(
        "doctor-nodes",
        "doctor --on",
        "the findings of each node, and which were not examined",
        {"nodes": dict[str, Diagnosis], "failures": dict[str, NodeFailure]},
    ),
    _result(
        "checkpoint-list", "checkpoint list", "checkpoints and their sizes", CheckpointInventory
    ),
    _result("checkpoint-show", "checkpoint show", "tensors, objects and files", Contents),
    _result("checkpoint-verify", "checkpoint verify", "a verdict for each checkpoint", Audit),
    _result("checkpoint-prune", "checkpoint prune", "what was removed, or would be", Cleanup),
    _result("checkpoint-export", "checkpoint export", "the new folder and its size", Transfer),
    _result("checkpoint-import", "checkpoint import", "the new checkpoint and its size", Transfer),
    _result("image-build", "image build", "the image and its layers", Image),
    _result("image-push", "image push", "where it is, and what was sent", PushResult),
    _result("image-index", "image index", "where it is, and its images", IndexResult),
    _result("image-diff", "image diff", "packages that differ, and sizes", ImageDiff),
    _result("image-verify", "image verify", "what is signed", VerifiedImage),
    _result(
        "image-sbom",
        "image sbom",
        "the SBOM's text, or the file with it",
        {"path": Path | None, "text": str | None},
    ),
    _result(
        "image-contract",
        "image contract",
        "how to run it",
        {"format": RunFormat | FileFormat, "text": str},
    ),
    _result("channel-bootstrap", "channel bootstrap", "the channel", HostPythonChannel),
    _result(
        "channel-bootstrap-preview",
        "channel bootstrap --dry-run",
        "the Python that would be packaged",
        HostPython,
    ),
    _result("channel-mirror", "channel mirror", "what was downloaded", MirrorResult),
    _result(
        "nodes-list",
        "nodes list",
        "nodes, and how each is reached",
        {"on": str, "nodes": [{**NODE, "reached_by": str}]},
    ),
    _result(
        "nodes-check",
        "nodes check",
        "a verdict for each node, and its facts",
        {"environment": str | None, "is_fit": bool, "nodes": [NODE_CHECK]},
    ),
    _result(
        "pack",
        "pack",
        "the image, whether it is new, and its description",
        FileFields("pack"),
        {"image": Path, "made": bool},
    ),
    _result(
        "ship",
        "ship, activate, rollback",
        "the state of each node",
        {
            "verb": Verb,
            "name": str,
            "key": str,
            "goal": State,
            "required": int,
            "ready": int,
            "succeeded": bool,
            "dry_run": bool,
            "size": int,
            "sent_bytes": int,
            "copies_between_nodes": int,
            "halted": str,
            "left_out": list[str],
            "nodes": {"*": SHIPPED_NODE},
        },
    ),
    _result(
        "store",
        "store list, store disk",
        "what the store of each node holds",
        {"nodes": {"*": StoreContents}, "failures": {"*": NodeFailure}},
    ),
    _result(
        "store-log",
        "store log",
        "what happened in the store of each node",
        {"nodes": {"*": StoreLog}, "failures": {"*": NodeFailure}},
    ),
    _result(
        "store-remove",
        "store remove",
        "what was removed from the store of each node, and what stays",
        {"nodes": {"*": RemovedEnvironments}, "failures": {"*": NodeFailure}},
    ),
    _result("drift", "drift", "facts that differ, and each node's verdict", FileFields("drift")),
    _result("launch", "launch", "the submitted job", SubmittedJob),
    _result(
        "launch-preview",
        "launch --dry-run",
        "the script or manifest",
        {"engine": LaunchEngine, "format": JobFormat, "text": str},
    ),
    _result(
        "jobs-list",
        "jobs list",
        "the launched jobs that the engine knows",
        {"jobs": list[ListedJob]},
    ),
    _result("jobs-log", "jobs log", "the job's log", {"job": str, "log": str}),
    _result(
        "jobs-cancel", "jobs cancel", "whether all of it ended", {"job": str, "canceled": bool}
    ),
    _result(
        "join",
        "join",
        "how each step stands, and the first commands of a member",
        {
            "lab": str,
            "contact": str,
            "source": str,
            "acted": bool,
            "open": list[StepName],
            "steps": [JOIN_STEP],
            "commands": list[str],
        },
    ),
    _result("lab-check", "lab check", "what is wrong", {"problems": list[LabProblem]}),
    _result(
        "clean",
        "clean",
        "what was removed, or would be",
        {"removed": list[Removable], "dry_run": bool},
    ),
)
