"""A request is resolved once, and its plan predicts what a command does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from provision import channel, resolver
from provision import lockfile as locks
from provision.adapters import conda
from provision.cli.main import cli
from provision.core.errors import StaleLock, ToolMissing, Unsolvable
from provision.core.paths import Folders, default_folders
from provision.core.types import LockedPackage, Prefix, Resolution, SmokeResult
from provision.environment import drift, kernel
from provision.verbs.env import env
from provision.workflow import ensure
from provision.workflow.context import Context
from provision.workflow.plan import BuildRequest, Plan, make_plan, with_name
from provision.workflow.smoke import smoke
from tests import evidence
from tests.described_environments import described_environments
from tests.progress import Recorder

FORGE = conda.channel_url("conda-forge")
SPEC = 'torch: "2.3"\ncuda: "12.1"\npython: "3.11"\npython_from: channel\n'
NEW = ("--torch", "2.3", "--cuda", "12.1", "--python-from", "channel")
PACKAGES = (
    LockedPackage(
        manager="conda",
        name="python",
        version="3.11.9",
        build="h_0",
        url=f"{FORGE}linux-64/python-3.11.9-h_0.conda",
        sha256="0" * 64,
        md5="0" * 32,
    ),
    LockedPackage(
        manager="conda",
        name="ipykernel",
        version="6.29",
        build="h_0",
        url=f"{FORGE}noarch/ipykernel-6.29-h_0.conda",
        sha256="1" * 64,
        md5="1" * 32,
    ),
)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """Two environments with a spec.yml, and a solver that needs no channel."""
    described_environments(tmp_path, monkeypatch, ("lab", "other"), SPEC)
    monkeypatch.setattr(locks, "solve", lambda *_, **__: PACKAGES)
    return Folders(data=tmp_path / "data", cache=tmp_path / "cache", envs=tmp_path / "envs")


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every environment that was resolved, in order."""
    names: list[str] = []
    resolve: Callable[..., Resolution] = resolver.resolve

    def counting(*arguments: Any) -> Resolution:
        resolution = resolve(*arguments)
        names.append(resolution.spec.name)
        return resolution

    monkeypatch.setattr(resolver, "resolve", counting)
    return names


def invoke(*command_line: str) -> str:
    result = CliRunner().invoke(cli, list(command_line))
    assert result.exit_code in (0, 1) and not isinstance(result.exception, AssertionError), (
        result.output
    )
    return result.stdout


@pytest.mark.parametrize(
    "command_line",
    [
        ("build", "lab", "--dry-run"),
        ("render", "lab"),
        ("render", "lab", "--dry-run"),
        ("lock", "lab"),
        ("lock", "lab", "--dry-run"),
        ("env", "create", "lab", "--dry-run"),
        ("image", "build", "lab", "--output", "oci:out", "--dry-run"),
        ("image", "contract", "lab", "--set", "image=lab:1"),
        # Their names are made from what they resolve to.
        ("build", *NEW, "--dry-run"),
        ("render", *NEW),
        ("lock", *NEW),
    ],
    ids=" ".join,
)
def test_each_command_resolves_its_environment_once(
    folders: Folders, resolved: list[str], command_line: tuple[str, ...]
) -> None:
    invoke(*command_line)
    assert len(resolved) == 1


def test_asking_channels_for_python_does_not_resolve_again(
    folders: Folders, resolved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conda.Solver, "unreachable_channels", lambda *_: {})
    invoke("build", "--torch", "2.3", "--cuda", "12.1", "--dry-run")
    assert len(resolved) == 1


@pytest.mark.parametrize("python_from", ["auto", "host"])
def test_python_of_this_machine_does_not_resolve_again(
    folders: Folders, resolved: list[str], monkeypatch: pytest.MonkeyPatch, python_from: str
) -> None:
    """If it is the one that the build would get anyway."""
    monkeypatch.setattr(conda.Solver, "unreachable_channels", lambda *_: {"conda-forge": "silent"})
    monkeypatch.setattr(channel, "host_minor", lambda: "3.11")
    options = {"torch": "2.3", "cuda": "12.1", "python_from": python_from}
    plan = make_plan(context(folders), with_name(context(folders), BuildRequest(options=options)))
    assert plan.python_from == "host"
    assert len(resolved) == 1
    assert plan.resolution == resolver.resolve(plan.resolution.spec)


@pytest.fixture
def host_lock_of_python311(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> Folders:
    """`lab` is locked with the machine's Python 3.11, and provision now runs under 3.12."""
    (folders.envs / "lab" / "spec.yml").write_text(SPEC.replace("channel", "host"))
    monkeypatch.setattr(channel, "host_minor", lambda: "3.11")
    plan = make_plan(context(folders), BuildRequest(name="lab"))
    text, _ = locks.compose(plan.folder / locks.FILE, plan.inputs, PACKAGES, python_from="host")
    (plan.folder / locks.FILE).write_text(text)
    monkeypatch.setattr(channel, "host_minor", lambda: "3.12")
    return folders


@pytest.mark.parametrize("python", ['python: "3.11"\n', ""], ids=["requested", "as locked"])
def test_a_lock_with_the_machines_python_is_current_under_another_python(
    host_lock_of_python311: Folders, python: str
) -> None:
    spec = host_lock_of_python311.envs / "lab" / "spec.yml"
    spec.write_text(spec.read_text().replace('python: "3.11"\n', python))
    plan = make_plan(context(host_lock_of_python311), BuildRequest(name="lab"))
    assert plan.python_from == "host"
    assert plan.resolution.spec.python == "3.11"
    assert plan.lock_is_current
    assert ensure.require_existing_lock(plan).python_from == "host"
    contract = invoke("image", "contract", "lab", "--set", "image=lab:1")
    assert "lab:1" in contract


def test_solving_with_the_machines_python_needs_that_python(
    host_lock_of_python311: Folders,
) -> None:
    with pytest.raises(ToolMissing, match=r"Python 3\.11 was requested, .* which has 3\.12"):
        make_plan(context(host_lock_of_python311), BuildRequest(name="lab", relock=True))
    plan = make_plan(context(host_lock_of_python311), BuildRequest(name="lab"))
    with pytest.raises(ToolMissing, match=r"run provision with Python 3\.11"):
        ensure.local_python(context(host_lock_of_python311), plan, host_lock_of_python311.channels)


@pytest.mark.parametrize(
    "options,warns",
    [
        ((), False),
        (("--torch", "2.3", "--base", "debian:bookworm-slim"), False),
        (("--torch", "2.4"), True),
    ],
)
def test_options_that_a_spec_of_the_user_lacks_are_warned_of(
    folders: Folders, options: tuple[str, ...], warns: bool
) -> None:
    """Else the next command without them finds the lock stale, and --relock takes them back."""
    result = CliRunner().invoke(cli, ["lock", "lab", "--relock", *options])
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert ("was edited and is not rewritten: write what --torch says" in said) == warns
    assert ("is not rewritten" in said) == warns
    # A spec.yml that provision wrote gets the options.
    result = CliRunner().invoke(cli, ["lock", *NEW])
    assert "not rewritten" not in result.stderr


def test_all_environments_are_resolved_once_each(folders: Folders, resolved: list[str]) -> None:
    invoke("lock", "--all")
    assert sorted(resolved) == ["lab", "other"]


def test_options_for_an_existing_environment_resolve_twice(
    folders: Folders, resolved: list[str]
) -> None:
    """The first finds the name; the second adds what the folder's spec.yml says."""
    invoke("render", *NEW)
    invoke("render", *NEW)
    assert len(resolved) == 1 + 2


def test_smoke_resolves_once_and_env_diff_never(
    folders: Folders, resolved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("lock", "lab")
    resolved.clear()
    prefix = Prefix(name="lab", path=folders.prefixes / "lab", lock_sha256="0" * 64)
    tested = []

    def smoke_in(context: Context, plan: Any, *_: Any) -> Any:
        tested.append(plan.name)
        return evidence_result()

    for module in (smoke, env):
        monkeypatch.setattr(module, "require_prefix", lambda *_: prefix)
    monkeypatch.setattr(smoke, "ensure_runtime", lambda *_: None)
    monkeypatch.setattr(smoke, "smoke_in", smoke_in)
    invoke("smoke", "lab")
    assert (tested, resolved) == (["lab"], ["lab"])
    monkeypatch.setattr(drift, "find_drift", lambda *_, **__: [])
    invoke("env", "diff", "lab")
    assert resolved == ["lab"]


def evidence_result() -> Any:
    report = evidence.report(evidence.phase())
    return SmokeResult(where="prefix", verdict="pass", report=report, evidence=Path("/data"))


def context(folders: Folders) -> Context:
    return Context(folders=folders, progress=Recorder())


def actions(folders: Folders, **fields: Any) -> dict[str, str]:
    plan = make_plan(context(folders), BuildRequest(name="lab", **fields))
    return {step.stage: step.action for step in plan.steps()}


def test_steps_of_a_new_environment(folders: Folders) -> None:
    assert set(actions(folders).values()) == {"make", "run"}


def test_a_locked_environment_keeps_its_lock_unless_it_is_solved_again(folders: Folders) -> None:
    invoke("lock", "lab")
    assert actions(folders)["lock"] == "keep"
    assert actions(folders, relock=True)["lock"] == "make"


def test_plan_and_command_agree_on_the_lock(folders: Folders) -> None:
    with ensure.locked_plan(context(folders), BuildRequest(name="lab")) as plan:
        assert plan.lock_step().action == "make"
        _, lock, is_new, _ = ensure.ensure_lock(context(folders), plan)
        assert is_new and len(lock.packages) == len(PACKAGES)
    with ensure.locked_plan(context(folders), BuildRequest(name="lab")) as plan:
        assert plan.lock_step().action == "keep"
        _, lock, is_new, _ = ensure.ensure_lock(context(folders), plan)
        assert not is_new


def test_options_skip_stages(folders: Folders) -> None:
    steps = actions(folders, image="skip", smoke=False, kernel=False)
    assert [stage for stage, action in steps.items() if action == "skip"] == [
        "image",
        "smoke",
        "kernel",
    ]


def test_a_kernel_needs_its_launcher_in_the_lock(folders: Folders) -> None:
    plan = make_plan(context(folders), BuildRequest(name="lab"))
    without = locks.compose(
        plan.folder / locks.FILE, plan.inputs, PACKAGES[:1], python_from="channel"
    )[1]
    assert plan.kernel_step(None).action == "make"
    assert plan.kernel_step(without).would == "skip (no ipykernel in the lock)"


def test_a_finished_environment_keeps_prefix_and_kernel(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("lock", "lab")
    prefix = Prefix(name="lab", path=tmp_path / "prefix", lock_sha256="")
    (prefix.path / "lib/python3.11/site-packages").mkdir(parents=True)
    monkeypatch.setattr(Plan, "reusable_prefix", lambda plan, lock: prefix)
    plan = make_plan(context(folders), BuildRequest(name="lab"))

    def would() -> dict[str, str]:
        return {step.stage: step.would for step in plan.steps()}

    assert would()["prefix"] == f"nothing: {prefix.path} matches the lock"

    title = plan.kernel_title
    assert would()["kernel"] == f"register {title!r} if the smoke test passes"
    kernel.install(prefix, title)
    assert would()["kernel"] == f"nothing: {title!r} is registered"


def test_dry_run_prints_the_steps(folders: Folders) -> None:
    output = json.loads(invoke("build", "lab", "--no-image", "--dry-run", "--json"))
    assert [sorted(step) for step in output["steps"]] == [["stage", "would"]] * 5
    by_stage = {step["stage"]: step["would"] for step in output["steps"]}
    assert by_stage["image"] == "skip (--no-image)"
    assert by_stage["prefix"] == f"install {default_folders().prefixes / 'lab'}"


def test_dry_run_solves_and_writes_nothing(folders: Folders) -> None:
    by_stage = {
        step["stage"]: step["would"]
        for step in json.loads(invoke("build", "lab", "--dry-run", "--json"))["steps"]
    }
    folder = folders.envs / "lab"
    assert by_stage["lock"] == f"lock again in {folder}, with Python from conda-forge"
    assert by_stage["image"].endswith("; if a Docker engine answers")
    assert not (folders.envs / "lab" / "conda-lock.yml").exists()
    assert not folders.data.exists()


def test_dry_run_solves_again_only_if_the_lock_is_replaced(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("lock", "lab")
    solve, solved = locks.solve, []

    def counted(*arguments: Any, **options: Any) -> Any:
        solved.append(arguments)
        return solve(*arguments, **options)

    monkeypatch.setattr(locks, "solve", counted)
    for options, begin in (((), "nothing: 2 packages"), (("--relock",), "lock again")):
        output = invoke("build", "lab", *options, "--no-image", "--dry-run", "--json")
        lock_step = next(step for step in json.loads(output)["steps"] if step["stage"] == "lock")
        assert lock_step["would"].startswith(begin)
        assert len(solved) == (begin == "lock again")


def test_dry_run_of_what_cannot_be_solved_fails_as_the_build_would(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise Unsolvable("No wheels satisfy `einops`.")

    monkeypatch.setattr(locks, "solve", fail)
    result = CliRunner().invoke(cli, ["build", "lab", "--dry-run"])
    assert result.exit_code == Unsolvable.exit_code
    assert "No wheels satisfy `einops`" in result.output


def test_naming_a_request_twice_changes_nothing(folders: Folders) -> None:
    options = {"torch": "2.3", "cuda": "12.1", "python_from": "channel"}
    request = with_name(context(folders), BuildRequest(options=options))
    assert request.name and request.resolved
    assert with_name(context(folders), request) == request


def test_a_stale_lock_is_not_replaced_unasked(folders: Folders) -> None:
    invoke("lock", "lab")
    before = (folders.envs / "lab" / "conda-lock.yml").read_bytes()
    with ensure.locked_plan(
        context(folders), BuildRequest(name="lab", options={"glibc": "2.31"})
    ) as plan:
        assert not plan.lock_is_current
        with pytest.raises(StaleLock, match="is stale: the request changed"):
            ensure.ensure_lock(context(folders), plan)
    assert (folders.envs / "lab" / "conda-lock.yml").read_bytes() == before
