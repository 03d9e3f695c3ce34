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

from provision import ci, render, resolver
from provision.catalog.data_files import load
from provision.cli import build
from provision.cli.lock import make_lock
from provision.cli.main import cli
from provision.commands.ci import command_line_options
from provision.core.errors import InvalidSpec
from provision.core.spec_fields import Spec
from provision.resolver import spec

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "ci"
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
FILES = {"github": ".github/workflows/provision.yml", "gitlab": ".gitlab-ci.yml"}
FORMATS = list(FILES)
INSTALL = f"https://wheels.invalid/provision_gpu-1.0-py3-none-any.whl#sha256={'0' * 64}"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PROVISION_DATA", "PROVISION_CACHE", "PROVISION_ENVS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "a lab's"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "runners.yml").write_text(RUNNERS)
    for name, text in SPECS.items():
        (folder / "envs" / name).mkdir(parents=True)
        (folder / "envs" / name / "spec.yml").write_text(text)
    return folder


def invoke(*message: str) -> Result:
    if "--install" not in message:
        message = (*message, "--install", INSTALL)
    return CliRunner().invoke(cli, ["matrix", "ci", *message])


def rendered(format: str, *message: str) -> str:
    result = invoke("--format", format, *message)
    assert result.exit_code == 0, result.output
    return result.stdout


def tool(name: str) -> str:
    executable = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if not executable:
        pytest.skip(f"no {name} on this machine")
    return executable


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Reference(yaml.SafeLoader):
    """Reads GitLab's `!reference [job, key]` as a text."""


def _reference(loader: Any, node: Any) -> str:
    return "!reference " + ".".join(loader.construct_sequence(node))


Reference.add_constructor("!reference", _reference)


@pytest.mark.parametrize("format", FORMATS)
def test_golden(format: str, lab: Path, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / render.WORKFLOWS[format]
    text = rendered(format)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"no golden file {path}: run with --update-golden"
    assert text == path.read_text()


def test_github_schema_accepts_ours_and_rejects_a_broken_one(lab: Path) -> None:
    check = (tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows")
    (lab / "w.yml").write_text(rendered("github"))
    result = run(*check, "w.yml")
    assert result.returncode == 0, result.stdout
    (lab / "w.yml").write_text(rendered("github").replace("runs-on:", "run-on:"))
    assert run(*check, "w.yml").returncode != 0


def test_gitlab_schema_accepts_ours_and_rejects_a_broken_one(lab: Path) -> None:
    check = (
        tool("check-jsonschema"),
        "--builtin-schema",
        "vendor.gitlab-ci",
        "--data-transform",
        "gitlab-ci",
    )
    (lab / "g.yml").write_text(rendered("gitlab"))
    result = run(*check, "g.yml")
    assert result.returncode == 0, result.stdout
    (lab / "g.yml").write_text(rendered("gitlab").replace("  script:", "  scripts:"))
    assert run(*check, "g.yml").returncode != 0


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
    path.write_text(rendered("github"))
    result = run(*check, str(path))
    assert (result.returncode, json.loads(result.stdout)) == (0, []), result.stdout
    path.write_text(
        re.sub(r"@[0-9a-f]{40} #", "@", rendered("github")).replace(
            "run: provision smoke", "run: ${{ github.head_ref }} smoke"
        )
    )
    result = run(*check, str(path))
    assert {"unpinned-uses", "template-injection"} <= {
        finding["ident"] for finding in json.loads(result.stdout)
    }


def scripts(format: str, text: str) -> Iterator[str]:
    """Every shell script of a workflow."""
    content = yaml.load(text, Loader=Reference)
    if format == "github":
        yield from (
            step["run"]
            for job in content["jobs"].values()
            for step in job["steps"]
            if "run" in step
        )
    else:
        for job in content.values():
            if isinstance(job, dict) and "script" in job:
                before = [
                    line
                    for line in content[".environment"]["before_script"]
                    if not line.startswith("!reference")
                ]
                yield "\n".join(before + job["script"])


@pytest.mark.parametrize("format", FORMATS)
def test_shell_is_clean(format: str, lab: Path) -> None:
    result = list(scripts(format, rendered(format)))
    for index, script in enumerate(result):
        (lab / f"{index}.sh").write_text(script + "\n")
    checked = run(
        tool("shellcheck"), "--shell=bash", *(f"{index}.sh" for index in range(len(result)))
    )
    assert (checked.returncode, checked.stdout) == (0, "")


def test_least_privileges_and_pinned_actions(lab: Path) -> None:
    text = rendered("github")
    content = yaml.safe_load(text)
    assert content["permissions"] == {"contents": "read"}
    assert content["concurrency"]["cancel-in-progress"] is True
    assert set(content[True]) == {
        "workflow_dispatch",
        "pull_request",
        "schedule",
    }  # YAML reads `on` as true
    pins = {
        f"{row['uses']}@{row['commit']} # {row['version']}"
        for row in load("ci.yml")["actions"].values()
    }
    assert set(re.findall(r"uses: (.*)", text)) == pins
    for job in content["jobs"].values():
        assert job["strategy"]["fail-fast"] is False
        assert job["steps"][0]["with"]["persist-credentials"] is False
        assert [step["if"] for step in job["steps"] if step["name"] == "Passport"] == ["always()"]
        assert not any("${{" in step.get("run", "") for step in job["steps"])


def test_fork_code_never_runs_on_the_labs_machines(lab: Path) -> None:
    jobs = yaml.safe_load(rendered("github"))["jobs"]
    assert "head.repo.full_name == github.repository" in jobs["gpu"]["if"]
    assert "if" not in jobs["cpu"]  # on GitHub's own runner
    (lab / "runners.yml").write_text("runners:\n- {name: mine, labels: cpu}\n")
    jobs = yaml.safe_load(rendered("github"))["jobs"]
    assert "if" in jobs["cpu"] and "gpu" not in jobs


@pytest.mark.parametrize("format", FORMATS)
def test_one_job_per_environment(format: str, lab: Path) -> None:
    result = invoke("--format", format, "--json")
    jobs = {
        job["environment"]: (job["runner"], job["gpu"]) for job in json.loads(result.stdout)["jobs"]
    }
    assert jobs == {
        "ampere": ("a100", True),
        "cpu": (None, False),
        "new": (None, False),
        "vision": ("v100", True),
    }
    text = json.loads(result.stdout)["text"]
    ran = yaml.load(text, Loader=Reference)
    if format == "github":
        entries = [
            entry for job in ran["jobs"].values() for entry in job["strategy"]["matrix"]["include"]
        ]
        assert sorted(entry["environment"] for entry in entries) == sorted(SPECS)
        assert {tuple(entry["labels"]) for entry in entries} == {
            ("self-hosted", "linux", "v100"), ("self-hosted", "linux", "a100:8"), ("ubuntu-24.04",)
        }  # fmt: skip
    else:
        own_jobs = {
            name: job
            for name, job in ran.items()
            if isinstance(job, dict) and "script" in job and not name.startswith("lock ")
        }
        assert sorted(job["variables"]["ENVIRONMENT"] for job in own_jobs.values()) == sorted(SPECS)
        assert [
            job.get("tags")
            for job in own_jobs.values()
            if job["variables"]["ENVIRONMENT"] == "vision"
        ] == [["self-hosted", "linux", "v100"]]
        assert all(
            f"provision build {job['variables']['ENVIRONMENT']} " in job["script"][1]
            for job in own_jobs.values()
        )
    assert "driver 550.54.14; CUDA 13.0 needs 580.65.06" in text


def test_command_in_the_header_regenerates_the_file(lab: Path) -> None:
    out = "ci/my flow.yml"
    message = [
        "--format",
        "gitlab",
        "--gpus",
        "2",
        "--install",
        ".",
        "--schedule",
        "1 2 * * *",
        "--envs",
        "envs",
        "-o",
        out,
    ]
    assert invoke(*message).exit_code == 0
    first = (lab / out).read_text()
    command = shlex.split(first.splitlines()[0].partition("remake with: ")[2])
    assert command[:3] == ["provision", "matrix", "ci"]
    (lab / out).unlink()
    assert invoke(*command[3:]).exit_code == 0
    assert (lab / out).read_text() == first


@pytest.mark.parametrize("format", FORMATS)
def test_check_and_hand_edits(format: str, lab: Path) -> None:
    out = FILES[format]
    assert invoke("--format", format, "-o", out, "--check").exit_code == 1
    assert not (lab / out).exists()
    assert invoke("--format", format, "-o", out, "--dry-run").exit_code == 0
    assert not (lab / out).exists()
    assert f"wrote {out}" in invoke("--format", format, "-o", out).output
    assert f"unchanged: {out}" in invoke("--format", format, "-o", out).output
    assert invoke("--format", format, "-o", out, "--check").exit_code == 0
    (lab / "envs" / "vision" / "spec.yml").write_text('torch: "2.9.1"\ncuda: "12.8"\n')
    changed = invoke("--format", format, "-o", out, "--check")
    assert (
        changed.exit_code == 1
        and "+++ " in changed.output
        and re.search(r"^\+.*torch 2\.9\.1", changed.output, re.MULTILINE)
    )
    (lab / out).write_text((lab / out).read_text() + "# mine\n")
    result = invoke("--format", format, "-o", out)
    assert result.exit_code == 6 and "was edited by hand" in result.output
    assert invoke("--format", format, "-o", out, "--force").exit_code == 0
    assert "# mine" not in (lab / out).read_text()


def test_unresolvable_environments_are_all_reported_and_nothing_written(lab: Path) -> None:
    for name, text in {
        "bad1": 'torch: "2.3"\ncuda: "13.0"\n',
        "bad2": "torch: 2.3\n",
        "bad3": 'torch: "9.9"\ncpu: true\n',
    }.items():
        (lab / "envs" / name).mkdir()
        (lab / "envs" / name / "spec.yml").write_text(text)
    result = invoke("--format", "github", "-o", "w.yml")
    assert result.exit_code == 3
    assert "3 environments cannot be resolved" in result.output
    assert all(
        message in result.output
        for message in ("bad1: There is no build for torch 2.3", "write it in quotes", "torch 9.9")
    )
    assert not (lab / "w.yml").exists()


@pytest.mark.parametrize(
    "message,problem",
    [
        (("--install", "x; rm -rf /"), "--install must say where"),
        (("--install", "tools/x.whl\n- run: y"), "--install must say where"),
        (("--install", ""), "--install must say where runners get provision"),
        (("--install", "provision==0.1.0"), "`provision==0.1.0` is none of these"),
        (("--install", "git+https://code.invalid/provision@main"), "is none of these"),
        (("--schedule", "daily"), "--schedule must be five fields of cron"),
        (("--envs", ".."), "There is no"),
        (("--runners", "none.yml"), "There is no none.yml"),
    ],
)
def test_invalid_settings_are_refused(message: tuple[str, ...], problem: str, lab: Path) -> None:
    result = invoke("--format", "github", *message)
    assert result.exit_code == 3
    assert problem in result.output


def test_environments_outside_the_repository(lab: Path) -> None:
    inner = lab / "inner"
    inner.mkdir()
    (inner / "runners.yml").write_text(RUNNERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        result = invoke("--format", "github", "--envs", "../envs")
    assert result.exit_code == 3
    assert "must be in the repository" in result.output


def test_unsupported_features_of_a_service(lab: Path) -> None:
    (lab / "runners.yml").write_text(
        "runners:\n- {name: a, labels: a, gpu: A100, driver: '595.45.04', image: x}\n"
    )
    result = invoke("--format", "github")
    assert result.exit_code == 3 and "names an image" in result.output
    assert "  image: x\n" in rendered("gitlab")
    resolved = resolver.resolve(Spec(name="x", torch="2.3.1", cuda="12.1"))
    target = ci.CiTarget(resolution=resolved, platform="linux-aarch64")
    far = ci.Job(target=target, runner=None, on_gpu=False, ranks=2, notes=())
    settings = ci.WorkflowSettings(install=".")
    with pytest.raises(InvalidSpec, match="has no known CPU runner for linux-aarch64"):
        ci.template_values("gitlab", [far], settings)
    assert ci.template_values("github", [far], settings)["rehearsal"][0]["labels"] == (
        "ubuntu-24.04-arm",
    )
    near = ci.Job(
        target=ci.CiTarget(resolution=resolved, platform="linux-64"),
        runner=None,
        on_gpu=False,
        ranks=2,
        notes=(),
    )
    assert ci.template_values("github", [near] * 256, settings)
    with pytest.raises(InvalidSpec, match="at most 256 jobs"):
        ci.template_values("github", [near] * 257, settings)
    assert ci.template_values("gitlab", [near] * 257, settings)


@pytest.mark.parametrize("format", FORMATS)
def test_matrix_builds_instead_of_environments(format: str, lab: Path) -> None:
    shutil.rmtree(lab / "envs")
    which = [
        "--torch",
        ">=2.3.1,<2.5",
        "--cuda",
        "12.1",
        "--source",
        "wheels",
        "--source",
        "pytorch",
        "--python",
        "3.11",
    ]
    message = ("--format", format, *which)
    output = json.loads(invoke(*message, "--json").stdout)
    names = [job["environment"] for job in output["jobs"]]
    assert names[0] == "torch2.3.1-cuda12.1-py311"
    assert "torch2.3.1-cuda12.1-py311-pytorch" in names and "torch2.4.1-cuda12.1-py311" in names
    assert len(set(names)) == len(names)
    (lab / "w.yml").write_text(output["text"])
    ran = yaml.load(output["text"], Loader=Reference)
    if format == "github":
        assert (
            run(
                tool("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", "w.yml"
            ).returncode
            == 0
        )
        assert (
            run(
                tool("zizmor"), "--offline", "--no-config", "--persona", "pedantic", "w.yml"
            ).returncode
            == 0
        )
        (entry,) = [
            entry
            for entry in ran["jobs"]["gpu"]["strategy"]["matrix"]["include"]
            if entry["environment"] == names[0]
        ]
        assert entry["options"].split("\n") == [
            "--torch=2.3.1",
            "--cuda=12.1",
            "--python=3.11",
            "--source=wheels",
        ]
        script = next(
            step["run"] for step in ran["jobs"]["gpu"]["steps"] if step["name"] == "Build"
        )
        script = script.replace("provision build", "printf '<%s>'")
        for request, expected in (
            (entry["options"], "".join(f"<{option}>" for option in entry["options"].split("\n"))),
            ("", ""),
        ):
            result = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script],
                capture_output=True,
                env={"OPTIONS": request, "ENVIRONMENT": "x"},
            )
            assert result.stdout.decode() == f"<x>{expected}<--no-image><--no-smoke><--no-kernel>"
    else:
        jobs = [
            job
            for job in ran.values()
            if isinstance(job, dict) and job.get("variables", {}).get("ENVIRONMENT") == names[0]
        ]
        assert [job["script"][0] for job in jobs] == [
            f"provision lock {names[0]} --torch=2.3.1 --cuda=12.1 --python=3.11 --source=wheels"
        ] * 2
    for script in scripts(format, output["text"]):
        (lab / "s.sh").write_text(script + "\n")
        assert run(tool("shellcheck"), "--shell=bash", "s.sh").stdout == ""
    assert "--torch=>=2.3.1,<2.5" in shlex.split(output["text"].splitlines()[0])


TABLE = ("--torch", "2.3.1", "--cuda", "12.1", "--source", "wheels", "--python", "3.11")


def gitlab_jobs(*message: str) -> dict[str, Any]:
    text = rendered("gitlab", *message)
    Path("g.yml").write_text(text)
    assert (
        run(
            tool("check-jsonschema"),
            "--builtin-schema",
            "vendor.gitlab-ci",
            "--data-transform",
            "gitlab-ci",
            "g.yml",
        ).returncode
        == 0
    )
    content: dict[str, Any] = yaml.load(text, Loader=Reference)
    return content


@pytest.mark.parametrize("message,name", [((), "vision"), (TABLE, "torch2.3.1-cuda12.1-py311")])
def test_caches_are_keyed_by_the_lock(message: tuple[str, ...], name: str, lab: Path) -> None:
    """A lock of the repository by GitLab itself; one that is not there by a job before."""
    jobs = gitlab_jobs(*message)
    assert jobs["stages"] == ["locks", "environments"]
    before, job = jobs[f"lock {name} on v100"], jobs[f"{name} on v100"]
    assert job["cache"]["key"] == f"{name}-linux-64-$LOCK_SHA256"
    assert job["needs"] == [f"lock {name} on v100"]
    assert before["tags"] == job["tags"] and before["script"][0] == job["script"][0]
    (lab / "envs" / name).mkdir(exist_ok=True)
    (lab / "envs" / name / "conda-lock.yml").write_text("")
    jobs = gitlab_jobs(*message)
    job = jobs[f"{name} on v100"]
    assert job["cache"]["key"] == {
        "files": [f"envs/{name}/conda-lock.yml"],
        "prefix": f"{name}-linux-64",
    }
    assert "needs" not in job and f"lock {name} on v100" not in jobs
    assert ("locks" in jobs["stages"]) == (not message)  # others have none


def test_runner_with_a_local_cache_folder_needs_no_key(lab: Path) -> None:
    jobs = gitlab_jobs()
    job = jobs["ampere on a100"]
    assert "cache" not in job and "needs" not in job and "lock ampere on a100" not in jobs
    assert job["variables"]["PROVISION_CACHE"] == "/var/cache/provision"


@pytest.mark.parametrize("portable", [True, False])
def test_previous_job_passes_the_lock_and_its_hash(portable: bool, lab: Path) -> None:
    """Its script as a shell runs it; the lock is written by a function in provision's place."""
    before = gitlab_jobs()["lock vision on v100"]
    lock = f"metadata:\n  custom_metadata:\n    provision_portable: '{str(portable).lower()}'\n"
    script = 'provision() { printf \'%s\' "$TEXT" > "envs/$2/conda-lock.yml"; }\n' + "\n".join(
        before["script"]
    )
    env = {
        "TEXT": lock,
        "PROVISION_ENVS": "envs",
        "PATH": os.environ["PATH"],
        **before["variables"],
    }
    subprocess.run(["bash", "-euo", "pipefail", "-c", script], check=True, env=env)
    assert (
        lab / "lock.env"
    ).read_text() == f"LOCK_SHA256={hashlib.sha256(lock.encode()).hexdigest()}\n"
    assert (lab / "envs" / "vision" / "conda-lock.yml").exists() is portable


def test_selection_without_builds(lab: Path) -> None:
    result = invoke("--format", "github", "--torch", "2.3", "--cuda", "13.0")
    assert result.exit_code == 4


def test_pytorch_index_comes_from_the_repository_settings(lab: Path) -> None:
    assert "PROVISION_TORCH_INDEX: ${{ vars.PROVISION_TORCH_INDEX }}" in rendered(
        "github", "--torch", "2.9.1", "--cuda", "13.0"
    )
    assert "PROVISION_TORCH_INDEX" not in rendered(
        "github", "--torch", "2.9.1", "--cuda", "12.8", "--source", "wheels"
    )
    assert "PROVISION_TORCH_INDEX" in rendered("gitlab", "--torch", "2.9.1", "--cuda", "13.0")


ASKED: list[dict[str, Any]] = [
    {"torch": "2.3.1", "cuda": "12.1"},
    {"torch": "2.13", "cpu": True, "companions": False},
    {
        "torch": "2.6",
        "cuda": "12.6",
        "python": "3.11",
        "nccl": "2.21.5",
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
        "cudnn": "9.1",
        "gpu": ["H100", "NVIDIA A100-SXM4-80GB"],
        "driver": "535.54.03",
        "glibc": "2.28",
        "platforms": ["linux-64", "linux-aarch64"],
        "infiniband": True,
        "as_of": "2024-06-30",
    },
]


@pytest.mark.parametrize("spec_options", ASKED)
@pytest.mark.parametrize("verb", [make_lock, build.build])
def test_options_give_the_same_as_the_spec(spec_options: dict[str, Any], verb: Any) -> None:
    message = shlex.split(shlex.join(command_line_options(spec_options)))
    parsed = verb.make_context(verb.name, ["lab", *message]).params
    assert spec.combine(
        {}, {key: parsed[key] for key in spec.KEYS if key in parsed}, name="lab"
    ) == spec.combine(spec_options, {}, name="lab")


def test_every_spec_key_has_an_option() -> None:
    options = {
        option
        for parameter in build.build.params
        for option in [*parameter.opts, *parameter.secondary_opts]
    }
    samples: dict[str, Any] = dict.fromkeys(spec.KEYS, "x") | {"cpu": True, "companions": False}
    assert {argument.partition("=")[0] for argument in command_line_options(samples)} <= options
