"""`provision add`, `remove` and `update` with real parts: this machine's Python, uv, tiny wheels."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rattler.shell import ActivationVariables, Shell, activate

from provision.adapters import uv
from provision.core import host
from provision.environment.marker import MARKER
from provision.render import file_state
from tests import evidence
from tests.conftest import ROOT
from tests.faulty import Server, served
from tests.integration.conftest import NO_INDEXES, Home, make_home, on_terminal
from tests.results import parse_result
from tests.small import write_index, write_wheel
from tests.unit.cli.test_quickstart import quick_start

NAME = "small"
KERNEL_PAGE = (ROOT / "docs" / "kernel.md").read_text()
REQUEST = ("--torch", "2.13", "--cpu", "--no-companions", "--python-from", "host")

pytestmark = pytest.mark.index


def publish(world: Path, name: str, version: str, needs: tuple[str, ...] = ()) -> None:
    wheel = write_wheel(world / "files", name, version, needs)
    page = world / "simple" / name / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    earlier = page.read_text() if page.exists() else ""
    page.write_text(
        f'{earlier}<a href="../../files/{wheel.name}#sha256={sha256}">{wheel.name}</a>\n'
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = tmp_path_factory.mktemp("world")
    write_index(world)
    publish(world, "toy", "1.0", ("toyparts>=1",))
    publish(world, "toyparts", "1.5")
    return world


@pytest.fixture(scope="module")
def world(folder: Path) -> Iterator[Server]:
    with served(folder) as server:
        yield server


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, packaged_python: Path, world: Server) -> Home:
    """A user with an installed environment of tiny wheels."""
    root = tmp_path_factory.mktemp("lab") / "home"
    home = make_home(root, shares_packages=True)
    index = {
        **NO_INDEXES,
        "PIP_INDEX_URL": f"{world.url}/simple",
        "UV_CACHE_DIR": str(root / "uv"),
    }
    user = Home(root=root, env={**home.env, **index})
    shutil.copytree(packaged_python, root / "data" / "channels", symlinks=True)
    result = user.run("build", NAME, *REQUEST, "--no-image", "--no-smoke", "--no-kernel")
    assert result.returncode == 0, result.stderr
    return user


def passport_file(lab: Home) -> Path:
    return lab.project / "passports" / NAME / "passport.json"


def passport(lab: Home) -> dict[str, Any]:
    result = lab.run("passport", "show", NAME, "--json")
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = parse_result(result.stdout)
    return document


def row(lab: Home) -> dict[str, Any]:
    """What `env list` says."""
    (listed,) = parse_result(lab.run("env", "list", "--json").stdout)["environments"]
    environment: dict[str, Any] = listed
    return environment


def record_pass(lab: Home) -> None:
    """As if the smoke test had passed here: tiny wheels cannot be tested."""
    document = json.loads(passport_file(lab).read_text())
    verdict = evidence.passport(evidence.report(evidence.phase()))["smoke"]["prefix"]
    verdict = {**verdict, "measured_on": host.identity(), "lock_sha256": lock_sha256(lab)}
    passport_file(lab).write_text(json.dumps({**document, "smoke": {"prefix": verdict}}))


def lock_sha256(lab: Home) -> str:
    return hashlib.sha256((environment(lab) / "conda-lock.yml").read_bytes()).hexdigest()


@pytest.fixture
def lab(built: Home) -> Iterator[Home]:
    """The same for each test: what it changed is undone by the verbs that it tests."""
    before, inode = contents(built), prefix(built).stat().st_ino
    yield built
    if contents(built) == before and prefix(built).stat().st_ino == inode:
        return
    for path, text in before.items():
        path.write_bytes(text)
    assert built.run("env", "create", NAME).returncode == 0


def environment(lab: Home) -> Path:
    return lab.root / "work" / "envs" / NAME


def prefix(lab: Home) -> Path:
    return lab.project / "prefixes" / NAME


def contents(lab: Home) -> dict[Path, bytes]:
    files = [path for path in sorted(environment(lab).iterdir()) if path.is_file()]
    return {path: path.read_bytes() for path in files}


def versions(lab: Home) -> dict[str, str]:
    import yaml

    lock = yaml.safe_load((environment(lab) / "conda-lock.yml").read_text())
    return {entry["name"]: entry["version"] for entry in lock["package"]}


def pip_requirements(lab: Home) -> list[str]:
    """The `pip` of spec.yml."""
    import yaml

    spec: dict[str, list[str]] = yaml.safe_load((environment(lab) / "spec.yml").read_text())
    return spec.get("pip", [])


def imports(lab: Home, module: str) -> bool:
    python = prefix(lab) / "bin" / "python"
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0


def test_add_and_remove_change_nothing_else(lab: Home, folder: Path, world: Server) -> None:
    before, was = contents(lab), versions(lab)
    publish(folder, "numpy", "2.9.0")  # newer, and not asked for
    torch = next(prefix(lab).glob("lib/python3*/site-packages/torch.py"))
    inode = torch.stat().st_ino
    world.clear()
    result = lab.run("add", NAME, "toy")
    assert result.returncode == 0, result.stderr
    # The index is asked about what is new, and not about all that stays.
    assert {path for path in world.log if "simple" in path} == {"/simple/toy/", "/simple/toyparts/"}
    assert "added    toy 1.0" in result.stdout and "added    toyparts 1.5" in result.stdout
    assert "2 of" in result.stdout
    assert versions(lab) == {**was, "toy": "1.0", "toyparts": "1.5"}
    assert imports(lab, "toy, toyparts, torch, provision_runtime")
    assert torch.stat().st_ino == inode  # not installed again
    assert lab.run("env", "diff", NAME, "--deep").stdout == "no difference\n"
    assert pip_requirements(lab) == ["toy"]
    # So options of later commands reach it, too.
    assert file_state(environment(lab) / "spec.yml") == "ours"

    result = lab.run("remove", NAME, "toy", "--json")
    assert result.returncode == 0, result.stderr
    differences = parse_result(result.stdout)["diff"]["differences"]
    assert [row["package"] for row in differences] == ["toy", "toyparts"]
    assert contents(lab) == before
    assert not imports(lab, "toy") and not imports(lab, "toyparts") and imports(lab, "torch")
    # uv removes the byte code of all modules in a removed module's folder.
    compiled = {path.name.split(".")[0] for path in torch.parent.glob("__pycache__/*.pyc")}
    assert "torch" in compiled and "toy" not in compiled
    assert lab.run("env", "diff", NAME, "--deep").stdout == "no difference\n"


@pytest.mark.exhaustive
def test_add_moves_what_cannot_stay(lab: Home, folder: Path) -> None:
    """numpy, and so a package that the new one does not name, to what the index has by now."""
    publish(folder, "holder", "1.0", ("numpy<2.8",))
    assert lab.run("add", NAME, "holder").returncode == 0
    was = versions(lab)
    publish(folder, "numpy", "2.8.0")
    publish(folder, "holder", "1.1", ("numpy>=2.8",))
    publish(folder, "mover", "1.0", ("numpy>=2.8,<2.9",))
    result = lab.run("add", NAME, "mover")
    assert result.returncode == 0, result.stderr
    assert versions(lab) == {**was, "mover": "1.0", "numpy": "2.8.0", "holder": "1.1"}
    assert lab.run("env", "diff", NAME).stdout == "no difference\n"


@pytest.mark.exhaustive
def test_quiet_shows_no_bars_on_a_terminal(lab: Home) -> None:
    """Neither ours nor uv's. Variables of uv, which nox sets, are a warning, and that is printed."""
    env = {name: value for name, value in lab.env.items() if not name.startswith("UV_P")}
    quiet = dataclasses.replace(lab, env=env)
    status, output = on_terminal(quiet, "add", NAME, "toy", "-q")
    assert (status, output) == (0, "")
    assert imports(lab, "toy")


def test_changed_file_is_drift(lab: Home) -> None:
    victim = next(prefix(lab).glob("lib/python3*/site-packages/numpy.py"))
    content = victim.read_bytes()
    victim.unlink()  # it may be a hard link
    victim.write_bytes(content + b"\n# edited\n")
    try:
        result = lab.run("env", "diff", NAME, "--deep")
        assert (result.returncode, result.stdout.split()[:2]) == (1, ["changed", "numpy:"])
    finally:
        victim.write_bytes(content)
    assert lab.run("env", "diff", NAME, "--deep").stdout == "no difference\n"


@pytest.mark.exhaustive
def test_quick_start_of_a_laptop(lab: Home, folder: Path) -> None:
    """As printed, after the build, which is here one of tiny wheels: no smoke test could run."""
    publish(folder, "einops", "0.8.1")
    build, *others = quick_start("A laptop or a workstation")
    assert build.startswith("build lab ")
    outputs = {}
    for command in others:
        verb, *words = shlex.split(command)
        result = lab.run(verb, *(NAME if word == "lab" else word for word in words))
        assert result.returncode == 0, result.stderr
        outputs[verb] = result.stdout
    assert outputs["run"] == "2.13.0+cpu\n"
    assert "added    einops" in outputs["add"] and imports(lab, "einops")
    assert NAME in outputs["status"]


def test_conda_activates_the_prefix(lab: Home) -> None:
    """By rattler's activation, which reads the prefix as conda's does."""
    variables = ActivationVariables(None, ["/usr/bin", "/bin"])
    activation = activate(prefix(lab), variables, Shell.bash).script
    show = 'echo "$PYTHONNOUSERSITE $CONDA_PREFIX"; command -v python'
    result = subprocess.run(
        ["bash", "--norc", "-c", f"{activation}\n{show}"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"1 {prefix(lab)}\n{prefix(lab) / 'bin' / 'python'}\n"


def test_vscode_finds_prefix_and_kernel(lab: Home, tmp_path: Path) -> None:
    """By the rules of its extensions, after the line of docs/kernel.md; VS Code itself is not run.

    python-environment-tools (crates/pet-conda): a folder that ~/.conda/environments.txt names is an
    environment if it has conda-meta, and an installation of conda if it has `envs`, too. Its Python
    is bin/python, its version that of the record python-VERSION-BUILD.json. vscode-jupyter
    (jupyterPaths.node.ts): kernels are in ~/.local/share/jupyter/kernels.
    """
    home, data = tmp_path / "home", ".local/share"
    (home / data).mkdir(parents=True)
    (home / data / "provision").symlink_to(lab.root / "data")
    [line] = re.findall(r"^    (.* >> ~/.conda/environments.txt)$", KERNEL_PAGE, re.MULTILINE)
    subprocess.run(["sh", "-c", line], env={**os.environ, "HOME": str(home)}, check=True)
    listed = (home / ".conda" / "environments.txt").read_text().splitlines()
    [environment_path] = [Path(path) for path in listed if Path(path).name == NAME]
    assert (environment_path / "conda-meta").is_dir() and not (environment_path / "envs").exists()
    version = next(
        match[1]
        for path in environment_path.glob("conda-meta/*.json")
        if (match := re.fullmatch(r"python-([\d.]+)-.*\.json", path.name))
    )
    script = "import platform; print(platform.python_version())"
    command: list[str | Path] = [environment_path / "bin" / "python", "-c", script]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == version

    result = lab.run("kernel", "add", NAME, JUPYTER_DATA_DIR=str(home / data / "jupyter"))
    assert result.returncode == 0, result.stderr
    spec = json.loads((home / data / "jupyter" / "kernels" / NAME / "kernel.json").read_text())
    assert spec["argv"][0] == str(prefix(lab) / "bin" / "python")


@pytest.mark.docker
def test_running_without_an_image_says_how_to_make_it(lab: Home) -> None:
    result = lab.run("run", NAME, "--image", "--", "python", "train.py")
    assert result.returncode == 9, result.stderr
    assert "is not in the Docker engine" in result.stderr
    assert f"`provision image build {NAME}` makes it" in result.stderr


def test_update_moves_what_is_named(lab: Home, folder: Path) -> None:
    publish(folder, "xxhash", "4.2.0")
    publish(folder, "setuptools", "81.0.0")
    was = versions(lab)
    result = lab.run("update", NAME, "xxhash", "--dry-run")
    assert "nothing was changed" in result.stdout and versions(lab) == was
    result = lab.run("update", NAME, "xxhash")
    assert result.returncode == 0, result.stderr
    assert versions(lab) == {**was, "xxhash": "4.2.0"}
    module = next(prefix(lab).glob("lib/python3*/site-packages/xxhash.py"))
    assert "4.2.0" in module.read_text()


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        (("add", NAME, "nosuchpackage"), 5, "nosuchpackage"),
        (("add", NAME, "torch==1.0"), 3, "excludes"),
        (("add", NAME, "to y"), 3, "not a requirement"),
        (("add", NAME), 3, "No package was named"),
        (("remove", NAME, "toyparts"), 3, "does not request `toyparts`"),
        (("remove", NAME, "numpy"), 3, "numpy"),
        (("update", NAME, "nosuchpackage"), 3, f"`provision env tree {NAME}` lists"),
    ],
)
def test_what_fails_changes_nothing(
    lab: Home, arguments: tuple[str, ...], code: int, message: str
) -> None:
    before, inode = contents(lab), prefix(lab).stat().st_ino
    result = lab.run(*arguments)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert contents(lab) == before
    assert prefix(lab).stat().st_ino == inode


@pytest.mark.exhaustive
def test_the_passport_follows_a_change(lab: Home) -> None:
    record_pass(lab)
    assert row(lab)["smoke"] == "prefix: pass"
    for command in (("add", NAME, "toy"), ("update", NAME), ("remove", NAME, "toy")):
        result = lab.run(*command)
        assert result.returncode == 0, result.stderr
        document = passport(lab)
        assert (document["outdated"], document["lock"]["sha256"]) == ("", lock_sha256(lab))
        assert ("toy" in document["request"].get("pip", [])) is (command[0] != "remove")
        assert document["smoke"] == {} and row(lab)["smoke"] == ""
        assert "toy" in lab.run("report", NAME, "--json").stdout or command[0] == "remove"
    # What is machine-bound does not lie with what is committed.
    assert "passport.json" not in {path.name for path in contents(lab)}


@pytest.mark.hosts
def test_a_pass_on_another_machine_is_not_one_here(lab: Home, tmp_path: Path) -> None:
    """Two machines with one home: another host name, and another machine id."""
    record_pass(lab)
    (tmp_path / "machine-id").write_text(f"{'7' * 32}\n")
    uts = ("unshare", "--uts", "sh", "-c", 'hostname gpu07; exec "$@"', "sh")
    mount = f"mount --bind {shlex.quote(str(tmp_path))}/machine-id /etc/machine-id"
    own = ("unshare", "--mount", "sh", "-ec", f'{mount}; exec "$@"', "sh")
    command = (Path(sys.executable).parent / "provision", "env", "list")
    name = platform.node()
    for words, text in ((uts, f"pass on {name}, "), (own, f"pass on a machine called {name}, ")):
        result = subprocess.run(
            [*words, *command],
            cwd=lab.root / "work",
            env=dict(lab.env),
            capture_output=True,
            text=True,
            check=True,
        )
        assert text in result.stdout
    assert " pass " in lab.run("env", "list").stdout and not row(lab)["verdicts"][0]["elsewhere"]


@pytest.mark.exhaustive
def test_a_new_lock_makes_the_passport_one_of_another_lock(lab: Home, folder: Path) -> None:
    record_pass(lab)
    publish(folder, "six", "1.17.0")
    assert lab.run("lock", NAME, "--pip", "six", "--relock").returncode == 0
    assert "of another lock" in passport(lab)["outdated"]
    assert "of another lock" in lab.run("passport", "show", NAME).stdout
    page = parse_result(lab.run("report", NAME, "--json").stdout)
    assert page["verdict"] == "unknown" and "of another lock" in page["files"][0]["outdated"]
    assert row(lab)["state"] == "stale"
    assert lab.run("env", "create", NAME).returncode == 0
    assert passport(lab)["outdated"] == "" and passport(lab)["smoke"] == {}


# Before what a change is killed: an audit event, and what it is about.
STEPS = {
    "journal": ("os.rename", "/changes/"),
    "spec": ("os.rename", "/spec.yml"),
    "lock": ("os.rename", "/conda-lock.yml"),
    "swap": ("ctypes.dlsym", "renameat2"),
    "inputs": ("os.rename", "/environment.yml"),
    "dockerfile": ("os.rename", "/Dockerfile"),
    "building": ("os.mkdir", "provision-building"),
    "swapped": ("os.rename", "provision-replaced"),
    "wheels": ("os.rename", "provision-building/lib"),
    "records": ("os.rename", "provision-building/conda-meta"),
    "end": ("os.remove", "/changes/"),
    "passport": ("os.rename", "/passports/"),
}
VERBS = {
    "add": ("add", NAME, "toy"),
    "remove": ("remove", NAME, "toyparts"),
    "build": ("build", NAME, "--pip", "toy", "--relock", "--no-image", "--no-smoke"),
    "lock": ("lock", NAME, "--pip", "toy", "--relock"),
}


def kill_cases() -> Iterator[Any]:
    for verb in VERBS:
        for step in STEPS:
            is_in_ci = verb == "add" and step in ("lock", "wheels", "passport")
            yield pytest.param(verb, step, marks=[] if is_in_ci else pytest.mark.exhaustive)


@pytest.mark.parametrize("verb,step", list(kill_cases()))
def test_kill_at_any_step(lab: Home, verb: str, step: str) -> None:
    """Nothing wrong is claimed, and one command heals."""
    assert lab.run("add", NAME, "toyparts").returncode == 0
    record_pass(lab)
    tested = lock_sha256(lab)
    script = Path(__file__).parent / "killed_verb.py"
    result = subprocess.run(
        [sys.executable, script, *STEPS[step], *VERBS[verb]],
        cwd=lab.root / "work",
        env=dict(lab.env),
        capture_output=True,
        text=True,
    )
    # `add` has every step but the exchange of whole prefixes, other verbs have not.
    has_step = verb == "add" and step != "swap"
    expected = (-signal.SIGKILL,) if has_step else (-signal.SIGKILL, 0)
    assert result.returncode in expected, result.stderr
    check_claims(lab, tested)
    assert lab.run("run", NAME, "--", "python", "-c", "import torch").returncode == 0
    healed = lab.run("build", NAME, "--no-image", "--no-smoke")
    assert healed.returncode == 0, healed.stderr
    check_claims(lab, tested)
    assert row(lab)["state"] == "current" and passport(lab)["outdated"] == ""
    again = lab.run(*VERBS[verb])
    assert again.returncode == 0 or (verb == "remove" and again.returncode == 3), again.stderr
    if verb != "lock":
        assert row(lab)["state"] == "current" and passport(lab)["outdated"] == ""
        assert lab.run("env", "diff", NAME).stdout == "no difference\n"
    folders = (environment(lab), prefix(lab).parent)
    assert not [path for folder in folders for path in folder.iterdir() if path.name[0] == "."]


def check_claims(lab: Home, tested: str) -> None:
    """What is said of the environment is true."""
    listed, marker = row(lab), json.loads((prefix(lab) / MARKER).read_text())
    requested = pip_requirements(lab)
    if listed["state"] == "current":
        assert marker["lock_sha256"] == lock_sha256(lab)
        locked = versions(lab)
        for module in ("toy", "toyparts"):
            assert imports(lab, module) == (module in locked)
            assert module not in requested or module in locked
    document = passport(lab)
    if document["outdated"] == "":
        assert document["lock"]["sha256"] == marker["lock_sha256"] == lock_sha256(lab)
    if listed["smoke"] == "prefix: pass":
        assert marker["lock_sha256"] == tested
    else:
        assert listed["smoke"] in ("", "of another lock")


def test_failed_installation_restores_the_files(lab: Home, folder: Path) -> None:
    """The index serves other bytes than those that were locked."""
    publish(folder, "late", "1.0")
    assert lab.run("add", NAME, "late", "--dry-run").returncode == 0
    shutil.rmtree(lab.root / "uv")  # else the wheel would come from uv's cache
    (folder / "files" / "torch-2.13.0+cpu-py3-none-any.whl").rename(folder / "away")
    before, inode = contents(lab), prefix(lab).stat().st_ino
    record = passport_file(lab).read_bytes()
    site = next(path for path in prefix(lab).glob("lib/python3*/site-packages"))
    try:
        # A stray package makes the prefix be installed anew, and torch is gone from the index.
        (site / "stray-1.0.dist-info").mkdir()
        result = lab.run("add", NAME, "late")
        assert result.returncode == 8, result.stderr
        assert contents(lab) == before and passport_file(lab).read_bytes() == record
        assert prefix(lab).stat().st_ino == inode
    finally:
        (site / "stray-1.0.dist-info").rmdir()
        (folder / "away").rename(folder / "files" / "torch-2.13.0+cpu-py3-none-any.whl")


@pytest.mark.exhaustive
def test_spec_of_the_user_keeps_its_comments(lab: Home) -> None:
    path = environment(lab) / "spec.yml"
    text = path.read_text().split("\n", 2)[2] + "# mine\npip:  # see wiki\n  - toyparts  # small\n"
    path.write_text(text)
    assert lab.run("lock", NAME, "--relock").returncode == 0
    assert lab.run("add", NAME, "toy").returncode == 0
    assert path.read_text() == text + "  - 'toy'\n"
    assert lab.run("remove", NAME, "toy", "toyparts").returncode == 0
    assert "# mine" in path.read_text() and "toy" not in path.read_text()


@pytest.mark.exhaustive
def test_requirements_file(lab: Home, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("toyparts>=1  # parts\n")
    (tmp_path / "requirements.txt").write_text(
        "# ours\n-r more.txt\ntoy==1.0 \\\n  --hash=sha256:0\n"
    )
    result = lab.run("add", NAME, "-r", str(tmp_path / "requirements.txt"))
    assert result.returncode == 0, result.stderr
    assert versions(lab)["toy"] == "1.0"
    assert pip_requirements(lab) == ["toyparts>=1", "toy==1.0"]


BACKEND = """
import zipfile
INFO = "mine-{version}.dist-info"

def wheel(folder, files):
    name = "mine-{version}-py3-none-any.whl"
    files = dict(files)
    files[INFO + "/METADATA"] = "Metadata-Version: 2.1\\nName: mine\\nVersion: {version}\\nRequires-Dist: toyparts\\n"
    files[INFO + "/WHEEL"] = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    record = "".join(path + ",,\\n" for path in files) + INFO + "/RECORD,,\\n"
    with zipfile.ZipFile(folder + "/" + name, "w") as archive:
        for path, text in [*files.items(), (INFO + "/RECORD", record)]:
            archive.writestr(path, text)
    return name

def build_wheel(folder, config_settings=None, metadata_directory=None):
    return wheel(folder, {"mine.py": open("mine.py").read()})

def build_editable(folder, config_settings=None, metadata_directory=None):
    import os
    return wheel(folder, {"mine.pth": os.getcwd() + "\\n"})
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that builds itself, in a git repository with a tag and a branch."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    change_project(folder, "1.0")
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    git(folder, "tag", "v1")
    return folder


def change_project(folder: Path, version: str) -> None:
    (folder / "backend.py").write_text(BACKEND.replace("{version}", version))
    (folder / "mine.py").write_text(f"VERSION = {version!r}\n")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    result = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


def version_in(lab: Home) -> str:
    code = "import mine; print(mine.VERSION)"
    python = prefix(lab) / "bin" / "python"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def entry(lab: Home, name: str) -> dict[str, object]:
    import yaml

    lock = yaml.safe_load((environment(lab) / "conda-lock.yml").read_text())
    row: dict[str, object] = next(item for item in lock["package"] if item["name"] == name)
    return row


@pytest.mark.exhaustive
@pytest.mark.needs("git")
def test_git_repository_is_locked_by_its_commit(lab: Home, project: Path) -> None:
    first = git(project, "rev-parse", "HEAD")
    address = f"git+{project.as_uri()}@main"
    result = lab.run("add", NAME, address)
    assert result.returncode == 0, result.stderr
    assert version_in(lab) == "1.0" and versions(lab)["toyparts"] == "1.5"
    assert entry(lab, "mine")["url"] == f"git+{project.as_uri()}@{first}"
    assert pip_requirements(lab) == [f"mine @ {address}"]
    change_project(project, "2.0")
    second = commit(project)
    # The branch moved, and another package was added: the commit stays.
    assert lab.run("add", NAME, "toy").returncode == 0
    assert entry(lab, "mine")["url"] == f"git+{project.as_uri()}@{first}"
    assert lab.run("update", NAME, "mine").returncode == 0
    assert entry(lab, "mine")["url"] == f"git+{project.as_uri()}@{second}"
    assert version_in(lab) == "2.0"
    assert lab.run("env", "diff", NAME).stdout == "no difference\n"
    assert lab.run("lock", "verify", NAME, "--offline").returncode == 0


@pytest.mark.exhaustive
@pytest.mark.needs("git")
def test_project_becomes_a_wheel_next_to_spec_yml(lab: Home, project: Path) -> None:
    result = lab.run("add", NAME, str(project))
    assert result.returncode == 0, result.stderr
    wheel = environment(lab) / "wheels" / "mine-1.0-py3-none-any.whl"
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    row = entry(lab, "mine")
    assert (row["url"], row["hash"]) == (f"file:wheels/{wheel.name}", {"sha256": sha256})
    assert version_in(lab) == "1.0"
    # The same version with other code is installed, too.
    (project / "mine.py").write_text("VERSION = 'changed'\n")
    assert lab.run("add", NAME, str(project)).returncode == 0
    assert version_in(lab) == "changed"
    # The environment's folder can be moved: its wheel goes along.
    moved = lab.root / "elsewhere" / "envs"
    moved.parent.mkdir()
    shutil.copytree(environment(lab).parent, moved)
    options = ("--envs", str(moved), "--prefix", str(lab.root / "elsewhere" / "prefix"))
    shutil.rmtree(environment(lab))
    result = lab.run("env", "create", NAME, *options)
    shutil.copytree(moved / NAME, environment(lab))
    assert result.returncode == 0, result.stderr
    assert (lab.root / "elsewhere" / "prefix" / "bin" / "python").exists()
    shutil.rmtree(lab.root / "elsewhere")
    assert lab.run("remove", NAME, "mine").returncode == 0
    assert not wheel.parent.exists()


@pytest.mark.exhaustive
@pytest.mark.needs("git")
@pytest.mark.parametrize("form", ["folder", "wheel"])
def test_the_same_version_with_other_code_is_installed(
    lab: Home, project: Path, tmp_path: Path, form: str
) -> None:
    """Of another project, and of a changed one after `remove`: with the times of the first."""
    other = tmp_path / "other" / "mine"
    shutil.copytree(project, other)
    for source, version in ((project, "one"), (other, "two"), (project, "six")):
        if version == "six":
            assert lab.run("remove", NAME, "mine").returncode == 0
            assert not imports(lab, "mine")
        module = source / "mine.py"
        module.write_text(f"VERSION = {version!r}\n")
        os.utime(module, (1e9, 1e9))
        path = source
        if form == "wheel":
            backend = "import backend; print(backend.build_wheel('.'))"
            wheel = subprocess.run(
                [sys.executable, "-c", backend], cwd=source, capture_output=True, text=True
            )
            path = source / wheel.stdout.strip()
            os.utime(path, (1e9, 1e9))
        result = lab.run("add", NAME, str(path))
        assert result.returncode == 0, result.stderr
        assert version_in(lab) == version
    assert lab.run("env", "diff", NAME, "--deep").stdout == "no difference\n"


def test_nothing_of_an_earlier_build_is_in_a_wheel(tmp_path: Path) -> None:
    """With setuptools itself: a module that is gone, and one whose old version is back."""
    project = tmp_path / "mine"
    package = project / "mine"
    package.mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "mine"\nversion = "1.0"\n[tool.setuptools]\npackages = ["mine"]\n'
    )
    (package / "__init__.py").write_text("VERSION = 'new'\n")
    (package / "gone.py").write_text("")
    # Of a build that somebody else started.
    shutil.copytree(package, project / "build" / "lib" / "mine")
    before = set(project.rglob("build/**/*"))
    (package / "gone.py").unlink()
    (package / "__init__.py").write_text("VERSION = 'old'\n")
    os.utime(package / "__init__.py", (1e9, 1e9))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with zipfile.ZipFile(uv.build_wheel(project, tmp_path, python=python)) as wheel:
        modules = {name for name in wheel.namelist() if name.endswith(".py")}
        assert modules == {"mine/__init__.py"}
        assert wheel.read("mine/__init__.py") == b"VERSION = 'old'\n"
    assert set(project.rglob("build/**/*")) == before


@pytest.mark.exhaustive
@pytest.mark.needs("git")
def test_editable_counts_at_once_and_is_not_portable(lab: Home, project: Path) -> None:
    result = lab.run("add", NAME, "-e", str(project))
    assert result.returncode == 0, result.stderr
    assert "editable: mine; the lock is not portable" in result.stdout
    assert version_in(lab) == "1.0"
    (project / "mine.py").write_text("VERSION = 'changed'\n")
    assert version_in(lab) == "changed"
    assert lab.run("env", "diff", NAME).stdout == "no difference\n"
    result = lab.run("pack", NAME)
    assert result.returncode == 3 and "mine is an editable" in result.stderr


@pytest.mark.exhaustive
@pytest.mark.needs("git")
def test_failed_project_leaves_no_wheel(lab: Home, project: Path) -> None:
    before = contents(lab)
    result = lab.run("add", NAME, str(project), "nosuchpackage")
    assert result.returncode == 5, result.stderr
    (project / "backend.py").write_text("broken(")
    result = lab.run("add", NAME, str(project))
    assert result.returncode == 3 and "cannot be built as a wheel" in result.stderr
    result = lab.run("add", NAME, str(project / "nosuch"))
    assert result.returncode == 3 and "There is no" in result.stderr
    assert contents(lab) == before


@pytest.mark.exhaustive
def test_run_brings_the_environment_up_to_date_first(lab: Home) -> None:
    toy = ("--", "python", "-c", "import toy, toyparts")
    spec, lock = environment(lab) / "spec.yml", environment(lab) / "conda-lock.yml"
    locked = lock.read_bytes()
    spec.write_text(spec.read_text() + "pip: [toy]\n")
    stale = lab.run("run", NAME, "--sync", "--locked", *toy)
    assert (stale.returncode, lock.read_bytes()) == (6, locked)
    result = lab.run("run", NAME, "--sync", *toy)
    assert result.returncode == 0, result.stderr
    assert versions(lab)["toyparts"] == "1.5"
    inode = prefix(lab).stat().st_ino
    again = lab.run("run", NAME, "--sync", *toy)
    assert (again.returncode, again.stderr, prefix(lab).stat().st_ino) == (0, "", inode)
    # Another lock, as after `git switch`: `sync: true` needs no option.
    lock.write_bytes(locked)
    spec.write_text(spec.read_text().replace("pip: [toy]", "sync: true"))
    switched = lab.run("run", NAME, *toy)
    assert switched.returncode == 1 and "No module named 'toy'" in switched.stderr
