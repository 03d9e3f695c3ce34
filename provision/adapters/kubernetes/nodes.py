"""Nodes of a Kubernetes cluster as its API server describes them; nothing runs on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.adapters.kubernetes.command import ask_kubectl, parse_document

GPU_RESOURCE = "nvidia.com/gpu"
# Labels of NVIDIA's GPU feature discovery.
GPU_PRODUCT = "nvidia.com/gpu.product"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.rev")
HOST_NAME = "kubernetes.io/hostname"
# Go's names of architectures as the kernel has them.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9})*")


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

    Raises ToolMissing without kubectl, Unreachable if the API server does not respond, InvalidSpec
    if kubectl refuses the selector or context.
    """
    arguments = ["get", "nodes", "-o", "json"]
    if selector:
        arguments += ["-l", selector]
    advice = "`kubectl get nodes --show-labels` lists labels."
    document = ask_kubectl("nodes", arguments, context, advice=advice)
    return [_node(item) for item in document["items"]]


def parse_nodes(text: str) -> list[KubernetesNode]:
    """The nodes in the output of `kubectl get nodes -o json`."""
    return [_node(item) for item in parse_document("nodes", text)["items"]]


def _node(item: Mapping[str, Any]) -> KubernetesNode:
    metadata, status = item["metadata"], item.get("status", {})
    labels = metadata.get("labels", {})
    info = status.get("nodeInfo", {})
    conditions = {row["type"]: row["status"] for row in status.get("conditions") or ()}
    state = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "Unknown")
    if item.get("spec", {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    arch = info.get("architecture", "")
    versions = [labels.get(name, "") for name in DRIVER_LABELS]
    return KubernetesNode(
        name=metadata["name"],
        host=labels.get(HOST_NAME, metadata["name"]),
        state=state,
        arch=ARCHITECTURES.get(arch, arch),
        kernel=info.get("kernelVersion", ""),
        os_image=info.get("osImage", ""),
        container_runtime=info.get("containerRuntimeVersion", ""),
        kubelet=info.get("kubeletVersion", ""),
        gpus=int(status.get("allocatable", {}).get(GPU_RESOURCE, 0)),
        gpu_type=labels.get(GPU_PRODUCT, ""),
        driver=next(filter(_VERSION.fullmatch, versions), None),
        pressure=tuple(
            name for name, value in conditions.items() if name != "Ready" and value == "True"
        ),
    )
