"""Every command that a page or a message prints is one that provision accepts, as it is printed.

What needs nothing but a folder also runs here. RUN_BY says which test runs the other verbs for real;
CANNOT_RUN, which cannot be run where tests run, and why.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from provision.cli.main import cli
from tests.paths import ROOT
from tests.unit.cli.test_cli import VERBS

PATHS = {" ".join(path) for path, _ in VERBS}
# Made from the commands themselves, or a record of what was.
GENERATED = ("cli.md", "CHANGELOG.md")
PAGES = sorted(
    page
    for folder in (ROOT, ROOT / "docs", ROOT / "docs" / "decisions", ROOT / "runtime")
    for page in folder.glob("*.md")
    if page.name not in GENERATED
)
BLOCK = re.compile(r"^```[\s\S]*?^```|(?:^    .*\n)+", re.MULTILINE)
# Without those that a page shows to be refused.
COMMAND = re.compile(r"^(?:    )?(?:\$ )?provision (.+(?:\\\n.+)*)$(?!\n *Error: )", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")
# What a shell takes for itself, and comments.
SHELL = re.compile(r"\s(?:\||>|>>|2>|&&|#)\s.*")
NEEDS_NOTHING = ("matrix", "matrix explain", "facts show", "completion", "status")
RUN_BY = {
    "activate": "test_ship_states.py",
    "add": "test_change.py",
    "build": "test_main_job.py",
    "channel bootstrap": "test_main_job.py",
    "channel mirror": "test_mirrors.py",
    "checkpoint": "test_checkpoint_verbs.py",
    "clean": "test_clean.py",
    "doctor": "test_doctor_causes.py",
    "drift": "test_drift.py",
    "env": "test_change.py",
    "facts": "test_index_facts.py",
    "help": "test_help.py",
    "image build": "test_main_job.py",
    "image contract": "test_launch_contract.py",
    "image diff": "test_image_diff.py",
    "image index": "test_image_platforms.py",
    "image push": "test_image_signatures.py",
    "image run": "test_main_job.py",
    "image sbom": "test_main_job.py",
    "image verify": "test_image_signatures.py",
    "import": "test_init.py",
    "init": "test_change.py",
    "jobs": "test_launch_slurm.py",
    "join": "test_join.py",
    "kernel": "test_main_job.py",
    "lab": "test_join.py",
    "launch": "test_launch_slurm.py",
    "lock": "test_lock_verbs.py",
    "matrix ci": "test_ci_workflow.py",
    "nodes": "test_nodes_slurm.py",
    "notebook": "test_notebook.py",
    "pack": "test_pack.py",
    "passport": "test_change.py",
    "remove": "test_change.py",
    "render": "test_main_job.py",
    "report": "test_report_nodes.py",
    "rollback": "test_ship_hosts.py",
    "run": "test_activation.py",
    "shell": "test_activation.py",
    "ship": "test_ship_hosts.py",
    "smoke": "test_main_job.py",
    "store": "test_ship_hosts.py",
    "update": "test_change.py",
    "why": "test_launch_slurm.py",
}
CANNOT_RUN = {
    r"launch .*--on k8s:(?!.*--dry-run)": "no pod can start: the tests' Kubernetes has no nodes",
    "require_gpu=true": "most machines that run the tests have no GPU",
    "--source conda-forge|--conda": "conda channels are files there: solved, not downloaded",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project whose one environment commands may leave out."""
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("PROVISION_ENVS", raising=False)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    (tmp_path / "envs" / "lab").mkdir(parents=True)
    (tmp_path / "envs" / "lab" / "spec.yml").write_text("torch: '2.3'\ncuda: '12.1'\n")
    monkeypatch.chdir(tmp_path)


def commands(page: Path) -> list[str]:
    """The commands in blocks of a page, without comments and what belongs to the shell."""
    found = []
    for block in BLOCK.findall(page.read_text()):
        for command in COMMAND.findall(block):
            found.append(SHELL.sub("", f"{command.replace(chr(92), '')} ", count=1).strip())
    return [re.sub(r"\s+", " ", command) for command in found]


def mentions(text: str) -> list[str]:
    """`provision VERB ...` within a text."""
    spans = [re.sub(r"\s+", " ", span) for span in SPAN.findall(BLOCK.sub("", text))]
    verbs = [span.removeprefix("provision ") for span in spans if span.startswith("provision ")]
    return [verb for verb in verbs if re.match(r"[a-z]+(?!:)\b", verb) and "…" not in verb]


def refusal(command: str, *, is_whole: bool = True) -> str:
    """Why provision refuses a command before it does anything, or nothing.

    is_whole: options without their value and missing arguments are refused too; files that only the
    page's reader has are never missing. Optional parts, `[--like THIS]`, are left out.
    """
    try:
        words = shlex.split(re.sub(r" \[[^\]]*\]", "", command))
        words = ["1" if word == "N" else word for word in words]
        context = click.Context(cli, info_name="provision")
        _, verb, arguments = cli.resolve_command(context, words)
        assert verb is not None
        while isinstance(verb, click.Group) and arguments and arguments[0] in verb.commands:
            verb, arguments = verb.commands[arguments[0]], arguments[1:]
        is_group = (
            isinstance(verb, click.Group) and verb.name != "lock"
        )  # `lock NAME` is a verb too
        if is_group and re.fullmatch("[a-z]+", "".join(arguments[:1])):
            raise click.UsageError(f"`{verb.name}` has no verb `{arguments[0]}`.")
        verb.make_context(words[0], arguments, parent=context)
    except click.exceptions.Exit:
        return ""
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError, click.BadOptionUsage) as e:
        return e.format_message() if is_whole else ""
    except click.BadParameter as error:
        return "" if "does not exist" in error.message else error.format_message()
    except (click.UsageError, ValueError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_pages_are_accepted(page: Path) -> None:
    refused = {command: refusal(command) for command in commands(page)}
    text = page.read_text()
    refused |= {f"`{part}`": refusal(part, is_whole=False) for part in mentions(text)}
    assert {command: why for command, why in refused.items() if why} == {}


def messages() -> Iterator[str]:
    """The texts of the code, with NAME for what is put in."""
    for folder in ("provision", "provision_runtime"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [
                        str(part.value) if isinstance(part, ast.Constant) else "NAME"
                        for part in node.values
                    ]
                    yield "".join(parts)
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_commands_of_messages_are_accepted() -> None:
    parts = {part for text in messages() for part in mentions(text) if "..." not in part}
    assert len(parts) > 80
    refused = {part: refusal(part, is_whole=False) for part in parts}
    # A value that the message has is no name; `--in prefix`, say.
    refused = {part: why for part, why in refused.items() if "'NAME' is not one of" not in why}
    assert {part: why for part, why in refused.items() if why} == {}


DOCUMENTED = sorted({command for page in PAGES for command in commands(page)})


def verb_of(command: str) -> str:
    words = command.split()
    return " ".join(words[:2]) if " ".join(words[:2]) in PATHS else words[0]


@pytest.mark.parametrize(
    "command", [command for command in DOCUMENTED if verb_of(command) in NEEDS_NOTHING]
)
def test_commands_that_need_nothing_run_as_printed(command: str) -> None:
    result = CliRunner().invoke(cli, shlex.split(command))
    assert result.exit_code == 0, result.output


def test_every_other_verb_runs_in_a_test() -> None:
    verbs = {verb_of(command) for command in DOCUMENTED if not command.startswith("--")}
    files: dict[str, str] = {}  # some have the same name as a unit test
    for path in (ROOT / "tests").rglob("test_*.py"):
        files[path.name] = files.get(path.name, "") + path.read_text()
    missing = []
    for verb in sorted(verbs - {*NEEDS_NOTHING}):
        file = RUN_BY.get(verb) or RUN_BY.get(verb.split()[0], "")
        if f'"{verb.split()[0]}"' not in files.get(file, ""):
            missing.append(f"{verb}: {file}")
    assert missing == []
    # An entry that fits no command any more is out of date.
    text = "\n".join(DOCUMENTED)
    assert [pattern for pattern in CANNOT_RUN if not re.search(pattern, text)] == []
