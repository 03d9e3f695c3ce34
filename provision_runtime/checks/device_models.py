"""What GPUs have by design, by their model: device_models.json, each row with its sources."""

from __future__ import annotations

import functools
import re
from typing import TypedDict, cast

from ..report.codec import packaged_json


class Model(TypedDict, total=False):
    """name: a pattern of the product's name. nvlinks: those that the board wires, with their rate in
    one direction. bridge: only a bridge joins two GPUs, with so many
    links. c2c: NVLink joins GPU and processor. multi_node: GPUs in an NVLink domain of several hosts.
    peer_access: whether the driver lets GPUs reach one another's memory.

    pcie_lanes, pcie_gen: the least that is normal; narrow_by_design: although the card has more
    lanes.
    """

    name: str
    nvlinks: int
    nvlink_gb_s: float
    bridge: bool
    bridge_links: int
    c2c: bool
    multi_node: int
    network_gb_s: float
    peer_access: bool
    pcie_lanes: int
    narrow_by_design: bool
    pcie_gen: int
    power_w: float
    source: str


@functools.lru_cache(maxsize=None)
def model_of(product: str | None) -> Model:
    """Empty if the model is unknown. The first pattern that fits counts."""
    for model in packaged_json(__package__, "device_models.json")["models"]:
        if re.search(model["name"], product or ""):
            return cast("Model", model)
    return {}
