"""Signatures and signed statements in a real registry, by cosign's rules, checked by openssl and skopeo."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner, Result

from provision.adapters import openssl
from provision.cli.main import cli
from provision.core.errors import IntegrityError, InvalidSpec
from provision.core.paths import default_folders
from provision.core.types import Image
from provision.image import oci_layout
from provision.image import registry as registries
from provision.image.registry.client import RegistryClient
from provision.image.registry.push import put_bytes, put_manifest
from provision_runtime.comm.addresses import free_port
from tests.integration.registries import host, make_image, push
from tests.results import parse_result
from tests.unit.image.test_image_sbom import folder

__all__ = ["folder", "host"]

pytestmark = [pytest.mark.needs("docker-registry"), pytest.mark.needs("openssl")]


def make_key(path: Path, *options: str) -> tuple[Path, Path]:
    """A private key and its public one."""
    public = path.with_suffix(".pub")
    kind = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    subprocess.run(["openssl", "genpkey", *(options or kind), "-out", path], check=True)
    command = ["openssl", "pkey", "-passin", "pass:lab", "-pubout"]
    subprocess.run([*command, "-in", path, "-out", public], check=True)
    return path, public


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    return make_key(tmp_path / "lab.key")


@pytest.fixture
def toy(tmp_path: Path) -> Image:
    return make_image(tmp_path / "toy")


def get(host: str, path: str) -> bytes:
    request = Request(f"http://{host}/v2/{path}", headers={"Accept": oci_layout.MANIFEST})
    with urlopen(request) as response:
        return bytes(response.read())


def verify(place: str, key: Path, *options: str) -> Result:
    return CliRunner().invoke(cli, ["image", "verify", place, "--key", str(key), *options])


def test_push_signs_and_verify_reads_it(
    host: str,
    folder: Path,
    keys: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private, public = keys
    place = f"{host}/lab/signed:1"
    command = ["image", "push", "lab", place, "--compression", "gzip"]
    for options in ((), ("--sign", str(private)), ("--sign", str(private))):
        if options:
            refused = verify(place, public)
            pushed = CliRunner().invoke(cli, [*command, *options])
            assert pushed.exit_code == 0, pushed.output
        else:
            assert CliRunner().invoke(cli, command).exit_code == 0
            refused = verify(place, public)
            assert (refused.exit_code, "has no signature by this key" in refused.stderr) == (
                7,
                True,
            )
    result = verify(place, public, "--json")
    assert result.exit_code == 0, result.output
    verified = parse_result(result.stdout)
    digest = verified["signed_digest"]
    predicates = {row["predicateType"]: row["predicate"] for row in verified["statements"]}
    assert predicates.keys() == {"https://cyclonedx.org/bom", "https://slsa.dev/provenance/v1"}
    definition = predicates["https://slsa.dev/provenance/v1"]["buildDefinition"]
    lock = next(row for row in definition["resolvedDependencies"] if row["name"] == "lock")
    text = (folder / "conda-lock.yml").read_bytes()
    assert lock["digest"]["sha256"] == hashlib.sha256(text).hexdigest()
    assert all(
        row.get("digest") or row["name"] == "base" for row in definition["resolvedDependencies"]
    )
    # What was attached without a key stays, unsigned. The second push with the key added nothing, and openssl alone accepts what is there.
    manifest = json.loads(get(host, f"lab/signed/manifests/{digest.replace(':', '-')}.sig"))
    (layer,) = manifest["layers"]
    payload = tmp_path / "payload"
    payload.write_bytes(get(host, f"lab/signed/blobs/{layer['digest']}"))
    signature = tmp_path / "signature"
    signature.write_bytes(
        base64.b64decode(layer["annotations"]["dev.cosignproject.cosign/signature"])
    )
    check = ["openssl", "dgst", "-sha256", "-verify", str(public)]
    check += ["-signature", str(signature), str(payload)]
    assert subprocess.run(check, stdout=subprocess.PIPE).stdout == b"Verified OK\n"
    assert json.loads(payload.read_bytes())["critical"] == {
        "identity": {"docker-reference": place},
        "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature",
    }
    _, other = make_key(tmp_path / "other.key")
    assert verify(place, other).exit_code == 7


@pytest.mark.exhaustive
def test_a_signature_of_another_image_does_not_count(
    host: str, toy: Image, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    """Somebody who may push copies the owner's signature to an image of his own."""
    at = registries.parse_registry_reference(f"{host}/lab/moved:1")
    push(toy, str(at))
    key = openssl.read_private_key(keys[0], "")
    registries.sign_image(at, toy.manifest_digest, key)
    statement = registries.statement(at, toy.manifest_digest, "https://lab.test/note", {"note": 1})
    registries.attach_statement(at, toy.manifest_digest, statement, key)
    assert registries.signed_statements(at, toy.manifest_digest, key.public) == [statement]
    forged = make_image(tmp_path / "forged", small=b"forged")
    push(forged, str(at))
    for suffix in (".sig", ".att"):
        content = get(host, f"lab/moved/manifests/{toy.manifest_digest.replace(':', '-')}{suffix}")
        tag = forged.manifest_digest.replace(":", "-") + suffix
        with RegistryClient(at) as client:
            put_manifest(client, tag, oci_layout.sha256_digest(content), content)
    with pytest.raises(IntegrityError, match="has no signature by this key"):
        registries.verify_image(at, (forged.manifest_digest,), key.public)
    assert registries.signed_statements(at, forged.manifest_digest, key.public) == []


@pytest.mark.parametrize(
    "content,annotations",
    [
        (b"no json", {}),
        (b"{}", {"dev.cosignproject.cosign/signature": "no base64!"}),
        (b'{"payload": 1}', None),
    ],
)
def test_what_others_put_there_hides_no_signature(
    host: str, toy: Image, keys: tuple[Path, Path], content: bytes, annotations: Any
) -> None:
    at = registries.parse_registry_reference(f"{host}/lab/noise-{len(content)}:1")
    push(toy, str(at))
    with RegistryClient(at) as client:
        for kind in ("dev.cosign.simplesigning.v1", "dsse.envelope.v1", "lab.other"):
            row = put_bytes(client, content, f"application/vnd.{kind}+json").row
            config = put_bytes(client, b"{}", oci_layout.CONFIG).row
            rows = [{**row, "annotations": annotations}]
            document = {"config": config, "layers": rows, "schemaVersion": 2}
            manifest = oci_layout.canonical({**document, "mediaType": oci_layout.MANIFEST})
            suffix = ".att" if "dsse" in kind else ".sig"
            tag = toy.manifest_digest.replace(":", "-") + suffix
            put_manifest(client, tag, oci_layout.sha256_digest(manifest), manifest)
    key = openssl.read_private_key(keys[0], "")
    registries.sign_image(at, toy.manifest_digest, key)
    statement = registries.statement(at, toy.manifest_digest, "https://lab.test/note", {})
    registries.attach_statement(at, toy.manifest_digest, statement, key)
    assert registries.verify_image(at, (toy.manifest_digest,), key.public) == toy.manifest_digest
    assert registries.signed_statements(at, toy.manifest_digest, key.public) == [statement]


@pytest.mark.needs("cosign")
def test_cosign_reads_our_signatures_and_we_read_its(
    host: str, toy: Image, keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a transparency log, which needs sigstore's services."""

    def cosign(*command: str | Path) -> int:
        return subprocess.run(
            ["cosign", *command], cwd=tmp_path, stdout=subprocess.DEVNULL
        ).returncode

    for name, value in (("HOME", str(tmp_path)), ("COSIGN_PASSWORD", "")):
        monkeypatch.setenv(name, value)
    at = registries.parse_registry_reference(f"{host}/lab/cosign:1")
    push(toy, str(at))
    key = openssl.read_private_key(keys[0], "")
    registries.sign_image(at, toy.manifest_digest, key)
    note = "https://lab.test/note"
    statement = registries.statement(at, toy.manifest_digest, note, {"note": 1})
    registries.attach_statement(at, toy.manifest_digest, statement, key)
    _, other = make_key(tmp_path / "other.key")
    for public, is_accepted in ((keys[1], True), (other, False)):
        options = ("--key", public, "--insecure-ignore-tlog")
        assert (cosign("verify", *options, str(at)) == 0) == is_accepted
        verified = cosign("verify-attestation", *options, "--type", note, str(at))
        assert (verified == 0) == is_accepted
    assert cosign("generate-key-pair") == 0
    theirs = openssl.read_public_key(tmp_path / "cosign.pub")
    with pytest.raises(IntegrityError, match="has no signature by this key"):
        registries.verify_image(at, (toy.manifest_digest,), theirs)
    (tmp_path / "predicate").write_text('{"note": 2}')
    place = f"{host}/lab/cosign@{toy.manifest_digest}"
    flags = ["--yes", "--key", "cosign.key", "--new-bundle-format=false"]
    flags += ["--use-signing-config=false", "--tlog-upload=false"]
    assert cosign("sign", *flags, place) == 0
    assert registries.verify_image(at, (toy.manifest_digest,), theirs) == toy.manifest_digest
    command = ("attest", *flags, "--type", note, "--predicate", "predicate", place)
    assert cosign(*command) == 0
    (signed,) = registries.signed_statements(at, toy.manifest_digest, theirs)
    assert (signed["predicateType"], signed["predicate"]) == (note, {"note": 2})


def test_keys(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    rsa = make_key(tmp_path / "rsa.key", "-algorithm", "RSA", "-aes256", "-pass", "pass:lab")[0]
    key = openssl.read_private_key(rsa, "lab")
    assert openssl.has_passphrase(rsa) and not openssl.has_passphrase(private)
    signature = openssl.sign(b"content", key)
    assert openssl.is_signature(signature, b"content", key.public)
    assert not openssl.is_signature(signature, b"other", key.public)
    edwards = make_key(tmp_path / "ed.key", "-algorithm", "ED25519")
    cosign = tmp_path / "cosign.key"
    cosign.write_text("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nx\n")
    for path, passphrase in ((rsa, "wrong"), (edwards[0], ""), (cosign, ""), (public, "")):
        with pytest.raises(InvalidSpec) as caught:
            openssl.read_private_key(path, passphrase)
        assert "cosign sign --new-bundle-format=false" in str(caught.value.advice)
    for path in (private, edwards[1], cosign):
        with pytest.raises(InvalidSpec):
            openssl.read_public_key(path)


def test_a_registry_is_asked_before_layers_are_compressed(folder: Path, tmp_path: Path) -> None:
    place = f"127.0.0.1:{free_port()}/lab/toy:1"
    result = CliRunner().invoke(cli, ["image", "push", "lab", place, "--compression", "gzip"])
    assert (result.exit_code, "refuses connections" in result.stderr) == (8, True), result.stderr
    assert not default_folders().packed.exists()


def test_a_passphrase_that_cannot_be_asked_for(
    host: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(openssl.PASSPHRASE, raising=False)
    key, _ = make_key(tmp_path / "lab.key", "-algorithm", "RSA", "-aes256", "-pass", "pass:lab")
    command = ["image", "push", "lab", f"{host}/lab/toy:1", "--sign", str(key)]
    result = CliRunner().invoke(cli, command)
    assert (result.exit_code, openssl.PASSPHRASE in result.stderr) == (3, True), result.stderr
    monkeypatch.setenv(openssl.PASSPHRASE, "wrong")
    result = CliRunner().invoke(cli, command)
    assert (result.exit_code, "with this passphrase" in result.stderr) == (3, True), result.stderr
