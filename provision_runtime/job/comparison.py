"""Whether the nodes of a job are alike: the facts that decide it, and the nodes that differ.

Pure but for `collect`. Facts are read from files: nothing here starts a program or imports torch,
so it takes milliseconds and cannot hang on a GPU.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..facts import environment, libraries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# What must be equal on all nodes, in the order of messages. A difference ends the job.
REQUIRED_EQUAL = (
    "environment",
    "runtime",
    "Python",
    "architecture",
    "driver",
    "GPUs",
    "NCCL",
)
# What is only said if it differs: it may cost speed, and does not change results.
REPORTED = ("kernel", "glibc", "CPUs", "memlock limit", "InfiniBand adapters")
NOT_SET = "not set"
# More names than this in one line are hard to read.
MAX_NAMES = 8


def collect() -> dict[str, Any]:
    """The compared facts of this node, as this process sees it: within its container and its
    control group."""
    facts = environment.host_facts()
    limits = facts["limits"]
    settings = {setting["name"]: setting["value"] for setting in facts["nccl_settings"]}
    return {
        "environment": facts["lock_hash"],
        "runtime": __version__,
        "Python": facts["python"]["version"],
        "architecture": facts["platform"]["machine"],
        "driver": facts["driver"],
        "GPUs": {"visible": visible_gpus(os.environ), "models": libraries.gpu_models()},
        "NCCL": settings,
        "kernel": facts["platform"]["kernel"],
        "glibc": facts["platform"]["glibc"],
        "CPUs": limits["cpus"]["allowed"],
        "memlock limit": limits["memlock"],
        "InfiniBand adapters": limits["infiniband"]["adapters"],
    }


def visible_gpus(variables: Mapping[str, str]) -> int:
    """How many GPUs programs may use: those in CUDA_VISIBLE_DEVICES, which schedulers set, else
    those whose device files may be opened."""
    listed = variables.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        nodes = libraries.device_nodes()
        return sum(os.access(node, os.R_OK | os.W_OK) for node in nodes)
    count = 0
    for entry in listed.split(","):
        # CUDA stops at the first invalid entry; Slurm sets NoDevFiles where it gives none.
        if not entry.strip() or entry.strip() in ("-1", "NoDevFiles"):
            break
        count += 1
    return count


def own_problems(
    facts: Mapping[str, Any], *, gpus: int, lock: str | None, script: str | None
) -> list[str]:
    """What is wrong on this node alone.

    gpus: how many must be visible. lock: the hash that the environment must have. script: a file
    that the ranks run.
    """
    problems = []
    if lock is not None and facts["environment"] != lock:
        actual = _short(facts["environment"]) if facts["environment"] else "unknown"
        problems.append(f"its environment is {actual}, not {_short(lock)}, which was launched")
    visible = facts["GPUs"]["visible"]
    if visible < gpus:
        problems.append(f"{visible} of {gpus} GPUs are visible")
    if script is not None and not os.path.exists(script):
        problems.append(f"there is no {os.path.join(os.getcwd(), script)}")
    return problems


def differences(facts: Mapping[str, Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """One sentence for each fact that is not equal on all nodes, with the nodes that differ.

    facts: of each node, by its name.
    """
    flat = {node: _flatten(values, keys) for node, values in facts.items()}
    labels = list(dict.fromkeys(label for values in flat.values() for label in values))
    sentences = []
    for label in labels:
        values = {node: node_values.get(label, NOT_SET) for node, node_values in flat.items()}
        if len(set(values.values())) > 1:
            sentences.append(f"{label}: {_describe(values)}")
    return sentences


def _flatten(facts: Mapping[str, Any], keys: Sequence[str]) -> dict[str, str]:
    """Label -> value, with each NCCL setting as a label of its own."""
    flat = {}
    for key in keys:
        value = facts[key]
        if key == "NCCL":
            flat.update(value)
        elif key == "environment":
            flat[key] = _short(value) if value else "unknown"
        elif key == "GPUs":
            flat["visible GPUs"] = str(value["visible"])
            flat["GPU models"] = ", ".join(value["models"]) or "unknown"
        elif isinstance(value, list):
            flat[key] = ", ".join(value) or "none"
        else:
            flat[key] = "unknown" if value is None else str(value)
    if "memlock limit" in flat and facts["memlock limit"] is None:
        flat["memlock limit"] = "unlimited"
    return flat


def _describe(values: Mapping[str, str]) -> str:
    """The values with their nodes; if more than half of the nodes agree, theirs comes last."""
    nodes_by_value: dict[str, list[str]] = {}
    for node, value in values.items():
        nodes_by_value.setdefault(value, []).append(node)
    [(common, count)] = Counter(values.values()).most_common(1)
    has_majority = 2 * count > len(values)
    parts = []
    for value, nodes in nodes_by_value.items():
        if not (has_majority and value == common):
            parts.append(f"{value} on {name_nodes(nodes)}")
    if has_majority:
        parts.append(f"{common} on the other {count}")
    return ", ".join(parts)


def name_nodes(nodes: Sequence[str]) -> str:
    """`n1, n2`, at most MAX_NAMES of them."""
    text = ", ".join(nodes[:MAX_NAMES])
    if len(nodes) > MAX_NAMES:
        text += f" and {len(nodes) - MAX_NAMES} more"
    return text


def _short(digest: str) -> str:
    return digest[:12]
