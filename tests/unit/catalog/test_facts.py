"""The facts in use: shipped, a user's, a lab's; and getting newer ones."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import facts_json
import pytest
from click.testing import CliRunner, Result

from provision import catalog
from provision.catalog import facts
from provision.cli.main import cli
from provision.core import notices
from provision.core.errors import InvalidSpec
from provision.core.paths import FACTS
from tests.faulty import served

SHIPPED = (catalog.DATA / FACTS).read_text()
NAMESPACE = "provision-facts"
LAB = """\
schema: 1
releases:
  2.15.0:
    wheels:
      lab1: {cuda: "13.5", source: built by the lab}
gpus:
- {capability: "9.0", products: [LAB9000], source: our data sheet}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folders, with no facts in them."""
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PROVISION_CONFIG", str(tmp_path / "settings.yml"))
    (tmp_path / "settings.yml").write_text("{}")
    monkeypatch.chdir(tmp_path)
    facts.forget()
    yield tmp_path
    monkeypatch.undo()
    facts.forget()


def of(date: str = "2027-01-31", **changes: Any) -> str:
    return json.dumps({**json.loads(SHIPPED), "date": date, **changes})


def run(*arguments: object) -> Result:
    facts.forget()
    return CliRunner().invoke(cli, ["facts", *map(str, arguments)])


def update(path: Path, *arguments: object) -> Result:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return run("update", f"{path}#sha256={sha256}", *arguments)


def in_use() -> tuple[str, list[str]]:
    """The date of the facts in use, and what was warned of."""
    warnings: list[str] = []
    notices.listen(warnings.append)
    facts.forget()
    return catalog.edition().date, warnings


def test_compiled_facts_say_what_the_files_say() -> None:
    """`python tools/facts_json.py --write` compiles them."""
    assert facts_json.compiled() == SHIPPED
    facts.parse_document(SHIPPED, "facts.json")


def test_user_s_facts_replace_the_shipped_ones(home: Path) -> None:
    document = json.loads(of())
    document["tables"]["releases"]["2.16.0"] = document["tables"]["releases"]["2.15.0"]
    path = home / "new.json"
    path.write_text(json.dumps(document))
    planned = update(path, "--dry-run", "--json")
    assert planned.exit_code == 0, planned.output
    assert json.loads(planned.stdout)["added"] == ["2.16.0"]
    assert in_use() == (json.loads(SHIPPED)["date"], [])
    assert update(path).exit_code == 0
    assert in_use() == ("2027-01-31", [])
    assert list(catalog.releases())[-1] == "2.16.0"
    assert "2027-01-31" in CliRunner().invoke(cli, ["--version"]).output
    assert run("check").exit_code == 0


def test_older_facts_count_only_on_request(home: Path) -> None:
    path = home / "old.json"
    path.write_text(of("2020-01-01"))
    assert update(path).exit_code == 6
    assert update(path, "--allow-older").exit_code == 0
    assert in_use() == ("2020-01-01", [])
    # An upgrade of provision brings newer ones than those that were fetched before.
    user = json.loads((home / "data" / FACTS).read_text())
    (home / "data" / FACTS).write_text(json.dumps({**user, "allow_older": False}))
    assert in_use() == (json.loads(SHIPPED)["date"], [])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"schema": 0}',
        '{"schema": 1}',
        '{"schema": 1, "document": "{}", "sha256": "00"}',
        json.dumps({"schema": 0, "document": '{"schema": 1}', "sha256": "00"}),
        json.dumps(
            {
                "schema": 1,
                "document": '{"schema": 1, "tables": {}}',
                "sha256": hashlib.sha256(b'{"schema": 1, "tables": {}}').hexdigest(),
            }
        ),
        "\0",
    ],
)  # fmt: skip
def test_unusable_file_is_named_and_replaced(home: Path, content: str) -> None:
    path = home / "data" / FACTS
    path.parent.mkdir()
    path.write_text(content)
    date, [warning] = in_use()
    assert date == json.loads(SHIPPED)["date"]
    assert str(path) in warning and "provision facts update" in warning
    assert run("check").exit_code == 1
    (home / "same.json").write_text(SHIPPED)
    assert update(home / "same.json").exit_code == 0
    assert in_use() == (date, [])


@pytest.mark.parametrize(
    "content,problem",
    [
        (b"<html>", "not JSON"),
        (b"\xff", "UTF-8"),
        (of(schema=2).encode(), "Upgrade provision"),
        (of(schema=0).encode(), "schema 0"),
        (of(date="soon").encode(), "date"),
        (of(tables={}).encode(), "tables"),
        (SHIPPED.replace('"sm_90"', '"90"').encode(), "architectures"),
        (SHIPPED.replace('"numpy<2"', '"numpy @ https://evil"').encode(), "no address"),
        (SHIPPED.replace('"source": "PyPI metadata torch==2.15.0"', '"source": ""').encode(), ""),
        (SHIPPED.replace('"torch": "<2.3"', '"torch": "before 2.3"').encode(), "specifier"),
    ],
)
def test_invalid_facts_are_refused(home: Path, content: bytes, problem: str) -> None:
    path = home / "facts.json"
    path.write_bytes(content)
    result = update(path)
    assert (result.exit_code, problem in result.stderr) == (7, True), result.output
    assert not (home / "data" / FACTS).exists()
    assert run("check", path).exit_code == 1


def test_wrong_hash_is_refused(home: Path) -> None:
    path = home / "facts.json"
    path.write_text(of())
    assert run("update", f"{path}#sha256={'0' * 64}").exit_code == 7


@pytest.mark.needs("ssh-keygen")
def test_signature_of_an_allowed_signer(home: Path) -> None:
    path, settings = home / "served" / "facts.json", home / "settings.yml"
    path.parent.mkdir()
    path.write_text(of())
    for name in ("lab", "stranger"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)]
        subprocess.run(command, check=True)
    (home / "signers").write_text(f"facts@lab {(home / 'lab.pub').read_text()}")

    def sign(key: str, namespace: str = NAMESPACE) -> None:
        Path(f"{path}.sig").unlink(missing_ok=True)
        command = [
            "ssh-keygen",
            "-q",
            "-Y",
            "sign",
            "-n",
            namespace,
            "-f",
            str(home / key),
            str(path),
        ]
        subprocess.run(command, check=True, capture_output=True)

    with served(path.parent) as server:
        settings.write_text(
            f"facts: {{address: '{server.url}/facts.json', signers: {home / 'signers'}}}"
        )
        assert run("update").exit_code == 7  # no signature
        sign("stranger")
        refused = run("update")
        assert refused.exit_code == 7
        assert "The signature does not count: no signer that" in refused.output
        sign("lab", "file")
        assert run("update").exit_code == 7
        sign("lab")
        path.write_text(of("2027-02-01"))
        assert run("update").exit_code == 7  # of other bytes
        sign("lab")
        assert run("update").exit_code == 0
        assert in_use() == ("2027-02-01", [])
        assert catalog.edition().verified == "signature of facts@lab"
        server.fault("facts.json", 503)
        assert run("update", "--json").exit_code == 8


def test_origin_is_a_whole_path(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = of("2027-02-01")
    (home / "facts.json").write_text(text)
    monkeypatch.chdir(home)
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert run("update", f"facts.json#sha256={digest}").exit_code == 0
    assert catalog.edition().origin == str(home / "facts.json")


def test_address_without_proof_is_refused(home: Path) -> None:
    (home / "facts.json").write_text(of())
    assert run("update").exit_code == 3
    assert run("update", "facts.json").exit_code == 7
    assert run("update", "absent.json").exit_code == 8
    assert run("update", "oci://nowhere").exit_code == 3


def test_facts_are_written_to_be_served(home: Path) -> None:
    assert run("show", "-o", home / "out.json").exit_code == 0
    assert (home / "out.json").read_text() == SHIPPED


# A lab's own facts


def test_lab_adds_facts(home: Path) -> None:
    (home / "facts.yml").write_text(LAB)
    facts.forget()
    assert catalog.edition().lab_file is None  # without lab.yml, the file is somebody else's
    (home / "lab.yml").touch()
    facts.forget()
    assert catalog.edition().lab_file == home / "facts.yml"
    build = next(build for build in catalog.releases()["2.15.0"].wheels if build.tag == "lab1")
    assert (build.cuda, build.nccl, build.source) == ("13.5", None, "built by the lab")
    assert catalog.find_gpu("lab9000").architecture == "sm_90"
    result = run("show")
    assert "the lab's own" in result.stdout and "facts.yml" in result.stdout
    assert run("check").exit_code == 0


def test_lab_has_a_nightly(home: Path) -> None:
    release = json.loads(SHIPPED)["tables"]["releases"]["2.15.0"]
    build = {**release["wheels"]["cu132"], "on_pypi": False}
    row = {"index_default": release["index_default"], "wheels": {"cu132": build}}
    (home / "lab.yml").touch()
    (home / "facts.yml").write_text(
        json.dumps({"schema": 1, "releases": {"2.16.0.dev20261101": row}})
    )
    facts.forget()
    nightly = catalog.matching_releases("2.16.0.dev20261101")
    assert [release.version for release in nightly] == ["2.16.0.dev20261101"]
    assert [release.version for release in catalog.matching_releases("latest")] == ["2.15.0"]
    options = ["--torch", "2.16.0.dev20261101", "--cuda", "13.2", "--json"]
    explained = CliRunner().invoke(cli, ["matrix", "explain", *options])
    pins = [pin["requirement"] for pin in json.loads(explained.stdout)["pins"]]
    assert "torch==2.16.0.dev20261101+cu132" in pins and "numpy" in pins


@pytest.mark.parametrize(
    "text,problem",
    [
        ("schema: 1\nreleases: {2.15.0: {wheels: {lab1: {cuda: '13.5'}}}}", "without a source"),
        ("schema: 1\ngpus:\n- {capability: nine, products: [X], source: s}", "compute capability"),
        ("schema: 1\nreleases: {2.15.0: {wheels: {lab1: {cudda: '1', source: s}}}}", "cudda"),
        ("schema: 1\nreleases: {'2.16.0': {wheels: {}}}", "linux-64"),
        ("schema: 1\nrelease: {}", "release"),
        ("schema: 2", "schema"),
        ("[", "not YAML"),
        ("", "object"),
    ],
)
def test_wrong_lab_facts_are_refused(home: Path, text: str, problem: str) -> None:
    (home / "lab.yml").touch()
    (home / "facts.yml").write_text(text)
    facts.forget()
    with pytest.raises(InvalidSpec, match=problem):
        catalog.releases()
    assert run("check").exit_code == 1
