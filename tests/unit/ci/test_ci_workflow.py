"""CI workflows: compared with golden files, valid by the services' schemas, and clean for linters."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from provision import ci, resolver
from provision.catalog.data_files import load
from provision.cli.main import cli
from provision.core.errors import InvalidSpec
from provision.core.project import project_folder
from provision.core.spec_fields import SPEC_KEYS, Spec
from provision.resolver import spec
from provision.verbs.build import command as build
from provision.verbs.lock.command import make_lock
from tests import evidence
from tests.paths import DATA

GOLDEN = DATA / "golden" / "ci"
RUNNERS = """\
runners:
  - name: v100
    labels: [self-hosted, linux, v100]
    gpu: V100
    gpus: 2
    driver: "535.129.03"
    timeout: 60
  - name: a100
    labels: [self-hosted, linux, "a100:8"]
    gpu: A100
    gpus: 8
    driver: "550.54.14"
    cache: /var/cache/provision
  - name: grace
    labels: gh200
    gpu: sm_90
    driver: "580.65.06"
    platform: linux-aarch64
"""
# One of each kind: on the first GPU runner, on the second, on none, and without CUDA.
SPECS = {
    "vision": 'torch: "2.3.1"\ncuda: "12.1"\npython: "3.11"\n',
    "new": 'torch: "2.13.0"\ncuda: "13.0"\npython: "3.11"\nsource: wheels\n',
    "ampere": 'torch: "2.11.0"\ncuda: "12.8"\npython: "3.11"\nsource: wheels\nconda: ["ffmpeg=7.*"]\n',
    "cpu": 'torch: "2.13.0"\ncpu: true\npython: "3.11"\n',
}
FILE = ".github/workflows/provision.yml"
LOCK = b"lock"
INSTALL = f"https://wheels.invalid/provision_gpu-1.0-py3-none-any.whl#sha256={'0' * 64}"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "PROVISION_ENVS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "a lab's"
    folder.mkdir()
    monkeypatch.chdir(folder)
    configure()
    for name, text in SPECS.items():
        (folder / "envs" / name).mkdir(parents=True)
        (folder / "envs" / name / "spec.yml").write_text(text)
    return folder


def configure(runners: str = RUNNERS, **settings: object) -> None:
    """Write runners.yml. settings: of the workflow."""
    workflow = {"install": INSTALL, **settings}
    Path("runners.yml").write_text(yaml.safe_dump({"workflow": workflow}) + runners)


def invoke(*message: str) -> Result:
    return CliRunner().invoke(cli, ["matrix", "ci", *message])


def rendered(*message: str) -> str:
    result = invoke(*message)
    assert result.exit_code == 0, result.output
    return result.stdout


def github_jobs() -> dict[str, list[dict[str, Any]]]:
    """The entries of both matrices, as the workflow's first job hands them on."""
    entries = {}
    for line in rendered("--jobs").splitlines():
        name, _, matrix = line.partition("=")
        entries[name] = json.loads(matrix)["include"] if matrix else []
    return entries


def tool(name: str) -> str:
    executable = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not executable:
        pytest.skip(f"no {name} on this machine")
    return executable


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "file, message", [("github-workflow.yml", ()), ("github-outputs.txt", ("--jobs",))]
)
def test_golden(
    file: str, message: tuple[str, ...], lab: Path, request: pytest.FixtureRequest
) -> None:
    path = GOLDEN / file
    text = rendered(*message)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no golden file {path}: run with --update-golden"
    assert text == path.read_text()


def test_github_schema_accepts_ours_and_rejects_a_broken_one(lab: Path) -> None:
    check = (tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows")
    (lab / "w.yml").write_text(rendered())
    result = run(*check, "w.yml")
    assert result.returncode == 0, result.stdout
    (lab / "w.yml").write_text(rendered().replace("runs-on:", "run-on:"))
    assert run(*check, "w.yml").returncode != 0


def test_security_linter_accepts_ours_and_reports_a_mistake(lab: Path) -> None:
    check = (
        tool("zizmor"),
        "--offline",
        "--no-config",
        "--no-progress",
        "--persona",
        "pedantic",
        "--format",
        "json",
    )
    path = lab / ".github" / "workflows" / "w.yml"
    path.parent.mkdir(parents=True)
    path.write_text(rendered())
    result = run(*check, str(path))
    assert (result.returncode, json.loads(result.stdout)) == (0, []), result.stdout
    path.write_text(
        re.sub(r"@[0-9a-f]{40} #", "@", rendered()).replace(
            "run: provision smoke", "run: ${{ github.head_ref }} smoke"
        )
    )
    result = run(*check, str(path))
    assert {"unpinned-uses", "template-injection"} <= {
        finding["ident"] for finding in json.loads(result.stdout)
    }


def test_shell_is_clean(lab: Path) -> None:
    configure(image=True)
    jobs = yaml.safe_load(rendered())["jobs"].values()
    scripts = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    for index, script in enumerate(scripts):
        (lab / f"{index}.sh").write_text(script + "\n")
    files = (f"{index}.sh" for index in range(len(scripts)))
    checked = run(tool("shellcheck"), "--shell=bash", *files)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_least_privileges_and_pinned_actions(lab: Path) -> None:
    text = rendered()
    content = yaml.safe_load(text)
    assert content["permissions"] == {"contents": "read"}
    assert content["concurrency"]["cancel-in-progress"] is True
    assert set(content[True]) == {
        "workflow_dispatch",
        "workflow_call",
        "pull_request",
        "schedule",
    }  # YAML reads `on` as true
    pins = {
        f"{row['uses']}@{row['commit']} # {row['version']}"
        for row in load("ci.yml")["actions"].values()
    }
    assert set(re.findall(r"uses: (.*)", text)) == pins
    # A caller's usual group is its workflow's name and branch: the same one would cancel the caller.
    assert content["concurrency"]["group"].startswith("provision-")
    for name, job in content["jobs"].items():
        assert job["steps"][0]["with"]["persist-credentials"] is False
        if name != "matrix":
            assert job["strategy"]["fail-fast"] is False
        assert not any("${{" in step.get("run", "") for step in job["steps"])


def test_fork_code_never_runs_on_the_labs_machines(lab: Path) -> None:
    jobs = yaml.safe_load(rendered())["jobs"]
    assert "head.repo.full_name == github.repository" in jobs["own"]["if"]
    assert "head.repo" not in jobs["hosted"]["if"]  # on GitHub's own runner
    assert jobs["matrix"]["runs-on"] == "ubuntu-24.04"
    configure("runners:\n- {name: mine, labels: cpu}\n")
    entries = github_jobs()
    assert {entry["runner"] for entry in entries["own"]} == {"mine"} and not entries["hosted"]


def test_one_job_per_environment(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    result = invoke("--json", "--jobs")
    document = json.loads(result.stdout)
    jobs = {job["environment"]: (job["runner"], job["gpu"]) for job in document["jobs"]}
    assert jobs == {
        "ampere": ("a100", True),
        "cpu": (None, False),
        "new": (None, False),
        "vision": ("v100", True),
    }
    entries = github_jobs()
    assert {entry["environment"] for entry in entries["own"]} == {"ampere", "vision"}
    assert {entry["environment"] for entry in entries["hosted"]} == {"cpu", "new"}
    labels = {tuple(entry["labels"]) for entry in entries["own"]}
    assert labels == {("self-hosted", "linux", "v100"), ("self-hosted", "linux", "a100:8")}
    assert {tuple(entry["labels"]) for entry in entries["hosted"]} == {("ubuntu-24.04",)}
    summary = (lab / "summary.md").read_text()
    assert "| vision | linux-64 | v100 | V100 | 2 |" in summary
    assert "CUDA 13.0 needs driver 580.65.06 or later, and the driver is 550.54.14" in summary


def test_new_environment_or_runner_needs_no_new_workflow(lab: Path) -> None:
    """The file stays the same, and its own command finds the environment."""
    out = FILE
    assert invoke("-o", out).exit_code == 0
    (lab / "envs" / "later").mkdir()
    (lab / "envs" / "later" / "spec.yml").write_text(SPECS["vision"])
    configure(RUNNERS.replace("a100", "a800"))
    written = (lab / out).read_text()
    assert f"unchanged: {out}" in invoke("-o", out).output and (lab / out).read_text() == written
    content = yaml.safe_load((lab / out).read_text())
    command = content["jobs"]["matrix"]["steps"][-1]["run"]
    command, _, target = command.partition(" >> ")
    assert target.strip() == '"$GITHUB_OUTPUT"'
    argv = shlex.split(command)
    assert argv[:3] == ["provision", "matrix", "ci"]
    result = CliRunner().invoke(cli, argv[1:])
    assert result.exit_code == 0, result.output
    assert "later" in result.stdout and "| later | linux-64 |" in result.stderr


def test_one_runner_of_each_gpu_architecture(lab: Path) -> None:
    configure(across="gpu")
    entries = github_jobs()
    assert [
        (entry["environment"], entry["runner"], entry["ranks"]) for entry in entries["own"]
    ] == [("ampere", "a100", 8), ("vision", "v100", 2), ("vision", "a100", 8)]
    assert "| vision | linux-64 | v100 | V100 | 2 |" in invoke("-o", "w.yml").stderr


def test_images_are_built_where_there_is_an_engine(lab: Path) -> None:
    runners = RUNNERS.replace("    gpus: 8\n", "    gpus: 8\n    engine: true\n")
    configure(runners, across="gpu")
    assert {entry["image"] for entry in github_jobs()["own"]} == {"--no-image"}
    configure(runners, across="gpu", image=True)
    entries = github_jobs()["own"]
    images = {(entry["runner"], entry["image"]) for entry in entries}
    assert images == {("v100", "--no-image"), ("a100", "--image")}


def test_slow_gpus_fail_their_jobs(lab: Path) -> None:
    """Rehearsals on CPUs are not judged by speed."""
    entries = github_jobs()
    strict = {(entry["device"], entry["strict"]) for entry in [*entries["own"], *entries["hosted"]]}
    assert strict == {("require_gpu=true", "strict=true"), ("backend=gloo", "")}
    configure(strict=False)
    relaxed = github_jobs()
    assert {entry["strict"] for entry in [*relaxed["own"], *relaxed["hosted"]]} == {""}


def script_of(step: str) -> str:
    steps = yaml.safe_load(rendered())["jobs"]["own"]["steps"]
    return str(next(row["run"] for row in steps if row["name"] == step))


def test_evidence_of_a_failed_job_is_kept(lab: Path) -> None:
    """What runs after a failure always runs, and takes what there is."""
    configure(retention_days=7)
    steps = yaml.safe_load(rendered())["jobs"]["own"]["steps"]
    by_name = {step["name"]: step for step in steps}
    for name in ("Collect the evidence", "Upload the evidence"):
        assert by_name[name]["if"] == "always()"
    upload = by_name["Upload the evidence"]["with"]
    assert upload["path"] == "${{ runner.temp }}/evidence" and upload["retention-days"] == 7
    assert all(key in upload["name"] for key in ("environment", "platform", "runner"))


@pytest.mark.parametrize("passport", [True, False])
def test_collection_makes_page_and_summary(passport: bool, lab: Path) -> None:
    """The script as bash runs it, with the real command and the passport of a failed test."""
    script = script_of("Collect the evidence")
    command = Path(sysconfig.get_path("scripts")) / "provision"
    if not command.exists():
        pytest.skip("provision is not installed here")
    tools = lab / ".provision" / "tool" / "bin"
    tools.mkdir(parents=True)
    (tools / "provision").symlink_to(command)
    folder = lab / "envs" / "vision"
    (folder / "conda-lock.yml").write_bytes(LOCK)
    if passport:
        document = evidence.passport(
            evidence.report(evidence.phase(verdict="fail", findings=[evidence.finding()])),
            name="vision",
        )
        document["lock"]["sha256"] = hashlib.sha256(LOCK).hexdigest()
        data = lab / "data" / project_folder(lab / "data", lab / "envs")
        evidence.write(data / "passports" / "vision" / "passport.json", document)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(lab),
        "PROVISION_ENVS": "envs",
        "PROVISION_DATA": str(lab / "data"),
        "ENVIRONMENT": "vision",
        "RUNNER_TEMP": str(lab / "temp"),
        "GITHUB_STEP_SUMMARY": str(lab / "summary.md"),
    }
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True, env=environment)
    kept = lab / "temp" / "evidence"
    names = {"conda-lock.yml", "passport.json", "report.html"} if passport else {"conda-lock.yml"}
    assert {path.name for path in kept.iterdir()} == names
    summary = (lab / "summary.md").read_text()
    assert ("smoke test in the prefix: fail" if passport else "vision was not built") in summary
    assert ("fail     barrier" in summary) is passport


def test_command_in_the_header_regenerates_the_file(lab: Path) -> None:
    out = "ci/my flow.yml"
    (lab / "runners.yml").rename(lab / "ci.yml")
    message = ["ci.yml", "--envs", "envs", "-o", out]
    assert invoke(*message).exit_code == 0
    first = (lab / out).read_text()
    command = shlex.split(first.splitlines()[0].partition("remake with: ")[2])
    assert command[:3] == ["provision", "matrix", "ci"]
    (lab / out).unlink()
    assert invoke(*command[3:]).exit_code == 0
    assert (lab / out).read_text() == first


def test_hand_edits_are_not_replaced(lab: Path) -> None:
    out = FILE
    assert invoke("-o", out, "--dry-run").exit_code == 0
    assert not (lab / out).exists()
    assert f"wrote {out}" in invoke("-o", out).output
    assert f"unchanged: {out}" in invoke("-o", out).output
    configure(retention_days=7)
    assert f"wrote {out}" in invoke("-o", out).output
    (lab / out).write_text((lab / out).read_text() + "# mine\n")
    result = invoke("-o", out)
    assert result.exit_code == 6 and "was edited by hand" in result.output
    assert invoke("-o", out, "--force").exit_code == 0
    assert "# mine" not in (lab / out).read_text()


def test_unresolvable_environment_is_named_and_nothing_written(lab: Path) -> None:
    (lab / "envs" / "bad").mkdir()
    for text, exit_code, message in (
        ('torch: "2.3"\ncuda: "13.0"\n', 4, "bad: There is no build for torch 2.3"),
        ("torch: 2.3\n", 3, "write it in quotes"),
        ('torch: "9.9"\ncpu: true\n', 4, "torch 9.9"),
    ):
        (lab / "envs" / "bad" / "spec.yml").write_text(text)
        result = invoke("-o", "w.yml")
        assert result.exit_code == exit_code
        assert message in result.output
        assert not (lab / "w.yml").exists()


@pytest.mark.parametrize(
    "message,problem",
    [
        (("--envs", ".."), "There is no"),
        (("none.yml",), "There is no none.yml"),
        (("no-install.yml",), "does not say where runners get provision"),
    ],
)
def test_invalid_settings_are_refused(message: tuple[str, ...], problem: str, lab: Path) -> None:
    Path("no-install.yml").write_text(RUNNERS)
    result = invoke(*message)
    assert result.exit_code == 3
    assert problem in result.output


def test_environments_outside_the_repository(lab: Path) -> None:
    inner = lab / "inner"
    inner.mkdir()
    shutil.copy("runners.yml", inner)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        result = invoke("--envs", "../envs")
    assert result.exit_code == 3
    assert "in the repository" in result.output


def test_limits_of_the_service() -> None:
    resolved = resolver.resolve(Spec(name="x", torch="2.3.1", cuda="12.1"))
    target = ci.CiTarget(resolution=resolved, platform="linux-aarch64")
    far = ci.Job(target=target, runner=None, on_gpu=False, ranks=2, notes=())
    settings = ci.WorkflowSettings(install=".")
    (matrix,) = filter(None, ci.job_matrices([far], settings).values())
    assert json.loads(matrix)["include"][0]["labels"] == ["ubuntu-24.04-arm"]
    ci.check_jobs([far] * 256)
    with pytest.raises(InvalidSpec, match="at most 256 jobs"):
        ci.check_jobs([far] * 257)


def test_runners_file_must_be_in_the_repository(lab: Path) -> None:
    """The first job reads it from the checkout."""
    shutil.copy("runners.yml", lab.parent)
    result = invoke("../runners.yml")
    assert result.exit_code == 3 and "in the repository" in result.output
    assert invoke(str(lab / "runners.yml")).exit_code == 0


def test_jobs_are_not_written_to_a_file(lab: Path) -> None:
    assert invoke("--jobs", "-o", "x").exit_code == 2


def test_failed_lock_keeps_its_error(lab: Path) -> None:
    """The step and the collection as a shell runs them; a function in provision's place fails."""
    environment = {
        "PATH": os.environ["PATH"],
        "PROVISION_ENVS": "envs",
        "PROVISION_DATA": str(lab / "data"),
        "ENVIRONMENT": "vision",
        "RUNNER_TEMP": str(lab / "temp"),
        "GITHUB_STEP_SUMMARY": str(lab / "summary.md"),
    }
    failing = "provision() { echo 'error: There is no environment' >&2; return 5; }\n"
    shell = ["bash", "-eo", "pipefail", "-c"]
    locked = subprocess.run(
        [*shell, failing + script_of("Lock")], env=environment, capture_output=True, text=True
    )
    assert locked.returncode != 0 and "There is no environment" in locked.stdout
    subprocess.run([*shell, script_of("Collect the evidence")], check=True, env=environment)
    assert (lab / "temp/evidence/lock.txt").read_text() == "error: There is no environment\n"
    assert "error: There is no environment\n```" in (lab / "summary.md").read_text()


def test_options_of_builds_name_the_verb_that_makes_environments(lab: Path) -> None:
    result = invoke("--torch", "2.3")
    assert result.exit_code == 2 and "provision lock --torch" in result.output


def test_pytorch_index_comes_from_the_repository_settings(lab: Path) -> None:
    assert "PROVISION_TORCH_INDEX: ${{ vars.PROVISION_TORCH_INDEX }}" in rendered()


ASKED: list[dict[str, Any]] = [
    {"torch": "2.3.1", "cuda": "12.1"},
    {"torch": "2.13", "cpu": True, "companions": False},
    {
        "torch": "2.6",
        "cuda": "12.6",
        "python": "3.11",
        "source": "conda-forge",
        "channels": ["lab/label/x", "conda-forge"],
        "conda": ["ffmpeg=7.*", "zlib >=1.2,<2"],
        "pip": ["einops>=0.7,<1", "x[extra]~=1.0"],
        "base": "debian:bookworm-slim",
        "python_from": "channel",
    },
    {
        "torch": ">=2.3,<2.6",
        "cuda": "auto",
        # As the table calls it: options take nvidia-smi's longer names too, and say so.
        "gpu": ["H100", "A100"],
        "driver": "535.54.03",
        "glibc": "2.28",
        "platforms": ["linux-64", "linux-aarch64"],
    },
]


def command_line_options(content: dict[str, Any]) -> Iterator[str]:
    """The command line that requests the same as a spec.yml with this content."""
    for key in SPEC_KEYS:
        value = content.get(key.name)
        if isinstance(value, bool):
            yield key.option if value else key.negative_option
        elif value is not None:
            for item in value if isinstance(value, list) else [value]:
                yield f"{key.option}={item}"


@pytest.mark.parametrize("spec_options", ASKED)
@pytest.mark.parametrize("verb", [make_lock, build.build])
def test_options_give_the_same_as_the_spec(spec_options: dict[str, Any], verb: Any) -> None:
    message = shlex.split(shlex.join(command_line_options(spec_options)))
    parsed = verb.make_context(verb.name, ["lab", *message]).params
    assert spec.combine(
        {}, {key: parsed[key] for key in spec.KEYS if key in parsed}, name="lab"
    ) == spec.combine(spec_options, {}, name="lab")
