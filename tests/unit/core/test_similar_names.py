"""A mistyped name is answered with the one that is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from provision.core.paths import default_folders
from provision.core.similar_names import did_you_mean
from tests.described_environments import described_environments

SPEC = 'torch: "2.3"\ncuda: "12.1"\npython: "3.11"\npython_from: channel\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environments `lab` and `other`, and nothing installed."""
    described_environments(tmp_path, monkeypatch, ("lab", "other"), SPEC)
    return tmp_path


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words))
    return result.exit_code, result.output


def test_the_most_similar_name_is_asked_for() -> None:
    names = ["torch2.3-cuda12.1-py311", "torch2.6-cuda12.6-py311", "lab"]
    assert did_you_mean("torch2.6-cuda12.6", names) == "Did you mean `torch2.6-cuda12.6-py311`? "
    assert did_you_mean("lba", names) == "Did you mean `lab`? "
    assert did_you_mean("lab", names) == ""
    assert did_you_mean("xyz", names) == ""
    assert did_you_mean("lab", []) == ""


@pytest.mark.parametrize(
    "words",
    [
        ("build", "lba", "--dry-run"),
        ("lock", "lba"),
        ("render", "lba"),
        ("env", "create", "lba"),
        ("env", "diff", "lba"),
        ("env", "remove", "lba"),
        ("image", "push", "lba", "host/lba:1"),
        ("image", "contract", "lba"),
        ("smoke", "lba"),
        ("passport", "show", "lba"),
        ("pack", "lba"),
        ("lock", "verify", "lba"),
        ("add", "lba", "einops"),
        ("matrix", "explain", "lba"),
    ],
    ids=" ".join,
)
def test_verbs_ask_for_the_environment_that_is_meant(words: tuple[str, ...]) -> None:
    exit_code, output = invoke(*words)
    assert exit_code in (3, 9), output
    assert "Did you mean `lab`?" in output


def test_verbs_for_installed_environments_ask_for_one_of_them(folder: Path) -> None:
    (default_folders().prefixes / "train").mkdir(parents=True)
    assert "Did you mean `train`?" in invoke("run", "tran", "--", "true")[1]
    (default_folders().packs / "train").mkdir(parents=True)
    assert "Did you mean `train`?" in invoke("ship", "tran", "--on", "localhost")[1]


@pytest.mark.needs("ssh")
def test_verbs_over_nodes_ask_too() -> None:
    for words in (("drift", "lba"), ("rollback", "lba")):
        exit_code, output = invoke(*words, "--on", "nonexistent.invalid")
        assert exit_code == 3
        assert "There is no environment `lba` here. Did you mean `lab`?" in output
    # Nodes may have what this machine does not.
    assert "Did you mean" not in invoke("drift", "xyz", "--on", "nonexistent.invalid")[1]


def test_a_file_is_not_a_package() -> None:
    request = ("render", "new", "--torch", "2.3", "--cuda", "12.1", "--python-from", "channel")
    for name in ("requirements.txt", "requirements-dev.in", "more.txt"):
        exit_code, output = invoke(*request, "--pip", name, "--dry-run")
        assert exit_code == 3
        assert f"Write `-r {name}`" in output
    assert "looks like a file" in invoke(*request, "--conda", "environment.yml", "--dry-run")[1]
    assert invoke(*request, "--pip", "ruamel.yaml", "--dry-run")[0] == 0
