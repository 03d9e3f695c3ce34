"""What build code sees of the user's variables."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path

import pytest

from tests.faulty import Server
from tests.integration.conftest import Home
from tests.integration.test_change import NAME, commit, git
from tests.integration.test_change import built as built
from tests.integration.test_change import folder as folder
from tests.integration.test_change import lab as lab
from tests.integration.test_change import project as project
from tests.integration.test_change import world as world
from tests.integration.test_credentials import (
    DUMPING_BACKEND,
    LOGIN,
    SEEN,
    UNSEEN,
    USER,
    seen_by_build,
)
from tests.integration.test_credentials import private as private

pytestmark = [pytest.mark.index, pytest.mark.needs("git")]


@pytest.mark.exhaustive
def test_build_code_sees_few_variables(
    lab: Home, world: Server, project: Path, private: Server
) -> None:
    """uv and git log in all the same: uv by its own variables, git by its."""
    authorization = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
    variables = {
        **UNSEEN,
        **SEEN,
        "UV_DEFAULT_INDEX": f"lab={world.url}/simple",
        "UV_INDEX_LAB_USERNAME": USER,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "http.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: {authorization}",
    }
    user = dataclasses.replace(lab, env={**lab.env, **variables})
    (project / "backend.py").write_text(DUMPING_BACKEND)
    commit(project)
    git(project, "push", "-q", "-f", str(private.folder / "mine.git"), "main")
    git(private.folder / "mine.git", "update-server-info")
    world.authorization = authorization
    try:
        added = user.run("add", NAME, str(project))
        assert added.returncode == 0, added.stderr
        seen = seen_by_build(lab)
        assert SEEN.items() <= seen.items() and "PATH" in seen and "HOME" in seen
        values = " ".join(seen.values())
        for name, value in {**UNSEEN, "GIT_CONFIG_VALUE_0": authorization}.items():
            assert name not in seen and value not in values
        repository = f"git+{private.url}/mine.git@main"
        refused = user.run("add", NAME, repository, PROVISION_BUILD_ENV="NO_SUCH")
        assert refused.returncode == 3 and "NO_SUCH" in refused.stderr
        added = user.run("add", NAME, repository, "--build-env", "HF_TOKEN")
        assert added.returncode == 0, added.stderr
    finally:
        world.authorization = None
    seen = seen_by_build(lab)
    assert seen["HF_TOKEN"] == "unseen-2"
    assert not {*UNSEEN, "GIT_CONFIG_VALUE_0"} - {"HF_TOKEN"} & seen.keys()
