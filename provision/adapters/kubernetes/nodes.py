"""Nodes of a Kubernetes cluster as its API server describes them; nothing runs on them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.core import process
from provision.core.errors import InvalidSpec, TimedOut, ToolFailed, ToolMissing, Unreachable

ANSWER_TIMEOUT_S = 60.0
GPU_RESOURCE = "nvidia.com/gpu"
# Labels of NVIDIA's GPU feature discovery.
GPU_PRODUCT = "nvidia.com/gpu.product"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.rev")
HOST_NAME = "kubernetes.io/hostname"
_UNREACHABLE = re.compile(
    r"refused|no such host|timed? ?out|unable to connect|TLS handshake|was the connection", re.I
)


@dataclass(frozen=True, kw_only=True)
class KubernetesNode:
    """state: `Ready`, `NotReady`, `Unknown`, with `,SchedulingDisabled` where it is cordoned."""

    name: str
    host: str
    state: str
    arch: str
    kernel: str
    os_image: str
    container_runtime: str
    kubelet: str
    gpus: int
    gpu_type: str
    driver: str | None
    pressure: tuple[str, ...]  # DiskPressure, MemoryPressure, ...: the conditions that hold


def list_nodes(selector: str = "", context: str = "") -> list[KubernetesNode]:
    """The nodes that a label selector matches, from kubectl's current context or another.

    Raises ToolMissing without kubectl, Unreachable if the API server does not answer, InvalidSpec
    if kubectl refuses the selector or context.
    """
    command = ["kubectl"]
    if context:
        command += ["--context", context]
    command += ["get", "nodes", "-o", "json", f"--request-timeout={ANSWER_TIMEOUT_S:.0f}s"]
    if selector:
        command += ["-l", selector]
    return parse_nodes(_ask(command))


def parse_nodes(text: str) -> list[KubernetesNode]:
    """The nodes in the output of `kubectl get nodes -o json`."""
    return [_node(item) for item in json.loads(text)["items"]]


def _node(item: Mapping[str, Any]) -> KubernetesNode:
    metadata, status = item["metadata"], item.get("status", {})
    labels = metadata.get("labels", {})
    info = status.get("nodeInfo", {})
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    state = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "Unknown")
    if item.get("spec", {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    return KubernetesNode(
        name=metadata["name"],
        host=labels.get(HOST_NAME, metadata["name"]),
        state=state,
        arch=_arch(info.get("architecture", "")),
        kernel=info.get("kernelVersion", ""),
        os_image=info.get("osImage", ""),
        container_runtime=info.get("containerRuntimeVersion", ""),
        kubelet=info.get("kubeletVersion", ""),
        gpus=int(status.get("allocatable", {}).get(GPU_RESOURCE, 0)),
        gpu_type=labels.get(GPU_PRODUCT, ""),
        driver=next((labels[name] for name in DRIVER_LABELS if name in labels), None),
        pressure=tuple(
            name for name, value in conditions.items() if name != "Ready" and value == "True"
        ),
    )


def _arch(name: str) -> str:
    """Go's name of an architecture as the kernel has it."""
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def _ask(command: list[str]) -> str:
    try:
        return process.run(command, timeout_s=ANSWER_TIMEOUT_S + 5).stdout
    except ToolMissing as error:
        raise ToolMissing(
            "There is no `kubectl` on this machine.",
            advice="Install it, or run this where it is; `ssh:` nodes need none.",
        ) from error
    except TimedOut as error:
        raise Unreachable(
            f"kubectl did not answer within {ANSWER_TIMEOUT_S:.0f} s.",
            advice="`kubectl cluster-info` says whether the API server is up.",
        ) from error
    except ToolFailed as error:
        lines = error.tail.strip().splitlines()
        message = lines[-1] if lines else f"status {error.status}"
        if _UNREACHABLE.search(message):
            raise Unreachable(
                f"The Kubernetes API server does not answer: {message}",
                advice="`kubectl cluster-info` says whether it is up; --context of kubectl is "
                "`context:` in nodes.yml.",
            ) from error
        raise InvalidSpec(
            f"kubectl refused: {message}", advice="`kubectl get nodes --show-labels` lists labels."
        ) from error
