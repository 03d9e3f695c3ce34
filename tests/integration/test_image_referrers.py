"""Verdicts and SBOMs attached to an image in a registry, with and without the referrers API."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provision import image
from provision.cli.main import cli
from provision.core.documents import Passport, Verdict
from provision.core.errors import IntegrityError
from provision.core.paths import Folders
from provision.core.types import Image
from provision.environment import passport
from provision.image import oci_layout
from provision.workflow.context import Context
from provision.workflow.image import registry as image_registry
from tests import evidence
from tests.integration.registries import Line, answer, host, make_image, refuse
from tests.integration.test_image import Watching
from tests.results import parse_result
from tests.unit.image.test_image_sbom import folder

__all__ = ["folder", "host"]

pytestmark = pytest.mark.needs("docker-registry")

KIND = "application/vnd.lab.note.v1+json"
BILL = "application/vnd.cyclonedx+json"

# The fields of a smoke report that every reader of a passport uses.
REPORT = {
    "schema": 2,
    "started_at": "2026-11-21T19:44:37Z",
    "verdict": "pass",
    "phases": [],
    "skipped": [],
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return make_image(tmp_path / "toy")


class Api:
    """The referrers API in front of a registry without one: manifests with a subject are noted, and listed when they are asked for."""

    def __init__(self, page: int = 100) -> None:
        self.page = page
        self.noted: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        if request.command == "PUT" and "/manifests/" in request.path:
            return self._note(request, body)
        if "/referrers/" in request.path:
            place, _, begin = request.path.partition("?begin=")
            rows, end = self.noted.get(place.rpartition("/")[2], []), int(begin or 0) + self.page
            page = {
                "schemaVersion": 2,
                "mediaType": oci_layout.INDEX,
                "manifests": rows[end - self.page : end],
            }
            more = {"Link": f'<{place}?begin={end}>; rel="next"'} if end < len(rows) else {}
            return answer(request, json.dumps(page).encode(), **more)
        return False

    def _note(self, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        document = json.loads(body)
        if "subject" in document:
            digest = request.path.rpartition("/")[2]
            row = {
                "digest": digest,
                "size": len(body),
                "mediaType": document["mediaType"],
                "artifactType": document["artifactType"],
            }
            self.noted.setdefault(document["subject"]["digest"], []).append(
                {**row, "annotations": document["annotations"]}
            )
            request.passed = {"OCI-Subject": document["subject"]["digest"]}  # type: ignore[attr-defined]
        return False


@pytest.mark.parametrize("method", ["none", "zstd"])
def test_push_attaches_verdicts_and_sboms(
    host: str, folder: Path, method: image.Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """folder: an environment with an image and a passport, in the working folder."""
    for name in ("DATA", "CACHE"):
        monkeypatch.setenv(f"PROVISION_{name}", str(folder / name))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    written = folder.parents[1] / "data" / "passports" / "lab" / passport.FILE
    passport_ = json.loads(written.read_text())
    passport_["lock"]["sha256"] = passport_["image"]["lock_sha256"]
    measurement = {
        "measured_on": {"host": "node1"},
        "report": REPORT,
    }
    passport_["smoke"] = {
        "prefix": {"verdict": "warn", **measurement},
        "image": {"verdict": "pass", "image_id": passport_["image"]["image_id"], **measurement},
    }
    evidence.write(folder / "DATA" / "passports" / "lab" / passport.FILE, passport_)
    place = f"{host}/lab/pushed-{method}:1"
    for sent in (True, False):
        result = CliRunner().invoke(
            cli, ["image", "push", "lab", place, "--compression", method, "--json"]
        )
        assert result.exit_code == 0, result.output
        pushed = parse_result(result.stdout)
        assert (pushed["sent"] > 0) == sent
        assert pushed["attached"] == [
            "smoke (prefix): warn",
            "smoke (image): pass",
            BILL,
            image.PREDICATE_TYPE,
        ]
    at = image.parse_registry_reference(place)
    digest = pushed["reference"].partition("@")[2]
    (bill,) = image.list_referrers(at, digest, BILL, pytest.fail)
    content = json.loads(image.referrer_content(at, digest, bill, BILL))
    assert content["metadata"]["component"]["version"] == digest
    output = parse_result(CliRunner().invoke(cli, ["image", "show", place, "--json"]).stdout)
    assert (output["reference"], [verdict["verdict"] for verdict in output["verdicts"]]) == (
        pushed["reference"],
        ["pass", "warn"],
    )
    assert output["layers"][0]["mediaType"] == oci_layout.LAYER + (
        "" if method == "none" else f"+{method}"
    )


def test_registry_without_referrers_still_gets_the_image(
    host: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISION_DATA", str(folder.parents[1] / "data"))

    def strict(line: Line, request: BaseHTTPRequestHandler, body: bytes) -> bool:
        return (
            request.command == "PUT"
            and "/manifests/" in request.path
            and b'"subject"' in body
            and refuse(request, 400)
        )

    with Line(host, strict).open() as registry:
        result = CliRunner().invoke(
            cli, ["image", "push", "lab", f"{registry}/lab/strict:1", "--json"]
        )
    assert result.exit_code == 0, result.output
    assert parse_result(result.stdout)["attached"] == []
    assert "not all documents were attached to the image" in result.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("api", ["none", "whole", "pages"])
def test_attached_documents_are_read_back(host: str, toy: Image, api: str) -> None:
    line = (
        Line(host, lambda line, request, body: False)
        if api == "none"
        else Line(host, Api(1 if api == "pages" else 100))
    )
    with line.open() as registry:
        at = image.parse_registry_reference(f"{registry}/lab/{api}:1")
        image.push_image(toy, at, Watching())
        for text in (b'"one"', b'"two"', b'"one"'):
            image.attach_referrer(at, toy, KIND, "application/json", text, {"said": text.decode()})
        image.attach_referrer(at, toy, "application/vnd.other", "text/plain", b"other")
        referrers = {
            referrer.annotations["said"]: referrer
            for referrer in image.list_referrers(at, toy.manifest_digest, KIND, pytest.fail)
        }
        assert {
            media_type: image.referrer_content(
                at, toy.manifest_digest, referrer, "application/json"
            )
            for media_type, referrer in referrers.items()
        } == {
            '"one"': b'"one"',
            '"two"': b'"two"',
        }
        tagged = any(
            path.endswith(f"/manifests/{toy.manifest_digest.replace(':', '-')}")
            for path in line.paths
        )
        assert tagged == (api == "none")  # the fallback is for those who need it
        assert image.list_referrers(at, f"sha256:{'0' * 64}", KIND, pytest.fail) == []


def test_verdicts_of_another_image_are_refused(host: str, toy: Image) -> None:
    at = image.parse_registry_reference(f"{host}/lab/mixed:1")
    image.push_image(toy, at, Watching())
    referrer = image.attach_referrer(at, toy, KIND, "application/json", b"{}")
    with pytest.raises(IntegrityError, match="is not an attachment of"):
        image.referrer_content(at, f"sha256:{'0' * 64}", referrer, "application/json")


@pytest.mark.exhaustive
def test_inspect_shows_the_verdicts(host: str, toy: Image, tmp_path: Path) -> None:
    measured: Verdict = {"measured_on": {"host": "node1"}, "report": REPORT}
    in_image: Verdict = {**measured, "verdict": "pass", "image_id": toy.image_id}
    passport_: Passport = {
        "lock": {"sha256": toy.lock_sha256},
        "smoke": {"prefix": {**measured, "verdict": "warn"}, "image": in_image},
    }
    at = image.parse_registry_reference(f"{host}/lab/verdicts:1")
    image.push_image(toy, at, Watching())
    for attachment in passport.smoke_attachments(passport_, toy):
        image.attach_referrer(
            at,
            toy,
            passport.SMOKE_MEDIA_TYPE,
            passport.SMOKE_MEDIA_TYPE,
            attachment.content,
            attachment.annotations,
        )
    other = image.attach_referrer(
        at, toy, passport.SMOKE_MEDIA_TYPE, passport.SMOKE_MEDIA_TYPE, b"[]"
    )  # anybody who may push there may attach what is no verdict
    progress = Watching()
    context = Context(
        folders=Folders(data=tmp_path, cache=tmp_path, envs=tmp_path), progress=progress
    )
    summary = image_registry.show_image(context, str(at))
    assert [line.partition(": ")[0] for line in progress.messages] == [
        f"skipped the attachment {other.digest}"
    ]
    gone = {
        "digest": f"sha256:{'0' * 64}",
        "size": 3,
        "mediaType": oci_layout.MANIFEST,
        "artifactType": passport.SMOKE_MEDIA_TYPE,
    }
    text = image.attach_referrer(at, toy, passport.SMOKE_MEDIA_TYPE, "text/plain", b"no verdict")
    rows = [gone, {**gone, "digest": text.digest}, {**gone, "size": None}]
    listing = Line(
        host,
        lambda line, request, body: (
            "/referrers/" in request.path
            and answer(request, json.dumps({"manifests": rows}).encode())
        ),
    )
    with listing.open() as registry:
        image_registry.show_image(context, f"{registry}/lab/verdicts:1")
    assert len(progress.messages) == 4
    assert [
        (verdict["place"], verdict["verdict"], verdict["report"]) for verdict in summary.verdicts
    ] == [
        ("image", "pass", REPORT),
        ("prefix", "warn", REPORT),
    ]
    assert summary.labels["org.provision.lock"] == toy.lock_sha256
    assert summary.image_id == toy.image_id
    assert not passport.smoke_attachments({**passport_, "lock": {"sha256": "another"}}, toy)
    in_image["image_id"] = "sha256:another"
    assert [attachment.label for attachment in passport.smoke_attachments(passport_, toy)] == [
        "smoke (prefix): warn"
    ]
