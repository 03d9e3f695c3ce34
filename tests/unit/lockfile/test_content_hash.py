"""Our content hash is conda-lock's for the forms that we render."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import conda_lock  # noqa: F401 - its modules import each other in a circle
import pytest
from conda_lock.content_hash import compute_content_hashes
from conda_lock.src_parser import make_lock_spec
from conda_lock.virtual_package import virtual_package_repo_from_specification
from hypothesis import given, settings
from hypothesis import strategies as st

from provision import catalog, lockfile, render, resolver, sources
from provision.lockfile import content_hash
from provision.resolver import spec

MACHINES = "subdirs: {linux-64: {packages: {__glibc: '2.28', __cuda: '12.1'}}, linux-aarch64: {packages: {__glibc: '2.34'}}}"
names = st.sampled_from(
    ["python", "numpy", "pytorch-cuda", "a.b", "x_y", "Foo", "pip", "_libgcc", "zlib"]
)
versions = st.sampled_from(
    ["3", "3.11", "2.3.1", "1.0.post1", "2024.1", "1.*", "3.11.*", "1!2.0", "1.0a1", "0.18.1+cu121"]
)
builds = st.sampled_from(["py3.11_cuda12.1*", "cuda126*", "0", "*", "py_0", "[build=x]"])
operators = st.sampled_from(["=", "==", "<", "<=", ">", ">=", "!=", "~=", " ", " ==", " <", "==="])
ranges = st.lists(st.tuples(operators, versions).map("".join), max_size=3).map(",".join)
channels = st.sampled_from(["", "", "pytorch::", "conda-forge::", "https://x.invalid/c::"])
conda_specs = st.one_of(
    st.tuples(channels, names, ranges).map("".join),
    st.builds("{}{}={}={}".format, channels, names, versions, builds),
    st.builds("{}{} {} {}".format, channels, names, versions, builds),
)
CHANNELS = ["conda-forge", "pytorch", "a/b", "https://x.invalid/c", "file:///srv/c"]
extras = st.sampled_from(["", "", "[extra]", "[b,a]"])
markers = st.sampled_from(["", "", "", "; python_version < '3.9'", " ; sys_platform == 'win32'"])
pip_specs = st.one_of(
    st.tuples(names, extras, ranges, markers).map("".join),
    names.map(lambda name: f"{name} @ https://x.invalid/{name}.whl"),
)


def inputs(conda: list[str], pip: list[str], channels: list[str]) -> lockfile.LockInputs:
    sections = [{"pip": pip}] if pip else []
    environment = json.dumps(
        {"name": "lab", "channels": [*channels, "nodefaults"], "dependencies": [*conda, *sections]},
        indent=1,
    )
    return lockfile.read_inputs(environment, MACHINES, Path("envs/lab"))


def hashes_by_conda_lock(lock_inputs: lockfile.LockInputs, folder: Path) -> Mapping[str, str]:
    """The hashes by conda-lock's own code."""
    (folder / "environment.yml").write_text(lock_inputs.environment)
    (folder / "virtual-packages.yml").write_text(lock_inputs.virtual_packages)
    made = make_lock_spec(
        src_files=[folder / "environment.yml"],
        platform_overrides=list(lock_inputs.machines),
        mapping_url=str(catalog.DATA / "pypi-conda-names.yml"),
    )
    machines = virtual_package_repo_from_specification(folder / "virtual-packages.yml")
    result: Mapping[str, str] = compute_content_hashes(made, machines)
    shutil.rmtree(machines.base_path)  # conda-lock leaves this to an exit handler
    return result


@settings(max_examples=300, deadline=None)
@given(
    conda=st.lists(conda_specs, min_size=1, max_size=4),
    pip=st.lists(pip_specs, max_size=3),
    channels=st.lists(st.sampled_from(CHANNELS), min_size=1, max_size=2, unique=True),
)
def test_hashes_equal_conda_locks(
    tmp_path_factory: pytest.TempPathFactory, conda: list[str], pip: list[str], channels: list[str]
) -> None:
    lock_inputs = inputs(conda, pip, channels)
    try:
        lockfile.check_inputs(lock_inputs, Path("envs/lab"))
    except Exception:  # no solver would take it either
        return
    hashes = content_hash.conda_lock_hashes(lock_inputs)
    folder = tmp_path_factory.getbasetemp()
    assert hashes is None or hashes == hashes_by_conda_lock(lock_inputs, folder)


@pytest.mark.parametrize("version", ["1.13.1", "2.1.2", "2.3.1", "2.6.0", "2.9.1"])
def test_rendered_inputs_have_conda_locks_hash(version: str, tmp_path: Path) -> None:
    result = 0
    for source in ("wheels", "pytorch", "conda-forge"):
        for build in sources.by_name(source).builds(catalog.releases()[version]):
            request = {
                "torch": version,
                "cuda": build.cuda,
                "source": source,
                "conda": ("scipy>=1.2,<3",),
                "pip": ("einops==0.8",),
            }
            resolution = resolver.resolve(spec.combine({}, request, name=""))
            texts = render.render_inputs(resolution)
            lock_inputs = lockfile.read_inputs(
                texts[render.ENVIRONMENT], texts[render.VIRTUAL_PACKAGES], Path("envs/lab")
            )
            hashes = content_hash.content_hashes(lock_inputs)
            assert hashes == hashes_by_conda_lock(lock_inputs, tmp_path)
            result += 1
    assert result


@pytest.mark.parametrize(
    "environment",
    [
        "channels: [c]\npip-repositories: [https://x.invalid]\ndependencies: [python]\n",
        "channels: [c]\ncategory: dev\ndependencies: [python]\n",
        "channels: [c]\ndependencies:\n- python # [linux64]\n",
        "channels: [c]\ndependencies: [python, pip: [six], other: [x]]\n",
        "channels: [c]\ndependencies: [python, pip: [six], {pip: [seven]}]\n",
    ],
)
def test_other_forms_have_a_hash_of_our_own(environment: str) -> None:
    lock_inputs = lockfile.read_inputs(environment, MACHINES, Path("envs/lab"))
    assert content_hash.conda_lock_hashes(lock_inputs) is None
    more = environment.replace("python", "python, zlib").replace("- python, zlib", "- python")
    hashes = content_hash.content_hashes(lock_inputs)
    assert len(set(hashes.values())) == 2  # each platform's
    other = lockfile.read_inputs(more + "\n# a comment\n", MACHINES, Path("envs/lab"))
    assert (content_hash.content_hashes(other) == hashes) == (more == environment)
