"""Credentials, as users have them: refused where they would be recorded, used from where the error
says that they belong, and in no file and no output. And what build code sees of the user's variables.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.faulty import Server, served
from tests.integration.conftest import Home
from tests.integration.test_change import (
    BACKEND,
    NAME,
    contents,
    environment,
    git,
    imports,
    pip_requirements,
    prefix,
)
from tests.integration.test_change import built as built
from tests.integration.test_change import folder as folder
from tests.integration.test_change import lab as lab
from tests.integration.test_change import project as project
from tests.integration.test_change import world as world
from tests.small import write_wheel

pytestmark = [pytest.mark.index, pytest.mark.needs("git")]

USER, PASSWORD = "ann@lab.example", "pw+Zq7/9f=4c"
LOGIN = f"{USER}:{PASSWORD}"
ENCODED = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}"
FORMS = tuple(
    form.encode()
    for text in (PASSWORD, LOGIN)
    for form in (
        text,
        quote(text, safe=""),
        quote(quote(text, safe=""), safe=""),
        base64.b64encode(text.encode()).decode(),
        json.dumps(text)[1:-1],
    )
)


@pytest.fixture
def private(project: Path, tmp_path: Path) -> Iterator[Server]:
    """A server of a git repository and a wheel, for one user alone."""
    place = tmp_path / "private"
    place.mkdir()
    git(project, "clone", "-q", "--bare", ".", str(place / "mine.git"))
    git(place / "mine.git", "update-server-info")
    write_wheel(place, "side", "1.0")
    with served(place) as server:
        server.authorization = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
        yield server


def holds_secret(content: bytes) -> bool:
    return any(form in content for form in FORMS)


@pytest.mark.exhaustive
def test_a_login_is_recorded_nowhere_and_used_from_netrc(
    lab: Home, private: Server, tmp_path: Path
) -> None:
    outputs = []
    home = tmp_path / "home"
    home.mkdir()

    def run(status: int, *words: str) -> str:
        result = lab.run(*words, HOME=str(home))
        assert result.returncode == status, result.stdout + result.stderr
        outputs.append(result.stdout + result.stderr)
        return outputs[-1]

    before = contents(lab)
    addresses = {}
    for name, path in (("git", "mine.git@main"), ("wheel", "side-1.0-py3-none-any.whl")):
        addresses[name] = f"{private.url}/{path}"
    repository = f"git+{addresses['git']}"
    wheel = f"side @ {addresses['wheel']}"
    for request, status, option in ((repository, 3, "--json"), (wheel, 1, "--debug")):
        with_login = request.replace("://", f"://{ENCODED}@")
        refusal = run(status, "add", NAME, with_login, option)
        assert request in refusal
    assert contents(lab) == before and not private.log
    # What the error says works.
    line = re.search(r"`(machine \S+ login USER password PASSWORD)`", refusal)
    assert line
    netrc = home / ".netrc"
    netrc.write_text(line[1].replace("USER", USER).replace("PASSWORD", PASSWORD) + "\n")
    netrc.chmod(0o600)
    run(0, "add", NAME, repository, wheel)
    assert imports(lab, "mine") and imports(lab, "side")
    assert pip_requirements(lab) == [f"mine @ {repository}", wheel]
    # Where it is read again: a lock from nothing, and from a requirements file.
    lines = [f"--index-url {private.url.replace('://', f'://{ENCODED}@')}/simple"]
    lines += [f"mine @ {repository}", wheel, f"{repository}?private_token={quote(PASSWORD)}"]
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("\n".join(lines).replace("://", f"://{ENCODED}@"))
    run(0, "import", str(requirements), "--name", "imported", "--cpu", "--yes")
    assert f"{requirements}:4: {repository}" in run(0, "add", NAME, "-r", str(requirements))
    # Every product.
    run(0, "lock", NAME, "--relock")
    run(0, "lock", "verify", NAME)
    run(0, "lock", "export", NAME, "--format", "explicit")
    run(0, "build", NAME, "--no-image", "--no-smoke", "--no-kernel")
    run(0, "passport", "show", NAME, "--json")
    run(0, "report", NAME, "-o", str(lab.root / "work" / "report.html"))
    run(0, "env", "tree", NAME, "--json")
    run(0, "render", NAME)
    run(0, "env", "diff", NAME, "--deep")
    # A lock that another tool made with the login.
    foreign = tmp_path / "foreign"
    shutil.copytree(environment(lab), foreign / NAME)
    lock = foreign / NAME / "conda-lock.yml"
    lock.write_text(
        lock.read_text().replace(f"://{private.url[7:]}", f"://{ENCODED}@{private.url[7:]}")
    )
    assert holds_secret(lock.read_bytes())
    findings = run(1, "lock", "verify", str(lock), "--offline")
    for package in ("mine", "side"):
        assert f" {package} has an address with a password or token in it" in findings
    run(0, "lock", "export", str(lock), "--format", "explicit")
    options = ("--envs", str(foreign), "--prefix", str(tmp_path / "prefix"))
    run(0, "env", "create", NAME, *options)
    lock.unlink()
    places = (lab.root, foreign, home, tmp_path / "prefix")
    for file in (file for place in places for file in place.rglob("*")):
        if file.is_file() and file != netrc:
            assert not holds_secret(file.read_bytes()), file
    for output in outputs:
        assert not holds_secret(output.encode()), output


# Writes the variables that it sees into the module that it builds.
DUMPING_BACKEND = BACKEND.replace("{version}", "3.0").replace(
    'open("mine.py").read()', '"VARIABLES = " + repr(dict(__import__("os").environ))'
)
UNSEEN = {
    "AWS_SECRET_ACCESS_KEY": "unseen-1",
    "HF_TOKEN": "unseen-2",
    "WANDB_API_KEY": "unseen-3",
    "SSH_AUTH_SOCK": "/unseen-4",
    "UV_INDEX_LAB_PASSWORD": PASSWORD,
    "PIP_EXTRA_INDEX_URL": "https://ann:unseen-5@h.example/simple",
}
SEEN = {"TORCH_CUDA_ARCH_LIST": "9.0", "MAX_JOBS": "3", "CXX": "g++", "NO_PROXY": "127.0.0.1"}


def seen_by_build(lab: Home) -> dict[str, str]:
    code = "import json, mine; print(json.dumps(mine.VARIABLES))"
    python = prefix(lab) / "bin" / "python"
    result = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    variables: dict[str, str] = json.loads(result.stdout)
    return variables


@pytest.mark.exhaustive
def test_an_index_of_pytorchs_form_with_a_login(lab: Home, private: Server, tmp_path: Path) -> None:
    """A folder for each build, local versions, links from the root, no metadata beside the wheels; and
    a page of links without hashes."""
    whl = private.folder / "whl"
    wheel = write_wheel(whl / "cpu", "ext", "1.0+cpu", ("six",))
    write_wheel(whl / "cpu", "old", "2.0+cpu")
    write_wheel(whl / "cpu", "six", "1.17")
    address = wheel.name.replace("+", "%2B")
    for name, file in (("ext", address), ("six", "six-1.17-py3-none-any.whl")):
        (whl / "cpu" / name).mkdir()
        page = f'<a href="/whl/cpu/{file}">{file}</a>'
        (whl / "cpu" / name / "index.html").write_text(page)
    name = "old-2.0%2Bcpu-py3-none-any.whl"
    (whl / "torch_stable.html").write_text(f'<a href="cpu/{name}">cpu/{name}</a><br>')
    home = tmp_path / "home"
    home.mkdir()
    index = ("--extra-index-url", f"{private.url}/whl/cpu")
    before = contents(lab)
    refused = lab.run("add", NAME, "ext", "six", *index, HOME=str(home))
    assert refused.returncode != 0 and "netrc" in refused.stderr, refused.stderr
    assert contents(lab) == before
    netrc = home / ".netrc"
    netrc.write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
    netrc.chmod(0o600)
    added = lab.run("add", NAME, "ext", "six", *index, HOME=str(home))
    assert added.returncode == 0, added.stderr
    links = ("-f", f"{private.url}/whl/torch_stable.html")
    added = lab.run("add", NAME, "old", *links, HOME=str(home))
    assert added.returncode == 0, added.stderr
    assert imports(lab, "ext, six, old")
    assert f"/whl/cpu/{address}" in (environment(lab) / "conda-lock.yml").read_text()
    assert not any(map(holds_secret, contents(lab).values()))
