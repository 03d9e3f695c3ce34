"""The main job's Docker image on real input: gigabytes that the engine writes, which takes as long as all other tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.conftest import MAIN, MAIN_REQUEST, Home
from tests.integration.test_docs_examples import first_example

pytestmark = [pytest.mark.index, pytest.mark.docker]


def test_image_runs_the_smoke_test(home: Home, main_build: object, docker_base: str) -> None:
    result = home.run(
        "build",
        *MAIN_REQUEST,
        "--image",
        "--base",
        docker_base,
        "--set=profile=quick",
        timeout_s=1500,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    passport = json.loads((home.project / "passports" / MAIN / "passport.json").read_text())
    assert {place: verdict["verdict"] for place, verdict in passport["smoke"].items()} == {
        "prefix": "pass",
        "image": "pass",
    }
    facts = passport["smoke"]["image"]["report"]["facts"]
    assert "2.3.1+cu121" in json.dumps(facts)
    assert passport["image"]["reference"].startswith(f"provision/{MAIN}:")
    bill = home.run("image", "sbom", MAIN)
    assert "provision-runtime" in bill.stdout, bill.stderr
    again = home.run("build", MAIN, "--image", "--no-smoke")
    assert again.returncode == 0, again.stderr
    assert "made" not in again.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", ["checkpoints", "training"])
def test_first_docs_example_runs_in_the_image(
    home: Home, main_build: object, docker_base: str, tmp_path: Path, page: str
) -> None:
    result = home.run("image", "build", MAIN, "--base", docker_base)
    assert result.returncode == 0, result.stderr
    tmp_path.chmod(0o777)  # the image's user writes there
    (tmp_path / "train.py").write_text(first_example(page))
    torchrun = ("torchrun", "--standalone", "--nproc-per-node", "2", "train.py")
    completed = home.run("image", "run", MAIN, "--mount", f"{tmp_path}:/workspace", "--", *torchrun)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert list(tmp_path.glob("*/checkpoints/latest"))


@pytest.mark.exhaustive
def test_images_with_and_without_jupyter_share_large_layers(
    home: Home, main_build: object, docker_base: str
) -> None:
    """To the byte, and on the disk; whichever of the two is first."""
    for name, more in ((MAIN, ()), ("bare", ("--no-jupyter",))):
        assert home.run("lock", name, *MAIN_REQUEST, *more).returncode == 0
        assert home.run("env", "create", name).returncode == 0
        result = home.run(
            "image", "build", name, "--base", docker_base, "--output", f"oci:{home.root / name}"
        )
        assert result.returncode == 0, result.stderr
    full, bare = (_layers(home.root / name) for name in (MAIN, "bare"))
    large = {"base", "python", "torch", "cuda"}
    assert {group for group, _ in bare} >= large
    assert [row for row in bare if row[0] in large] == [row for row in full if row[0] in large]
    files = {
        digest: (home.root / MAIN / "blobs" / "sha256" / digest.removeprefix("sha256:")).stat()
        for _, digest in full
    }
    shared = [files[digest] for _, digest in bare if digest in files]
    # The rest is the layer of small packages: Jupyter is one of them.
    assert sum(file.st_size for file in shared) > 0.9 * sum(file.st_size for file in files.values())
    assert {files[digest].st_nlink for group, digest in bare if group in large} == {
        4
    }  # of both environments, and both exports
    assert home.run("env", "remove", "bare", "--yes").returncode == 0


def _layers(layout: Path) -> list[tuple[str, str]]:
    """Group and digest."""
    digest = json.loads((layout / "index.json").read_bytes())["manifests"][0][
        "digest"
    ].removeprefix("sha256:")
    rows = json.loads((layout / "blobs" / "sha256" / digest).read_bytes())["layers"]
    return [(row["annotations"]["org.provision.group"], row["digest"]) for row in rows]


@pytest.mark.exhaustive
def test_image_of_a_second_environment_is_tested_and_removed(
    home: Home, cpu_request: tuple[str, ...], docker_base: str
) -> None:
    """image build alone, then smoke in it, then everything of the machine goes and the lab keeps its folder."""
    import docker

    assert home.run("build", "imaged", *cpu_request, "--no-image", "--no-smoke").returncode == 0
    completed = home.run("image", "build", "imaged", "--base", docker_base)
    assert completed.returncode == 0, completed.stderr
    (home.root / "folder").mkdir()
    files = (
        f"--set=folder={home.root / 'folder'}",
        "--output",
        str(home.root / "kept"),
    )
    tested = home.run("smoke", "imaged", "--image", "--quick", *files)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert [path.name for path in (home.root / "kept").rglob("report.json")] == ["report.json"] * 2
    assert list((home.root / "folder").iterdir()) == []
    passport = json.loads((home.project / "passports" / "imaged" / "passport.json").read_text())
    assert (
        passport["smoke"]["image"]["verdict"] == "pass" and passport["kernel"]["name"] == "imaged"
    )
    client = docker.from_env()
    assert client.images.list(name="provision/imaged")
    assert home.run("env", "remove", "imaged", "--yes").returncode == 0
    assert not client.images.list(name="provision/imaged")
    client.close()
    assert not [
        path
        for folder in ("prefixes", "images")
        for path in (home.project / folder).glob("*imaged*")
    ]
    assert not (home.root / "jupyter" / "kernels" / "imaged").exists()
    assert (home.envs / "imaged" / "conda-lock.yml").exists()
    assert home.run("env", "remove", "imaged", "--yes").returncode == 9
