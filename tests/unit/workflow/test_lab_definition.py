"""lab.yml: what it means, and that each mistake is named with its line."""

from __future__ import annotations

import dataclasses
import getpass
import re
from pathlib import Path

import pytest

from provision.core import settings
from provision.core.errors import InvalidSpec
from provision.core.paths import default_folders
from provision.core.schema import schema_document
from provision.core.yaml_text import parse_yaml
from provision.verbs.join.settings_text import joined_settings
from provision.workflow.context import Context
from provision.workflow.lab_definition import Cluster, LabEnvironment, Policy, read_lab
from provision.workflow.plan import BuildRequest, make_plan
from provision.workflow.smoke.request import SmokeRequest
from tests.paths import ROOT
from tests.progress import Recorder

DIGEST = "sha256:" + "0" * 64
WHOLE = f"""\
schema: 1
name: vision
contact: gpu-admins@vision.example
clusters:
  main: {{engine: slurm, nodes: gpu, login: "login[1-2]", account: ml}}
  desks: {{engine: ssh, nodes: desks}}
known_hosts: known_hosts
paths: {{data: "/scratch/{{user}}/provision", tmp: ~/tmp}}
mirrors: [pypi=https://mirror.vision.example/simple, "*=channels"]
smoke: [require_gpu=true, timeout=900]
facts: {{address: facts/facts.json, signers: facts_signers}}
environments:
  train:
  serve: {{image: "registry.vision.example/serve@{DIGEST}"}}
policy: {{groups: [ml], umask: "027", test_here: false, fail_on: warn}}
"""


def write(folder: Path, text: str) -> Path:
    (folder / "lab.yml").write_text(text)
    for name in ("known_hosts", "allowed_signers", "facts_signers"):
        (folder / name).touch()
    (folder / "secret").symlink_to("/etc/hostname")
    return folder


def test_everything_that_a_lab_can_say(tmp_path: Path) -> None:
    lab = read_lab(write(tmp_path, WHOLE))
    assert lab.clusters == (
        Cluster(name="main", engine="slurm", nodes="gpu", login=("login1", "login2"), account="ml"),
        Cluster(name="desks", engine="ssh", nodes="desks"),
    )
    assert lab.folders == {
        "data": Path("/scratch") / getpass.getuser() / "provision",
        "tmp": Path.home() / "tmp",
    }
    assert lab.known_hosts == tmp_path / "known_hosts"
    assert lab.mirrors == (
        "pypi=https://mirror.vision.example/simple/",
        f"*={(tmp_path / 'channels').as_uri()}/",
    )
    assert lab.smoke == ("require_gpu=true", "timeout=900")
    assert lab.environments == (
        LabEnvironment(name="train"),
        LabEnvironment(name="serve", image=f"registry.vision.example/serve@{DIGEST}"),
    )
    assert lab.policy == Policy(
        groups=("ml",),
        umask=0o27,
        test_here=False,
        fail_on="warn",
    )


def test_the_least_that_a_lab_must_say(tmp_path: Path) -> None:
    lab = read_lab(write(tmp_path, "schema: 1\nname: vision\ncontact: me\n"))
    assert (lab.clusters, lab.environments, lab.policy) == ((), (), Policy())
    assert lab.inventory is None


@pytest.mark.parametrize(
    "text,message",
    [
        ("schema: 2\nname: a\ncontact: me\n", r"lab.yml:1: schema: 1 was expected"),
        ("schema: 1\nname: a\n", '"contact" is a required property'),
        ("schema: 1\nname: a b\ncontact: me\n", r"lab.yml:2: name: \"a b\" is not a name of"),
        ("schema: 1\nname: a\ncontact: me\nquota: 3\n", "lab.yml:1: .*'quota' was unexpected"),
        (
            "schema: 1\nname: a\ncontact: me\nclusters:\n  m: {engine: pbs, nodes: x}\n",
            r"lab.yml:5: clusters.m.engine: \"pbs\" is not one of",
        ),
        (
            "schema: 1\nname: a\ncontact: me\nclusters:\n  m: {engine: ssh, nodes: x, login: 'a['}\n",
            r"lab.yml:5: clusters.m.login: `a\[` is not a node set",
        ),
        ("schema: 1\nname: a\ncontact: me\npaths: {data: scratch}\n", 'lab.yml:4: paths.data: "scratch" is not an absolute path'),
        (
            "schema: 1\nname: a\ncontact: me\npaths: {data: '/s/{group}'}\n",
            r"lab.yml:4: paths.data: .* \{user\} is the only name that may be in braces",
        ),
        (
            "schema: 1\nname: a\ncontact: me\nmirrors: [ok=https://m.invalid, ftp://m.invalid]\n",
            r"lab.yml:4: mirrors\[1\]: .* is not the URL of a mirror",
        ),
        (
            "schema: 1\nname: a\ncontact: me\nsmoke: [ranks=2, 'only=lunch']\n",
            r"lab.yml:4: smoke\[1\]: the setting only: invalid choice: 'lunch'",
        ),
        ("schema: 1\nname: a\ncontact: me\nsmoke: [strict]\n", "lab.yml:4: smoke"),
        (
            "schema: 1\nname: a\ncontact: me\nenvironments:\n  b: {from: image}\n",
            "lab.yml:5: .*from",
        ),
        (
            "schema: 1\nname: a\ncontact: me\nenvironments:\n  b: {image: 'r/b:latest'}\n",
            "lab.yml:5: environments.b.image: .* is not an image of a registry by digest",
        ),
        ("schema: 1\nname: a\ncontact: me\nenvironments:\n  b:\n  b:\n", "lab.yml:6: `b` is repeated"),
        ("schema: 1\nname: a\ncontact: me\nknown_hosts: keys\n", "lab.yml:4: known_hosts: there is no .*/keys"),
        ("schema: 1\nname: a\ncontact: me\nknown_hosts: secret\n", "lab.yml:4: known_hosts: .*/secret is not in this repository"),
        ("schema: 1\nname: ../../a\ncontact: me\n", 'lab.yml:2: name: "../../a" is not a name of letters'),
        ("schema: 1\nname: a\ncontact: me\nenvironments:\n  ../../b:\n", "lab.yml:.: environments: .*/b"),
        (
            "schema: 1\nname: a\ncontact: me\nclusters:\n"
            "  m: {engine: ssh, nodes: x, login: -oProxyCommand=id}\n",
            "lab.yml:5: clusters.m.login: `-oProxyCommand=id` .* cannot be a host name",
        ),
        (
            "schema: 1\nname: a\ncontact: me\npaths: {data: '/s/{user:>9999999999}'}\n",
            r"lab.yml:4: paths.data: .* \{user\} is the only name that may be in braces",
        ),
        (
            'schema: 1\nname: a\ncontact: me\npaths: {data: "/s/\\0"}\n',
            "lab.yml:4: paths.data: .* has a character that no folder's name should have",
        ),
        ("schema: [", "lab.yml.* is not YAML"),
        ("- a\n", "lab.yml:1: the top level"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        read_lab(write(tmp_path, text))


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    text = "schema: 1\nname: a b\ncontact: me\npolicy: {umask: 27}\n"
    with pytest.raises(InvalidSpec, match=r"lab.yml:2: .*\n.*lab.yml:4: policy.umask"):
        read_lab(write(tmp_path, text))


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "onboarding.md").read_text()
    [text] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    lab = read_lab(write(tmp_path, text.replace("sha256:...", DIGEST)))
    assert [cluster.name for cluster in lab.clusters] == ["main", "desks"]
    keys = schema_document("lab")["properties"]
    assert set(parse_yaml(text)) == set(keys)
    assert set(parse_yaml(text)["policy"]) == set(keys["policy"]["properties"])


def test_a_folder_without_lab_yml(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"There is no .*lab\.yml"):
        read_lab(tmp_path)


def test_the_settings_of_a_lab_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = read_lab(write(tmp_path, WHOLE))
    text = joined_settings(lab)
    path = tmp_path / "joined.yml"
    path.write_text(text)
    monkeypatch.setenv(settings.CONFIG, str(path))
    assert settings.folder_settings() == {**lab.folders, "envs": tmp_path / "envs"}
    assert settings.facts_settings() == {
        "address": str(tmp_path / "facts" / "facts.json"),
        "signers": str(tmp_path / "facts_signers"),
    }
    names = [setting.name for setting in settings.mirror_settings([])]
    assert names == ["pypi", "*"]
    assert parse_yaml(text)["mirrors"] == list(lab.mirrors)
    assert settings.smoke_settings() == lab.smoke


def test_smoke_settings_of_a_lab_are_below_those_of_spec_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = tmp_path / "joined.yml"
    joined.write_text("smoke: [strict=true, timeout=900, profile=full, ranks=3]\n")
    monkeypatch.setenv(settings.CONFIG, str(joined))
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "spec.yml").write_text(
        'torch: "2.3"\ncuda: "12.1"\npython_from: channel\nsmoke: [strict=false, timeout=60]\n'
    )
    context = Context(folders=default_folders(tmp_path), progress=Recorder())
    request = BuildRequest(name="lab", options={"smoke": ("timeout=30",)})
    test = make_plan(context, dataclasses.replace(request, smoke_request=SmokeRequest(ranks=4)))
    chosen = test.smoke_request
    assert (chosen.strict, chosen.timeout_s, chosen.profile, chosen.ranks) == (False, 30, "full", 4)
