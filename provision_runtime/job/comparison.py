"""Whether the nodes of a job are alike: the facts that decide it, and the nodes that differ.

Pure but for `collect`. Facts are read from files: nothing here starts a program or imports torch,
so it takes milliseconds and cannot hang on a GPU.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Dict

from .. import __version__
from ..facts import environment, libraries

NOT_SET, UNKNOWN = "not set", "unknown"
# More names than this in one line are hard to read.
MAX_NAMES = 8
# Where our own package lies.
PACKAGES = Path(__file__).parents[2]


def collect() -> Dict[str, str]:
    """What must be equal on all nodes, by the labels of messages: as this process sees it, within its
    container and its control group. `provision drift` compares more."""
    facts = environment.host_facts()
    compared = {
        "environment": _short(facts["lock_hash"] or UNKNOWN),
        "runtime": f"{__version__} {_short(environment.runtime_digest(PACKAGES))}".strip(),
        "Python": facts["python"]["version"],
        "architecture": facts["platform"]["machine"],
        "driver": facts["driver"] or UNKNOWN,
        "visible GPUs": str(libraries.visible_gpus(os.environ)),
        "GPU models": ", ".join(libraries.gpu_models()) or UNKNOWN,
    }
    settings = {setting["name"]: setting["value"] for setting in facts["nccl_settings"]}
    return {**compared, **settings}


def node_problems(*, gpus: int, lock: str | None, script: str | None) -> list[str]:
    """What is wrong on this node alone.

    gpus: how many must be visible. lock: the hash that the environment must have. script: a file
    that the ranks run.
    """
    problems = []
    actual = environment.lock_hash()
    if lock is not None and actual != lock:
        problems.append(
            f"its environment is {_short(actual or UNKNOWN)}, not {_short(lock)}, which was launched"
        )
    visible = libraries.visible_gpus(os.environ)
    if visible < gpus:
        problems.append(f"{visible} of {gpus} GPUs are visible")
    if script is not None and not os.path.exists(script):
        problems.append(f"there is no {os.path.join(os.getcwd(), script)}")
    return problems


def differences(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One sentence for each fact that is not equal on all nodes, with the nodes that differ.

    facts: of each node, by its name.
    """
    sentences = []
    for label in dict.fromkeys(label for texts in facts.values() for label in texts):
        values = {node: texts.get(label, NOT_SET) for node, texts in facts.items()}
        if len(set(values.values())) > 1:
            sentences.append(f"{label}: {_describe(values)}")
    return sentences


def _describe(values: Mapping[str, str]) -> str:
    """The values with their nodes; if more than half of the nodes agree, theirs comes last."""
    nodes_by_value: dict[str, list[str]] = {}
    for node, value in values.items():
        nodes_by_value.setdefault(value, []).append(node)
    [(common, count)] = Counter(values.values()).most_common(1)
    has_majority = 2 * count > len(values)
    parts = [
        f"{value} on {name_nodes(nodes)}"
        for value, nodes in nodes_by_value.items()
        if not (has_majority and value == common)
    ]
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
