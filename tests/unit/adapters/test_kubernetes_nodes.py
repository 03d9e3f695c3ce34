"""What kubectl says about nodes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from provision.adapters.kubernetes import nodes as kubernetes_nodes
from provision.adapters.kubernetes.command import parse_document
from provision.core.errors import InvalidSpec, ToolMissing, Unreachable
from tests.paths import DATA
from tests.programs import write_program

NODES = DATA / "kubectl" / "nodes.json"


def parse_nodes(text: str) -> list[kubernetes_nodes.KubernetesNode]:
    """The nodes in what `kubectl get nodes -o json` prints."""
    return [kubernetes_nodes._node(item) for item in parse_document("nodes", text)["items"]]


def test_nodes() -> None:
    first, second = parse_nodes(NODES.read_text())
    assert (first.name, first.host, first.state) == ("ip-10-0-0-1", "gpu-a.lab", "Ready")
    assert (first.gpus, first.gpu_type) == (8, "NVIDIA-H100-80GB-HBM3")
    assert (first.arch, first.driver, first.faults) == ("x86_64", "550.54.15", ())
    assert second.state == "Unknown,SchedulingDisabled"
    assert (second.arch, second.driver, second.gpus) == ("aarch64", None, 0)
    assert second.faults == ("DiskPressure",)


def put_kubectl(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "kubectl"
    write_program(program, f"#!/bin/sh\n{script}\n")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_selector_and_context_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_kubectl(
        tmp_path,
        f'echo "$@" >{shlex.quote(str(tmp_path))}/words; cat {shlex.quote(str(NODES))}',
        monkeypatch,
    )
    assert len(kubernetes_nodes.list_nodes("gpu=yes,!old", "lab")) == 2
    words = (tmp_path / "words").read_text()
    assert words == "--context=lab get nodes -l gpu=yes,!old -o json --request-timeout=60s\n"


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            Unreachable,
        ),
        ("Unable to connect to the server: dial tcp: lookup api.lab: no such host", Unreachable),
        (
            "Error from server (BadRequest): Unable to find nodes that match label selector",
            InvalidSpec,
        ),
        ('error: context "lab" does not exist', InvalidSpec),
    ],
)
def test_refusals(
    message: str, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_kubectl(tmp_path, f"echo '{message}' >&2; exit 1", monkeypatch)
    with pytest.raises(error) as caught:
        kubernetes_nodes.list_nodes("x")
    assert message in str(caught.value)


def test_no_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing):
        kubernetes_nodes.list_nodes()


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "7", "null", '"x"', "", "{}", "[" * 200_000, '{"items": NaN}', '{"items": [7]}'),
        '{"items": [{"metadata": {}}]}',
        '{"items": [{"metadata": {"name": 7}}]}',
        '{"items": [{"metadata": {"name": "n1", "labels": []}}]}',
        '{"items": [{"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready"}]}}]}',
        '{"items": [{"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "x"}}}]}',
    ],
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(Unreachable, match="nodes"):
        parse_nodes(text)


def test_words_of_a_kubelet_are_lines_and_a_driver_is_a_version() -> None:
    metadata = {"name": "n1", "labels": {"nvidia.com/cuda.driver-version.full": "newest"}}
    status = {"nodeInfo": {"kernelVersion": "6.1\n\x1b[2Jn9 Ready"}}
    [node] = parse_nodes(json.dumps({"items": [{"metadata": metadata, "status": status}]}))
    assert (node.kernel, node.driver) == ("6.1\\n\\x1b[2Jn9 Ready", None)


def node(**fields: object) -> kubernetes_nodes.KubernetesNode:
    document = {"metadata": {"name": "n1"}, "spec": None, "status": None, **fields}
    [parsed] = parse_nodes(json.dumps({"items": [document]}))
    return parsed


@pytest.mark.parametrize(
    ("condition", "status", "is_fault"),
    [
        ("DiskPressure", "True", True),
        ("KernelDeadlock", "True", True),
        *((name, "True", True) for name in ("GpuBus", "RdmaLink", "DcgmiHealth", "GPUXIDErrors")),
        ("FrequentContainerdRestart", "True", True),
        ("SysLogsXIDError", "True", True),
        ("GpuNvlinkWatch", "True", True),
        ("GpuNvlinkWatch", "False", False),
        ("XIDErrors", "True", True),
        ("AcceleratedHardwareReady", "False", True),
        *(
            (name, "True", False)
            for name in ("EtcdIsVoter", "AcceleratedHardwareReady", "MIGAvailable", "GpuHealthy")
        ),
        ("EtcdIsVoter", "False", False),
    ],
)
def test_conditions_are_faults_by_their_names(condition: str, status: str, is_fault: bool) -> None:
    conditions = [{"type": "Ready", "status": "True"}, {"type": condition, "status": status}]
    parsed = node(status={"conditions": conditions})
    assert (parsed.state, parsed.faults) == ("Ready", (condition,) if is_fault else ())


@pytest.mark.parametrize(
    ("key", "state", "is_fault"),
    [
        ("node.kubernetes.io/unreachable", "Unknown", True),
        ("node.kubernetes.io/not-ready", "Ready", True),
        ("nvidia.com/gpu-xid-error", "Ready", True),
        ("nvidia.com/gpu", "Ready", False),
        ("node-role.kubernetes.io/control-plane", "Ready", False),
    ],
)
def test_taints(key: str, state: str, is_fault: bool) -> None:
    parsed = node(
        spec={"taints": [{"key": key, "effect": "NoExecute"}]},
        status={"conditions": [{"type": "Ready", "status": "True"}]},
    )
    assert (parsed.state, parsed.faults) == (state, (f"taint {key}",) if is_fault else ())


def test_a_node_that_is_not_ready_stays_so_when_it_is_unreachable() -> None:
    taint = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
    conditions = [{"type": "Ready", "status": "False"}]
    assert node(spec={"taints": [taint]}, status={"conditions": conditions}).state == "NotReady"


@pytest.mark.parametrize(
    ("allocatable", "labels", "gpus", "shares"),
    [
        ({"gpu": "8"}, {}, 8, ()),
        ({"gpu": "8"}, {"gpu.count": "8", "gpu.replicas": "1"}, 8, ()),
        ({"gpu": "60"}, {"gpu.count": "4", "gpu.replicas": "15"}, 4, ("60 x gpu",)),
        ({"gpu": "60"}, {"gpu.replicas": "15"}, 4, ("60 x gpu",)),
        ({"gpu": "0", "gpu.shared": "1k"}, {"gpu.count": "8"}, 8, ("1000 x gpu.shared",)),
        (
            {"gpu": "0", "mig-1g.12gb": "2", "mig-3g.47gb": "1"},
            {"gpu.count": "1"},
            1,
            ("2 x mig-1g.12gb", "1 x mig-3g.47gb"),
        ),
        ({"gpu": "8"}, {"gpu.count": "many", "gpu.replicas": "0"}, 8, ()),
        (None, None, 0, ()),
    ],
)
def test_gpus_are_counted_however_they_are_shared(
    allocatable: dict[str, str] | None,
    labels: dict[str, str] | None,
    gpus: int,
    shares: tuple[str, ...],
) -> None:
    prefixed = [
        names and {f"nvidia.com/{k}": v for k, v in names.items()}
        for names in (allocatable, labels)
    ]
    parsed = node(
        metadata={"name": "n1", "labels": prefixed[1]},
        status={"allocatable": prefixed[0], "conditions": None, "nodeInfo": None},
    )
    assert (parsed.gpus, parsed.gpu_shares, parsed.faults) == (gpus, shares, ())


def test_gpus_that_the_device_plugin_took_away_are_a_fault() -> None:
    status = {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "7"}}
    assert node(status=status).faults == ("7 of 8 nvidia.com/gpu usable",)
