"""Images that nodes pull from a registry by digest."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.integration.conftest import make_home
from tests.integration.registries import host as host
from tests.programs import write_program
from tests.results import parse_result

pytestmark = [pytest.mark.docker, pytest.mark.needs("docker", "docker-registry")]


def test_nodes_pull_by_digest_and_name_the_image(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_home(tmp_path)
    tag = f"{host}/toy:1"
    container = tmp_path / "root.tar"
    subprocess.run(
        ["tar", "--create", "--file", container, "--files-from", "/dev/null"], check=True
    )
    subprocess.run(["docker", "import", container, tag], check=True, capture_output=True)
    subprocess.run(["docker", "push", "--quiet", tag], check=True, capture_output=True)
    subprocess.run(["docker", "rmi", tag], check=True, capture_output=True)
    inventory = tmp_path / "nodes.yml"
    inventory.write_text(f"schema: 1\ndefaults: {{path: {tmp_path}/nodes/%h}}\n")
    # podman would refuse a registry without TLS; the engine of this test is Docker.
    folder = tmp_path / "bin"
    folder.mkdir()
    write_program(folder / "podman", "#!/bin/sh\necho 'not configured' >&2\nexit 1\n")
    path = f"{folder}:{home.env['PATH']}"
    command = ["ship", "toy", "--on", "exec:n[1-2]", "--inventory", str(inventory)]
    try:
        result = home.run(*command, "--to", f"registry:{tag}", "--json", PATH=path)
        report = parse_result(result.stdout)
        assert report["succeeded"], report
        assert report["key"].startswith(f"{host}/toy@sha256:")
        assert {row["method"] for row in report["nodes"].values()} == {"docker"}
        for name in ("n1", "n2"):
            text = (tmp_path / "nodes" / name / "toy.image").read_text()
            assert text == f"{report['key']}\n"
        missing = home.run(*command, "--to", f"registry:{host}/toy:none", PATH=path)
        assert missing.returncode not in (0, 1)
        assert "toy:none" in missing.stderr
    finally:
        subprocess.run(["docker", "rmi", "--force", report["key"]], capture_output=True)
