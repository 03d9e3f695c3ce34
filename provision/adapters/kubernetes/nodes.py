"""Nodes of a Kubernetes cluster as its API server describes them; nothing runs on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from provision.adapters.kubernetes.command import Kubectl
from provision.core.dataclass import frozen

GPU_RESOURCE = "nvidia.com/gpu"
# Labels of NVIDIA's GPU feature discovery.
GPU_PRODUCT = "nvidia.com/gpu.product"
# GPUs of the host, however they are divided; and into how many each is, in time or by MPS.
GPU_COUNT, GPU_REPLICAS = "nvidia.com/gpu.count", "nvidia.com/gpu.replicas"
# "nvidia.com/gpu", with ".shared" if they are divided, and "nvidia.com/mig-1g.12gb".
_GPU_RESOURCES = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.+)")
# Conditions that are faults if they are True: of kubelets, node-problem-detector (its config folder;
# AKS: GPU conditions of learn.microsoft.com/azure/aks/node-problem-detector; OKE: health checks of
# oracle-quickstart/oci-hpc-oke) and NVSentinel (docs/INTEGRATIONS.md); 2026-11. Others, such as
# EtcdIsVoter, are no faults by themselves.
_FAULTS = re.compile(
    r"\w+Pressure|NetworkUnavailable|\w*(Problem|Deadlock|Corrupt|Unhealthy|Fatal)\w*|ReadonlyFilesystem"
    r"|Frequent\w+|XfsShutdown|KernelOops|NTPProblem|Cper\w+|Gpu\w+(Watch|Error)|SysLogs\w+|SyslogError"
    r"|NVSwitch\w+|DCGMError|CSPMaintenance|GPUMissing|NVLinkStatusInactive|(GPU)?XIDErrors?"
    r"|Gpu(Count|Ecc|RowRemap|Bus|Pcie|FabricM\w+|BadPages|Xid|Imex)|NvlinkSpeed|DcgmiHealth|Rdma\w+"
    r"|IpAddress|NodeHasPcieErrors|IBLinkFlapping"
    r"|VMEventScheduled|PreemptScheduled|RebootScheduled|RedeployScheduled|TerminateScheduled"
)
# Of the EKS node monitoring agent (docs.aws.amazon.com/eks/latest/userguide/node-health.html) and
# others: a fault if they are False.
_READY = re.compile(r"\w+(Ready|Healthy)")
# Kubernetes' own of nodes that do not answer or end, and those that NVSentinel's rules set.
_FAULT_TAINTS = re.compile(
    r"node\.kubernetes\.io/(unreachable|not-ready|out-of-service|\w+-pressure|network-unavailable)"
    r"|node\.cloudprovider\.kubernetes\.io/(shutdown|uninitialized)"
    r"|nvidia\.com/.*(error|fault|unhealthy).*|(gpu|nvlink|nvswitch)\.health/.*"
)
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.rev")
ZONE = "topology.kubernetes.io/zone"
# Kubernetes has no label for racks: topology.kubernetes.io/rack, cloud.provider.com/topology-rack.
_RACK = re.compile(r"(^|[/-])rack$")
HOST_NAME = "kubernetes.io/hostname"
# Go's names of architectures as the kernel has them.
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9})*")


@frozen
class KubernetesNode:
    """state: `Ready`, `NotReady`, `Unknown`, with `,SchedulingDisabled` where it is cordoned."""

    name: str
    host: str
    state: str
    arch: str
    kernel: str
    gpus: int
    gpu_type: str
    gpu_shares: tuple[str, ...]  # what jobs ask for where it is not whole GPUs: 2 x mig-1g.12gb
    driver: str | None
    rack: str
    zone: str
    faults: tuple[str, ...]  # conditions, taints and GPUs that the device plugin has taken away


def list_nodes(selector: str = "", context: str = "") -> list[KubernetesNode]:
    """The nodes that a label selector matches, from kubectl's current context or another.

    Raises ToolMissing without kubectl, Unreachable if the API server does not respond, InvalidSpec
    if kubectl refuses the selector or context.
    """
    label = ("-l", selector) if selector else ()
    advice = "`kubectl get nodes --show-labels` lists labels."
    document = Kubectl(context=context).ask("nodes", "get", "nodes", *label, advice=advice)
    return [_node(item) for item in document["items"]]


def _node(item: Mapping[str, Any]) -> KubernetesNode:
    metadata, status, spec = item["metadata"], item.get("status") or {}, item.get("spec") or {}
    labels, info = metadata.get("labels") or {}, status.get("nodeInfo") or {}
    conditions = {row["type"]: row["status"] for row in status.get("conditions") or ()}
    state = {"True": "Ready", "False": "NotReady"}.get(conditions.pop("Ready", ""), "Unknown")
    if spec.get("unschedulable"):
        state += ",SchedulingDisabled"
    arch = info.get("architecture", "")
    versions = [labels.get(name, "") for name in DRIVER_LABELS]
    resources = {
        name: _count(count)
        for name, count in (status.get("allocatable") or {}).items()
        if _GPU_RESOURCES.fullmatch(name)
    }
    gpus, replicas = resources.get(GPU_RESOURCE, 0), _count(labels.get(GPU_REPLICAS)) or 1
    is_shared = replicas > 1 or len(resources) > 1
    faults = [name for name, value in conditions.items() if _is_fault(name, value)]
    for taint in spec.get("taints") or ():
        if _FAULT_TAINTS.fullmatch(taint["key"]):
            faults.append(f"taint {taint['key']}")
            # The condition is that of the kubelet's last report.
            if "unreachable" in taint["key"]:
                state = re.sub("^Ready", "Unknown", state)
    capacity = _count((status.get("capacity") or {}).get(GPU_RESOURCE))
    if gpus < capacity:
        faults.append(f"{gpus} of {capacity} {GPU_RESOURCE} usable")
    return KubernetesNode(
        name=metadata["name"],
        host=labels.get(HOST_NAME, metadata["name"]),
        state=state,
        arch=ARCHITECTURES.get(arch, arch),
        kernel=info.get("kernelVersion", ""),
        gpus=_count(labels.get(GPU_COUNT)) or gpus // replicas,
        gpu_type=labels.get(GPU_PRODUCT, ""),
        gpu_shares=tuple(
            f"{count} x {name.partition('/')[2]}"
            for name, count in sorted(resources.items())
            if count and is_shared
        ),
        rack=next((value for key, value in labels.items() if _RACK.search(key)), ""),
        zone=labels.get(ZONE, ""),
        driver=next(filter(_VERSION.fullmatch, versions), None),
        faults=tuple(faults),
    )


def _is_fault(condition: str, status: str) -> bool:
    if _READY.fullmatch(condition):
        return status == "False"
    return status == "True" and _FAULTS.fullmatch(condition) is not None


def _count(quantity: str | None) -> int:
    """A quantity of Kubernetes, where 1000 is 1k; a label may be anything."""
    digits = re.sub("k$", "000", quantity or "")
    return int(digits) if digits.isdecimal() else 0
