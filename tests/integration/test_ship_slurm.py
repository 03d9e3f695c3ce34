"""An environment shipped through srun, inside an allocation of a Slurm of four nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from tests.integration.conftest import make_home
from tests.integration.shipped_packs import write_pack
from tests.integration.slurm_cluster import NODES, SlurmCluster
from tests.results import parse_result

STORE = PurePosixPath("/opt/provision")
NAME = "small"


@pytest.mark.slurm
@pytest.mark.needs("mksquashfs", "unsquashfs")
def test_an_allocation_gets_its_environment_without_ssh(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    home = make_home(tmp_path)
    document = write_pack(home.project, NAME, "1", STORE, 2_000_000)
    inventory = tmp_path / "nodes.yml"
    inventory.write_text("schema: 1\ndefaults: {via: srun}\n")

    def ship(nodes: int) -> dict[str, object]:
        command = [
            "salloc",
            "--quiet",
            f"--nodes={nodes}",
            str(Path(sys.executable).parent / "provision"),
            "ship",
            NAME,
        ]
        result = subprocess.run(
            [*command, "--on", "slurm:gpu", "--inventory", str(inventory), "--json"],
            env={**home.env, **slurm_cluster.environment},
            cwd=home.envs.parent,
            capture_output=True,
            text=True,
        )
        report = parse_result(result.stdout)
        assert isinstance(report, dict), result.stderr
        return report

    report = ship(len(NODES))
    assert report["succeeded"], report
    assert report["sent_bytes"] == document["size"]
    for node in slurm_cluster.nodes:
        link = node.run("readlink", f"{STORE}/{NAME}").strip()
        assert link == f"envs/{document['key']}"
        assert node.run(f"{STORE}/{NAME}/bin/python", "-c", "print(1)").strip() == "1"
    report = ship(len(NODES))
    assert report["succeeded"]
    assert report["sent_bytes"] == 0
