"""A first lab.yml from what an administrator's machine says, and checks of one."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision import render
from provision.adapters.conda.condarc import condarc_files, condarc_mirrors
from provision.adapters.slurm.nodes import parse_nodes
from provision.cli.main import cli
from provision.cluster.inventory import read_inventory
from provision.verbs.lab.draft import (
    MachineFacts,
    inventory_values,
    known_hosts_text,
    lab_values,
    node_groups,
)
from provision.workflow.lab_definition import Policy, read_lab
from tests.paths import ROOT

EXAMPLE = ROOT / "examples" / "lab"
# sinfo's columns: name, host, address, state, features, GRES, CPUs, memory, partition, reason.
SINFO = """\
n1|n1|10.0.0.1|idle|nvlink|gpu:a100:4|64|512000|gpu|none
n2|n2|10.0.0.2|idle|nvlink|gpu:a100:4|64|512000|gpu|none
n3|n3|10.0.0.3|idle|(null)|gpu:v100:2|32|256000|gpu|none
n3|n3|10.0.0.3|idle|(null)|gpu:v100:2|32|256000|old.gpus|none
c1|c1|10.0.0.4|idle|(null)|(null)|16|64000|cpu|none
"""
FACTS = MachineFacts(
    host="login1.vision.example",
    nodes=tuple(parse_nodes(SINFO)),
    mirrors=(("*", "https://me:secret@mirror.vision.example/t/token/conda", "conda's file"),),
    scratch=(Path("/scratch"),),
    keys=("ssh-rsa BBBB root@x", "ssh-ed25519 AAAA root@x"),
)


def write(folder: Path, facts: MachineFacts, environments: list[str]) -> str:
    text = render.render_lab(lab_values(facts, "vision lab", "the admins: room 3", environments))
    (folder / "lab.yml").write_text(text)
    (folder / "nodes.yml").write_text(render.render_inventory(inventory_values(facts)))
    (folder / "known_hosts").write_text(known_hosts_text(facts))
    return text


def test_a_draft_from_a_slurm_login_host(tmp_path: Path) -> None:
    text = write(tmp_path, FACTS, ["train"])
    lab = read_lab(tmp_path)
    assert (lab.name, lab.contact) == ("vision-lab", "the admins: room 3")
    [cluster] = lab.clusters
    assert (cluster.engine, cluster.nodes) == ("slurm", "gpu")
    assert cluster.login == ("login1.vision.example",)
    assert lab.mirrors == ("*=https://mirror.vision.example/conda/",)
    assert "secret" not in text and "token" not in text
    assert "conda's file, without its credential" in text
    assert lab.folders["data"].parts[:2] == ("/", "scratch")
    assert [environment.name for environment in lab.environments] == ["train"]
    inventory = (tmp_path / "nodes.yml").read_text()
    assert "# n[1-2]: 4 x a100, 64 cores, features nvlink" in inventory
    assert dict(read_inventory(tmp_path / "nodes.yml").groups) == {
        "gpu": {"from": "slurm", "partition": "gpu"},
        "old.gpus": {"from": "slurm", "partition": "old.gpus"},
        "cpu": {"from": "slurm", "partition": "cpu"},
    }
    names = "login1.vision.example,login1"
    assert known_hosts_text(FACTS) == f"{names} ssh-ed25519 AAAA\n{names} ssh-rsa BBBB\n"


def test_a_draft_from_a_machine_that_says_nothing(tmp_path: Path) -> None:
    """Every key that is commented out is valid where its comment sign is taken away."""
    text = write(tmp_path, MachineFacts(host="desk1"), [])
    lab = read_lab(tmp_path)
    assert (lab.clusters, lab.environments, lab.policy) == ((), (), Policy())
    uncommented = []
    for line in text.splitlines():
        is_key = line.startswith("# ") and (line[2:3].islower() or line[2:4] == "  ")
        line = line.replace("sha256:...", f"sha256:{'0' * 64}")
        uncommented.append(line[2:] if is_key and not line.startswith("# checks") else line)
    (tmp_path / "lab.yml").write_text("\n".join(uncommented) + "\n")
    whole = read_lab(tmp_path)
    assert whole.clusters and whole.environments and whole.mirrors and whole.folders
    assert whole.policy.groups == ("ml",)


def test_groups_of_a_cluster() -> None:
    assert [group.kinds for group in node_groups(FACTS.nodes)] == [
        ("n[1-2]: 4 x a100, 64 cores, features nvlink", "n3: 2 x v100, 32 cores"),
        ("n3: 2 x v100, 32 cores",),
        ("c1: no GPU, 16 cores",),
    ]


def test_mirrors_of_condas_configuration(tmp_path: Path) -> None:
    (tmp_path / ".condarc").write_text(
        "channel_alias: https://user.invalid/conda\ncustom_channels: {ml: https://m.invalid/c/}\n"
    )
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / ".condarc").write_text("channel_alias: https://later.invalid\n")
    (tmp_path / "own").write_text("custom_channels: {ml: https://own.invalid}\nchannels: [x]\n")
    (tmp_path / "broken").write_text("{")
    files = condarc_files({"CONDARC": str(tmp_path / "own")}, tmp_path)
    assert condarc_mirrors([tmp_path / "broken", *files]) == {
        "ml": "https://own.invalid/ml",
        "*": "https://user.invalid/conda",
    }


# `provision lab check`


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the sample lab, on a machine without Slurm's commands."""
    shutil.copytree(EXAMPLE, tmp_path / "lab")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "lab"


def check(*words: str) -> tuple[Result, dict[str, str]]:
    result = CliRunner().invoke(cli, ["lab", "check", *words, "--json"])
    rows = json.loads(result.stdout).get("checks", [])
    return result, {row["subject"]: f"{row['verdict']}: {row['message']}" for row in rows}


def test_the_sample_labs_workflow_is_what_its_first_line_makes(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lab)
    workflow = lab / ".github" / "workflows" / "provision.yml"
    first_line = workflow.read_text().splitlines()[0]
    words = shlex.split(first_line.partition("remake with: provision ")[2])
    result = CliRunner().invoke(cli, words)
    assert result.output.endswith("unchanged: .github/workflows/provision.yml\n"), result.output
    jobs = CliRunner().invoke(cli, [*words[: words.index("--output")], "--jobs"]).output
    assert "A100" in jobs and "no source says" not in jobs


def test_the_sample_lab_is_valid(lab: Path) -> None:
    result, rows = check("lab")
    assert result.exit_code == 0, result.output
    assert rows == {
        "lab.yml": "pass: vision: every key is valid",
        "clusters.main.nodes": "unknown: not asked: there is no sinfo on this machine",
        "clusters.desks.nodes": "pass: desks: desk[1-2]",
        "clusters.main.login": "unknown: login[1-2].vision.example: not contacted (--probe logs in)",
        "environments.train": "pass: torch 2.7.0, 153 packages for linux-64",
        "runners.yml": "pass: runners: hosted, a100",
    }


@pytest.mark.parametrize(
    "file,before,after,subject,message",
    [
        ("nodes.yml", "gpu:", "gpus:", "clusters.main.nodes", "`gpu` is not a group in nodes.yml"),
        ("nodes.yml", "from: slurm, partition: gpu", "from: ssh, hosts: n1", "clusters.main.nodes",
         "is from ssh, not slurm"),
        ("nodes.yml", "schema: 1", "schema: 3", "nodes.yml", "nodes.yml:2: schema"),
        ("lab.yml", "nodes: desks", "nodes: 'desk['", "clusters.desks.nodes", "is not a node set"),
        ("lab.yml", "  train:", "  tune:", "environments.tune", "There is no environment `tune`"),
        ("envs/train/spec.yml", "0.22.0", "0.21.0", "environments.train",
         "its lock is not of its spec.yml"),
        ("envs/train/spec.yml", 'cuda: "12.6"', 'cuda: "13.9"', "environments.train",
         "There is no build"),
        ("envs/train/conda-lock.yml", "provision_portable: 'true'", "provision_portable: 'false'",
         "environments.train", "its lock is not portable"),
        ("runners.yml", "gpus: 2", "gpus: two", "runners.yml", "runners.yml:10"),
        ("lab.yml", "  train:", f"  tune: {{from: image, image: '-v/:/h@sha256:{'0' * 64}'}}",
         "environments.tune", "is not a reference to a registry"),
    ],
)  # fmt: skip
def test_a_mistake_fails_the_check(
    lab: Path, file: str, before: str, after: str, subject: str, message: str
) -> None:
    text = (lab / file).read_text()
    (lab / file).write_text(text.replace(before, after))
    result, rows = check("lab")
    assert result.exit_code == 1
    assert rows[subject].startswith("fail: ")
    assert message in rows[subject]


@pytest.mark.parametrize(
    "file,before,after,advice",
    [
        ("envs/train/conda-lock.yml", "provision_python_from: channel",
         "provision_python_from: host", "where a conda channel answers: provision lock train"),
        ("envs/train/conda-lock.yml", "x", "x", "by a git address"),
        ("lab.yml", "engine: slurm", "engine: kubernetes", "Or write k8s:SELECTOR."),
    ],
)  # fmt: skip
def test_what_is_advised_works(lab: Path, file: str, before: str, after: str, advice: str) -> None:
    lock = lab / "envs" / "train" / "conda-lock.yml"
    lock.write_text(lock.read_text().replace("portable: 'true'", "portable: 'false'"))
    (lab / "lab.yml").write_text((lab / "lab.yml").read_text().replace("nodes: gpu", "nodes: gpus"))
    spec = lock.with_name("spec.yml")
    if after.endswith("host"):
        spec.write_text(spec.read_text().replace("python_from: channel\n", ""))
    assert before in (lab / file).read_text()
    (lab / file).write_text((lab / file).read_text().replace(before, after))
    checks = json.loads(check("lab")[0].stdout)["checks"]
    assert any(advice in row["advice"] for row in checks)


def test_a_malformed_lab_yml_is_an_error(lab: Path) -> None:
    (lab / "lab.yml").write_text("schema: 1\nname: vision\n")
    result, _ = check("lab")
    assert result.exit_code == 3


def test_init_writes_what_check_accepts_and_keeps_what_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    preview = runner.invoke(cli, ["lab", "init", "--dry-run"])
    assert preview.exit_code == 0 and "schema: 1" in preview.stdout
    assert not (tmp_path / "lab.yml").exists()
    result = runner.invoke(cli, ["lab", "init", "--name", "vision"])
    assert result.exit_code == 0, result.output
    assert read_lab(tmp_path).name == "vision"
    assert check(".")[0].exit_code == 0
    again = runner.invoke(cli, ["lab", "init"])
    assert again.exit_code == 12
