"""Facts of a release from its wheels on an index; a release that only the index knows."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from provision import catalog
from provision.adapters.http import TIMEOUT_VARIABLE
from provision.adapters.uv.index_page import IndexFile
from provision.adapters.uv.linux_wheels import LinuxWheel, WheelIndex, linux_wheels
from provision.catalog import edition
from provision.catalog import facts as catalog_facts
from provision.cli.main import cli
from provision.core.paths import FACTS
from provision.resolver import warning_ids
from provision.workflow import index_facts as facts
from tests.faulty import Server, served
from tests.paths import DATA

CAPTURED = DATA / "wheels"


def captured(name: str) -> list[str]:
    return (CAPTURED / f"torch-{name}.txt").read_text().splitlines()


def files(*names: str, requires_python: str = "", yanked: bool = False) -> list[LinuxWheel]:
    def package(name: str) -> IndexFile:
        return IndexFile(name, f"u/{name}", requires_python, yanked)

    return list(linux_wheels(map(package, names)))


# Metadata


@pytest.mark.parametrize(
    ("name", "machine", "findings_of"),
    [
        ("1.12.1-x86_64", "x86_64", (None, None, None, None, "none")),
        ("1.13.1-x86_64", "x86_64", ("11.7", None, None, "8.5.0.96", "none")),
        ("2.3.1-x86_64", "x86_64", ("12.1", None, "2.20.5", "8.9.2.26", "==2.3.1")),
        ("2.3.1-aarch64", "aarch64", (None, None, None, None, "none")),
        ("2.9.1-x86_64", "x86_64", ("12.8", None, "2.27.5", "9.10.2.21", "==3.5.1")),
        ("2.11.0-aarch64", "aarch64", ("13.0", "13.0.2", "2.28.9", "9.19.0.56", "==3.6.0")),
        ("2.15.0-x86_64", "x86_64", ("13.2", "13.2.2", "2.30.7", "9.26.0.51", "~=3.9.0")),
    ],
)
def test_pins(name: str, machine: str, findings_of: tuple[str | None, ...]) -> None:
    read = facts.read_pins(captured(name), machine, "3.11")
    assert (read.cuda, read.toolkit, read.nccl, read.cudnn, read.triton) == findings_of


# Names


def test_names() -> None:
    result = files(
        "torch-2.15.0-cp313-cp313-manylinux_2_28_x86_64.whl",
        "torch-2.15.0-cp314-cp314t-manylinux_2_28_aarch64.whl",
        "torch-2.15.0-cp313-cp313-macosx_11_0_arm64.whl",
        "torch-2.15.0-cp313-cp313-win_amd64.whl",
        "torch-2.16.0rc1-cp313-cp313-manylinux_2_28_x86_64.whl",
        "torch-1.12.0-cp37-cp37m-manylinux1_x86_64.whl",
        "torch-2.6.0+cu126-cp311-cp311-linux_x86_64.whl",
        "torch-2.15.0.tar.gz",
        "not a wheel.whl",
    )
    assert [(file.base, file.python, file.machine, file.version.local) for file in result] == [
        ("2.15.0", "3.13", "x86_64", None),
        ("2.15.0", "3.14t", "aarch64", None),
        ("1.12.0", "3.7", "x86_64", None),
        ("2.6.0", "3.11", "x86_64", "cu126"),
    ]
    assert not files("torch-2.15.0-cp313-cp313-manylinux_2_28_x86_64.whl", yanked=True)


def test_rebuild_counts_as_its_release() -> None:
    result = files(
        "torch-2.10.0-cp310-cp310-manylinux_2_28_x86_64.whl",
        "torch-2.10.0-3-cp310-cp310-manylinux_2_28_x86_64.whl",
    )
    assert [file.name for file in facts.of_machine(result, "2.10.0", "x86_64")] == [
        "torch-2.10.0-3-cp310-cp310-manylinux_2_28_x86_64.whl"
    ]


@pytest.mark.parametrize(
    ("tags", "floor"),
    [
        (["manylinux_2_28_x86_64"], "2.28"),
        (["manylinux2014_aarch64"], "2.17"),
        (["manylinux1_x86_64"], None),  # it promises 2.5, and torch's wheels never ran there
        (["manylinux_2_28_x86_64", "manylinux2014_x86_64"], None),
    ],
)
def test_glibc_by_platform_tag(tags: list[str], floor: str | None) -> None:
    assert facts.glibc(files(*(f"torch-2.0.0-cp310-cp310-{tag}.whl" for tag in tags))) == floor


# A release that the facts do not have

INSISTED = [
    "matrix",
    "explain",
    "--torch",
    "2.16",
    "--cuda",
    "13.2",
    "--source",
    "wheels",
    "--json",
]


def publish(folder: Path, version: str, *names: str) -> None:
    """Wheels of a release with the metadata of a real one, read by ranges."""
    page = folder / "torch" / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    requires = "\n".join(f"Requires-Dist: {text}" for text in captured("2.15.0-x86_64"))
    for name in names:
        with zipfile.ZipFile(page.parent / name, "w") as archive:
            archive.writestr("torch/lib/weights", bytes(500_000))
            archive.writestr(
                f"torch-{version}.dist-info/METADATA",
                f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{requires}\n",
            )
        with page.open("a") as file:
            file.write(f'<a href="{name}">{name}</a>\n')


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    publish(
        tmp_path / "index",
        "2.16.0",
        "torch-2.16.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-2.16.0-cp313-cp313-manylinux_2_28_x86_64.whl",
    )
    for name in ("DATA", "CACHE"):
        monkeypatch.setenv(f"PROVISION_{name}", str(tmp_path / name))
    monkeypatch.setenv("PROVISION_CONFIG", str(tmp_path / "settings.yml"))
    (tmp_path / "settings.yml").write_text("{}")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.3")
    catalog_facts.forget()
    with served(tmp_path / "index") as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        yield server
    monkeypatch.undo()
    catalog_facts.forget()


def run(*arguments: str) -> Result:
    catalog_facts.forget()
    return CliRunner().invoke(cli, arguments)


def test_insisted_release_is_read_from_the_index(index: Server, tmp_path: Path) -> None:
    result = run(*INSISTED)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    choices = {choice["what"]: choice["value"] for choice in document["choices"]}
    assert (choices["torch"], choices["cuda"], choices["nccl"]) == ("2.16.0", "13.2", "2.30.7")
    assert (choices["python"], choices["cudnn"]) == ("3.12", "9.26.0.51")
    assert choices["gpu"] == "not known"
    # uv chooses it, and never one that was made for a torch that the facts have.
    (companion,) = (pin for pin in document["pins"] if pin["requirement"].startswith("torchvision"))
    newest = list(catalog.releases().values())[-2]  # the last but this one
    assert companion["requirement"] == f"torchvision>={newest.companions[0].version}"
    assert "unknown-release" in [warning["what"] for warning in document["warnings"]]
    assert "unknown-release" in warning_ids()
    assert sum(path.endswith(".whl") for path in index.log) and index.ranges
    # The index may be away for a while.
    index.fault("", 503)
    assert run(*INSISTED).exit_code == 0


def test_what_is_unknown_of_it_is_never_a_yes(index: Server) -> None:
    rows = run("facts", "update", "--from-index", "--mirror", f"pypi={index.url}")
    assert rows.exit_code == 0, rows.output
    listed = run("matrix", "--torch", "2.16", "--gpu", "H100", "--json")
    assert listed.exit_code == 4 and "might" in listed.stderr
    document = json.loads(
        run("matrix", "--torch", "2.16", "--unknown", "--gpu", "H100", "--json").stdout
    )
    assert [cell["not_known"] for cell in document["cells"]] == [["gpu"]]
    assert document["facts"]["from_index"] == ["2.16.0"]
    # Reading again finds nothing new, and the base is still the shipped facts' day.
    assert json.loads(run("facts", "update", "--from-index", "--json").stdout)["changed"] is False


def test_older_facts_that_the_user_wanted_stay_in_use_with_new_releases(
    index: Server, tmp_path: Path
) -> None:
    document = json.loads((catalog.DATA / FACTS).read_text())
    text = json.dumps({**document, "date": "2020-01-01"})
    (tmp_path / "old.json").write_text(text)
    address = f"{tmp_path}/old.json#sha256={hashlib.sha256(text.encode()).hexdigest()}"
    assert run("facts", "update", address, "--allow-older").exit_code == 0
    assert run("facts", "update", "--from-index").exit_code == 0
    catalog_facts.forget()
    assert (edition().date, edition().from_index) == ("2020-01-01", ("2.16.0",))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--torch", "2.16", "--cuda", "13.2"],
        ["--torch", ">=2.16", "--cuda", "13.2", "--source", "wheels"],
        ["--torch", "2.16", "--cuda", "13.2", "--source", "conda-forge"],
        ["--torch", "2.17", "--cuda", "13.2", "--source", "wheels"],
        ["--torch", "2.16", "--cuda", "12.6", "--source", "wheels"],
    ],
)
def test_other_requests_for_it_are_refused(index: Server, arguments: list[str]) -> None:
    result = run("matrix", "explain", *arguments)
    assert (result.exit_code, edition().date in result.stderr) == (4, True), result.output


def test_wheel_that_says_nonsense_is_not_used(index: Server, tmp_path: Path) -> None:
    for page in (tmp_path / "index" / "torch").glob("*.whl"):
        text = "Metadata-Version: 2.1\nName: torch\nVersion: 2.16.0\nRequires-Dist: <html>\n"
        Path(f"{page}.metadata").write_text(text)
    result = run(*INSISTED)
    assert (result.exit_code, "metadata of torch-2.16.0" in result.stderr) == (4, True)


def test_index_that_cannot_be_read(index: Server) -> None:
    index.fault("", 503)
    result = run(*INSISTED)
    assert (result.exit_code, "provision facts update" in result.stderr) == (8, True), result.output


def test_real_release_is_read_as_the_table_has_it(index: Server, tmp_path: Path) -> None:
    table = json.loads(json.dumps(catalog_facts.facts_table("releases")["2.15.0"]))
    publish(tmp_path / "index", "2.15.0", "torch-2.15.0-cp313-cp313-manylinux_2_28_x86_64.whl")
    with WheelIndex(index.url) as wheel_index:
        row = facts.TorchIndex(wheel_index).release("2.15.0")
    default, build = row["index_default"]["linux-64"], row["wheels"]["cu132"]
    expected = table["index_default"]["linux-64"]
    assert [default[name] for name in ("build", "toolkit", "source")] == [
        expected[name] for name in ("build", "toolkit", "source")
    ]
    assert default["glibc"] == expected["glibc"] and row["triton"] == table["triton"]
    for name in ("cuda", "on_pypi", "nccl", "cudnn"):
        assert build[name] == table["wheels"]["cu132"][name]


@pytest.mark.parametrize(
    "member,build", [("torch/lib/libtorch_cuda.so", None), ("torch/x.so", "cpu")]
)
def test_wheel_without_pins_is_cpu_only_if_it_has_no_cuda(
    index: Server, tmp_path: Path, member: str, build: str | None
) -> None:
    name = "torch-1.12.1-cp310-cp310-manylinux1_x86_64.whl"
    with zipfile.ZipFile(tmp_path / "index" / "torch" / name, "w") as archive:
        archive.writestr(member, b"")
        archive.writestr("torch-1.12.1.dist-info/METADATA", "Name: torch\nVersion: 1.12.1\n")
    (tmp_path / "index" / "torch" / "index.html").write_text(f'<a href="{name}">{name}</a>')
    with WheelIndex(index.url) as wheel_index:
        row = facts.TorchIndex(wheel_index).release("1.12.1")
    assert row["index_default"]["linux-64"]["build"] == build
    assert (facts.usable(row) is None) == (build is None)
