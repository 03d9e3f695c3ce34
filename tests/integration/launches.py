"""What tests of `provision launch` start from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from provision.environment import runtime_package
from tests.integration.conftest import Home, make_home


@pytest.fixture(scope="module")
def plain_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with our runtime package and nothing else: for jobs without torch."""
    prefix = tmp_path_factory.mktemp("plain")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    runtime_package.install(prefix, runtime_package.load())
    return prefix


def toy_lab(folder: Path, variables: Mapping[str, str]) -> Home:
    """A user of a cluster, with an environment `toy` in the envs folder."""
    home = make_home(folder / "home")
    (home.envs / "toy").mkdir(parents=True)
    (home.envs / "toy" / "spec.yml").write_text("torch: '2.3'\ncuda: '12.1'\npython: '3.11'\n")
    return Home(root=home.root, env={**home.env, **variables})
