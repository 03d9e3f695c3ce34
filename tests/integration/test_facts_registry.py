"""Facts from a real registry (Debian's docker-registry), as `oras push` leaves them there."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner, Result

from provision import catalog
from provision.catalog import facts
from provision.cli.main import cli
from provision.core.paths import FACTS
from tests.integration.registries import host

__all__ = ["host"]
pytestmark = pytest.mark.needs("docker-registry")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def push(host: str, tag: str, files: dict[str, bytes]) -> str:
    """An artifact with these files; returns its digest."""
    url = f"http://{host}/v2/lab/facts"

    def blob(content: bytes, **row: object) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = requests.post(f"{url}/blobs/uploads/", timeout=10).headers["Location"]
        joint = "&" if "?" in place else "?"
        requests.put(f"{place}{joint}digest={digest}", data=content, timeout=10).raise_for_status()
        return {"mediaType": "application/json", "digest": digest, "size": len(content), **row}

    layers = []
    for name, content in files.items():
        layers.append(blob(content, annotations={"org.opencontainers.image.title": name}))
    document = {"schemaVersion": 2, "mediaType": MANIFEST, "config": blob(b"{}"), "layers": layers}
    response = requests.put(
        f"{url}/manifests/{tag}",
        data=json.dumps(document),
        headers={"Content-Type": MANIFEST},
        timeout=10,
    )
    response.raise_for_status()
    return response.headers["Docker-Content-Digest"]


def test_facts_of_a_registry(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = (catalog.DATA / FACTS).read_text().replace(catalog.edition().date, "2027-03-01", 1)

    def update(address: str, *options: str) -> Result:
        facts.forget()
        return CliRunner().invoke(cli, ["facts", "update", address, *options])

    digest = push(host, "1", {FACTS: text.encode()})
    try:
        assert update(f"oci://{host}/lab/facts:1").exit_code == 7  # nothing shows who made it
        assert update(f"oci://{host}/lab/facts:none").exit_code != 0
        push(host, "other", {"readme.txt": b""})
        assert update(f"oci://{host}/lab/facts:other#sha256={'0' * 64}").exit_code == 7
        assert update(f"oci://{host}/lab/facts@{digest}").exit_code == 0
        assert (catalog.edition().date, catalog.edition().verified) == ("2027-03-01", "digest")
    finally:
        monkeypatch.undo()
        facts.forget()
