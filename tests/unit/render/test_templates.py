"""A lab's own templates: all commands use them, mistakes are named, the docs list their variables."""

from __future__ import annotations

import json
import re
from collections import UserDict
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from provision import ci, launch, render
from provision.catalog import TEMPLATES
from provision.cli.main import cli
from provision.core.errors import InvalidSpec
from provision.image.config import dockerfile_context
from provision.render import templates
from tests.paths import ROOT
from tests.unit.image.test_image_config import LOCK, resolution

SPEC = 'torch: "2.3"\ncuda: "12.1"\npython: "3.11"\npython_from: channel\n'
DOCS = ROOT / "docs" / "templates.md"
CONTRACT = ("image", "contract", "lab", "--set", "image=lab/toy:1")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with one environment, and a folder for its templates."""
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("PROVISION_ENVS", raising=False)
    folder = tmp_path / "a lab's"
    (folder / "envs" / "lab").mkdir(parents=True)
    (folder / "templates").mkdir()
    (folder / "envs" / "lab" / "spec.yml").write_text(SPEC)
    monkeypatch.chdir(folder)
    return folder


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def template(lab: Path, name: str, text: str) -> Path:
    path = lab / "templates" / f"{name}.j2"
    path.write_text(text)
    return path


def test_requests_are_rendered_by_our_templates_alone(lab: Path) -> None:
    template(lab, "environment.yml", "name: theirs\n")
    refused = run("render", "lab")
    assert refused.exit_code == InvalidSpec.exit_code
    assert "environment.yml.j2 has no effect" in refused.stderr and "spec.yml" in refused.stderr
    assert not (lab / "envs" / "lab" / "environment.yml").exists()


@pytest.mark.parametrize(
    "text,line,message",
    [
        ("a\nb {{ nothing }}\n", 2, "'nothing' is undefined"),
        (
            "{% if name %}\n\n{{ name.nothing.more }}\n{% endif %}\n",
            3,
            "has no attribute 'nothing'",
        ),
        ("a\n\n{% if name %}\n", 3, "Unexpected end of template"),
        ("{{ name | shouting }}\n", 1, "No filter named 'shouting'"),
        ("a\n{{ name + 1 }}\n", 2, "can only concatenate str"),
        ("a\n{{ 1 // 0 }}\n", 2, "zero"),
        ('a\n{% include "parts.j2" %}\n', 2, "there is no template parts.j2"),
        ('a\n{% include "../envs/lab/spec.yml" %}\n', 2, "there is no template"),
        ("a\n{{ ''.__class__.__mro__ }}\n", 2, "unsafe"),
        ("a\n{{ runtime.append(1) }}\n", 2, "append"),
        ("a\n{{ [1] | dictsort }}\n", 2, "has no attribute 'items'"),
        ("a\n{{ '{}'.format() }}\n", 2, "out of range"),
        ("{% macro a() %}{{ a() }}{% endmacro %}\n{{ a() }}\n", 1, "recursion"),
    ],
)
def test_template_mistakes_are_named_with_file_and_line(
    lab: Path, text: str, line: int, message: str
) -> None:
    path = template(lab, "contract-docker.sh", text)
    result = run(*CONTRACT)
    assert result.exit_code == InvalidSpec.exit_code, result.output
    assert f"{path}, line {line}: " in result.stderr and message in result.stderr
    assert "reference, registry_reference" in result.stderr  # what it is given


def test_no_generated_file_holds_a_credential(lab: Path) -> None:
    """A lab's template may not bring one."""
    address = "https://u:s3cr3t@h.example/x"
    template(lab, "contract-docker.sh", f"# {address}\n")
    refused = run(*CONTRACT)
    assert refused.exit_code == InvalidSpec.exit_code and "s3cr3t" not in refused.output


class BrokenValues(UserDict[str, str]):
    """Fails before a template reads a value."""

    def keys(self) -> NoReturn:
        raise KeyError("a bug of ours")


def test_error_outside_of_a_lab_template_is_not_blamed_on_it(lab: Path) -> None:
    template(lab, "Dockerfile", "{{ name }}\n")
    templates = render.Templates(lab / "templates")
    with pytest.raises(KeyError, match="a bug of ours"):
        templates.render("Dockerfile", BrokenValues(name="lab"))


def test_mistake_in_an_included_file_names_that_file(lab: Path) -> None:
    contract = template(lab, "contract-docker.sh", 'a\n{% include "part.j2" %}\n')
    path = template(lab, "part", "\n\n{{ nothing }}\n")
    assert f"{path}, line 3: 'nothing' is undefined" in run(*CONTRACT).stderr
    path.unlink()
    path.mkdir()
    assert run(*CONTRACT).exit_code == InvalidSpec.exit_code
    contract.write_bytes(b"\xff")
    assert "can't decode byte 0xff" in run(*CONTRACT).stderr


def test_spec_and_evidence_pages_ignore_lab_templates(lab: Path) -> None:
    for name in ("spec.yml", "report.html"):
        template(lab, name, "torch: 1\n")
    assert (
        run(
            "render",
            "--torch",
            "2.3",
            "--cuda",
            "12.1",
            "--python",
            "3.11",
            "--python-from",
            "channel",
        ).exit_code
        == 0
    )
    assert 'torch: "2.3"' in (lab / "envs" / "torch2.3-cuda12.1-py311" / "spec.yml").read_text()


def test_dockerfile_and_run_contract_from_lab_templates(lab: Path) -> None:
    notices: list[str] = []
    templates = render.Templates(lab / "templates", notices.append)
    template(
        lab, "Dockerfile", '{% include "provision/Dockerfile.j2" %}LABEL lab={{ name | shell }}\n'
    )
    values = dockerfile_context(resolution(), LOCK)
    text = render.render_dockerfile("toy", values, templates)[render.DOCKERFILE]
    lines = text.splitlines()
    assert lines[1].startswith("# Made by provision from spec.yml and templates/Dockerfile.j2;")
    ours = render.render_dockerfile("toy", values)[render.DOCKERFILE].splitlines()
    assert (lines[0], lines[3:-1]) == (ours[0], ours[3:])
    assert text.endswith("\nLABEL lab=toy\n") and notices == [
        f"Dockerfile is rendered from {lab / 'templates' / 'Dockerfile.j2'}"
    ]
    template(lab, "contract-docker.sh", "# {{ made_by }}\nexec podman run {{ reference }}\n")
    contract = contract_values("lab/toy:1")
    assert render.render_contract(
        "docker", contract, remake=["provision"], templates=templates
    ).endswith("\nexec podman run lab/toy:1\n")
    result = run("image", "contract", "lab", "--set", "image=lab/toy:1")
    completed = run(
        "image",
        "contract",
        "lab",
        "--set",
        "image=lab/toy:1",
        "--format",
        "slurm-pyxis",
        "--mount",
        "cache:/cache",
    )
    assert completed.exit_code == InvalidSpec.exit_code and "no named volumes" in completed.stderr
    assert (
        run("image", "contract", "lab", "--set", "image=oci:/x y").exit_code
        == InvalidSpec.exit_code
    )
    completed = run("image", "contract", "lab", "--format", "sif", "--", "train.py")
    assert completed.exit_code == InvalidSpec.exit_code and "takes no command" in completed.stderr
    assert result.stdout.endswith("\nexec podman run lab/toy:1\n"), result.output
    assert (
        "templates/contract-docker.sh.j2" in result.stdout and "is rendered from" in result.stderr
    )


def test_workflow_from_a_lab_template(lab: Path) -> None:
    (lab / "runners.yml").write_text(
        "workflow: {install: .}\n"
        "runners:\n  - name: v100\n    labels: [v100]\n    gpu: V100\n    driver: '535.129.03'\n"
    )
    template(lab, "github-workflow.yml", "on: push # ${{ kept }} [[ envs ]]\n")
    result = run("matrix", "ci")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == "on: push # ${{ kept }} envs"
    assert "from runners.yml and templates/github-workflow.yml.j2; remake with" in result.stdout


def contract_values(reference: str) -> dict[str, Any]:
    environment = launch.ImageEnvironment(reference=reference)
    job = launch.JobSpec(name="toy", environment=environment)
    return launch.contract_context("docker", resolution(), job, launch.RunOptions())


def template_variables() -> dict[str, dict[str, Any]]:
    """What each template is given, by real calls."""
    contract = {
        **contract_values("lab/toy:1"),
        "made_by": "",
    }
    settings = ci.WorkflowSettings(install=".")
    paths = ci.WorkflowPaths(jobs_command=("provision",))
    values = {
        render.DOCKERFILE: dockerfile_context(resolution(), LOCK),
        **dict.fromkeys(render.CONTRACTS.values(), contract),
        **{
            render.CONTRACTS[format]: {**launch.file_context(resolution(), "lab:1"), "made_by": ""}
            for format in launch.FILE_FORMATS
        },
    }
    return values | {render.WORKFLOW: ci.template_values(settings, paths)}


def test_docs_list_the_variables_of_each_template() -> None:
    """No more and no less, for every template that a lab may change."""
    sections = re.split(r"^## ", DOCS.read_text(), flags=re.MULTILINE)[1:]
    listed = {}
    for section in sections:
        names = re.findall(r"^\| (`[^|]*`) \|", section, flags=re.MULTILINE)
        for file in section.partition("\n")[0].split(", "):
            listed[file] = {name for row in names for name in re.findall(r"`(\w+)`", row)}
    values_by_file = template_variables()
    assert listed == {file: set(values) for file, values in values_by_file.items()}
    pages = {"report.html", "nodes.html", "lab.html", "page.html", "page-macros", "page-style.css"}
    scripts = {render.HEALTH_CHECK, render.MOUNT_SCRIPT, render.MOUNT_UNIT}
    inputs = {render.ENVIRONMENT, render.VIRTUAL_PACKAGES}
    fixed = {"spec.yml", *inputs, *scripts, *pages}
    parts = set(re.findall(r"part-[a-z-]+", DOCS.read_text()))
    assert {path.name.removesuffix(".j2") for path in TEMPLATES.glob("*.j2")} == set(
        values_by_file
    ) | fixed | parts


def test_lab_templates_have_the_json_filter(lab: Path) -> None:
    template(lab, "contract-devcontainer.json", '{"image": {{ reference | json }}}\n')
    templates = render.Templates(lab / "templates")
    values = contract_values('a"b')
    assert json.loads(
        render.render_contract("devcontainer", values, remake=[], templates=templates)
    ) == {"image": 'a"b'}


def test_copy_of_our_template_is_not_a_lab_template(lab: Path) -> None:
    """In a clone of provision, `templates/` of the working folder holds our own templates."""
    templates = render.Templates(TEMPLATES)
    assert templates.lab_file(render.DOCKERFILE) is None
    file = "contract-docker.sh"
    path = template(lab, file, (TEMPLATES / f"{file}.j2").read_text())
    copied = run(*CONTRACT)
    assert copied.exit_code == 0 and "is rendered from" not in copied.stderr
    assert "templates/" not in copied.stdout
    path.write_text(path.read_text() + "# the lab's own\n")
    assert "is rendered from" in run(*CONTRACT).stderr


def test_own_clone_templates_are_not_lab_templates(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TEMPLATES.parent)
    rendered = run("render", "lab", "--envs", str(lab / "envs"))
    assert rendered.exit_code == 0 and "is rendered from" not in rendered.stderr


def test_a_template_that_is_a_link_out_of_its_folder_is_refused(lab: Path) -> None:
    elsewhere = lab.parent / "elsewhere.j2"
    elsewhere.write_text("name: x\n")
    (lab / "templates" / "contract-docker.sh.j2").symlink_to(elsewhere)
    refused = run(*CONTRACT)
    assert refused.exit_code == 3
    assert "contract-docker.sh.j2 is a link to" in refused.stderr


def test_an_include_does_not_lead_out_of_the_folder_of_templates(lab: Path) -> None:
    (lab.parent / "secret").write_text("top-secret\n")
    (lab / "templates" / "part.j2").symlink_to(lab.parent / "secret")
    template(lab, "contract-docker.sh", "{% include 'part.j2' %}")
    refused = run(*CONTRACT)
    assert refused.exit_code == 3
    assert "part.j2 is a link to" in refused.stderr
    assert "top-secret" not in refused.output


def test_remembered_templates_include_no_others() -> None:
    for name in templates.REMEMBERED:
        text = (TEMPLATES / f"{name}.j2").read_text()
        assert not re.search(r"{%-? *(include|import|from|extends)\b", text), name
