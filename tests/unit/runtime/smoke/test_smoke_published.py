"""Published figures of healthy and sick machines, each with its source, are judged as the people
who measured them did: a sick machine gets at least a warning, a healthy one does not fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.smoke import bandwidth, wire_limit
from tests.unit.runtime.smoke.builders import host_wires, line, nvlinks

TABLES = json.loads(Path("tests/data/bandwidth_tables.json").read_text())["tables"]


def hosts_of(table: dict[str, Any]) -> list[wire_limit.HostWires]:
    gpus = table["ranks"] // table["hosts"]
    links, link_gb_s, shape = table.get("nvlink", (0, 0.0, ""))
    count, port_gb_s, driver = table.get("ports", (0, 0.0, ""))
    generation, lanes = table["pcie"]
    interfaces = {"eth0": table["ifrate"]} if "ifrate" in table else {}
    for key, prefix in (("hsn", "hsn"), ("equal", "eth")):
        number, rate = table.get(key, (0, 0.0))
        interfaces.update({f"{prefix}{index}": rate for index in range(number)})
    hosts = []
    for number in range(table["hosts"]):
        host = host_wires(
            f"n{number}",
            gpus=gpus,
            nvlink=nvlinks(gpus, links, link_gb_s, shape),
            generation=generation,
            lanes=lanes,
            ports=count,
            port_gb_s=port_gb_s,
            driver=driver,
            interfaces=interfaces,
            device=table["device"],
            clique=f"rack {number % table['cliques']}" if "cliques" in table else "",
        )
        host.wires["instance"] = table.get("instance", "")
        for other in range(gpus, table.get("host_gpus", gpus)):
            host.wires["pcie"].append({**host.wires["pcie"][0], "address": f"a{other}"})
        hosts.append(host)
    return hosts


def judged(table: dict[str, Any]) -> tuple[set[str], list[Any]]:
    hardware = bandwidth.Hardware(
        table["device"],
        table["ranks"],
        table["hosts"],
        table.get("nvls", False),
    )
    lines = [line(busbw, bandwidth.parse_size(size)) for size, busbw in table["points"].items()]
    limit = wire_limit.wire_limit(hosts_of(table))
    findings = bandwidth.judge_lines(lines, hardware, limit)
    return {finding.id for finding in findings}, lines


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["name"])
def test_published_figures(table: dict[str, Any]) -> None:
    found, lines = judged(table)
    if table["truth"] == "sick":
        assert found & {"bandwidth-low", "bandwidth-reduced"}
    else:
        assert found == set()
        assert all(judged_line["judged"].startswith("fine") for judged_line in lines)
