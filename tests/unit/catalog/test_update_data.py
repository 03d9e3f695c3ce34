"""Refreshing the data: what follows from wheels' names and metadata, and how the file is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.paths import DATA

pytest.importorskip("ruamel.yaml", reason="the refresh of the data has tools of its own")
pytest.importorskip("pypi_simple", reason="the refresh of the data has tools of its own")
pytest.importorskip("remotezip", reason="the refresh of the data has tools of its own")

from click.testing import CliRunner
from pypi_simple import DistributionPackage
from update_data import index, wheels
from update_data.__main__ import main
from update_data.compare import Findings, compare, unproven
from update_data.document import Document
from update_data.index import Content, File
from update_data.wheels import Row

from provision.catalog import DATA as CATALOG

CAPTURED = DATA / "wheels"


def captured(name: str, names: tuple[str, ...] | None = ("torch/lib/libtorch_cuda.so",)) -> Content:
    return Content(
        requirements=tuple((CAPTURED / f"torch-{name}.txt").read_text().splitlines()), names=names
    )


def files(*names: str, requires_python: str | None = None, yanked: bool = False) -> list[File]:
    def package(name: str) -> DistributionPackage:
        kind = "wheel" if name.endswith(".whl") else "sdist"
        return DistributionPackage(
            filename=name, url=f"u/{name}", project="torch", version=None, package_type=kind, digests={},
            requires_python=requires_python, has_sig=None, is_yanked=yanked,
        )  # fmt: skip

    return list(index._wheels(map(package, names)))


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
    read = wheels.pins(captured(name), machine, "3.11")
    assert (read.cuda, read.toolkit, read.nccl, read.cudnn, read.triton) == findings_of


def test_wheel_without_pins_is_cpu_only_if_it_has_no_cuda() -> None:
    def build(names: tuple[str, ...] | None) -> Any:
        rows = wheels.default_rows(
            "1.12.1",
            "linux-64",
            [],
            wheels.pins(captured("1.12.1-x86_64", names), "x86_64", "3.10"),
        )
        return rows[0].values["build"]

    assert build(("torch/lib/libtorch_cpu.so",)) == "cpu"
    assert build(("torch/lib/libtorch_cuda.so",)) is None
    assert build(None) is None


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
    assert wheels.releases([*result, *files("torch-1.9.0-cp37-cp37m-manylinux1_x86_64.whl")]) == [
        "1.12.0",
        "2.6.0",
        "2.15.0",
    ]


def test_rebuild_counts_as_its_release() -> None:
    result = files(
        "torch-2.10.0-cp310-cp310-manylinux_2_28_x86_64.whl",
        "torch-2.10.0-3-cp310-cp310-manylinux_2_28_x86_64.whl",
    )
    assert [file.name for file in wheels.of_machine(result, "2.10.0", "x86_64")] == [
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
    assert wheels.glibc(files(*(f"torch-2.0.0-cp310-cp310-{tag}.whl" for tag in tags))) == floor


def test_universal_wheel_covers_every_python() -> None:
    torch = files(
        "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.15.0-cp315-cp315-manylinux_2_28_x86_64.whl",
    )
    assert (
        wheels.fewer_pythons(
            torch, [files("torchvision-0.29.2-py3-none-manylinux_2_28_x86_64.whl")]
        )
        is None
    )
    assert (
        wheels.fewer_pythons(
            torch, [files("torchvision-0.29.2-cp310-abi3-manylinux_2_28_x86_64.whl")]
        )
        is None
    )
    assert wheels.fewer_pythons(
        torch, [files("torchvision-0.29.1-cp311-cp311-manylinux_2_28_x86_64.whl")]
    ) == ["3.11"]
    limited = files(
        "torchvision-0.29.2-py3-none-manylinux_2_28_x86_64.whl", requires_python=">=3.12"
    )
    assert wheels.fewer_pythons(torch, [limited]) == ["3.15"]


def test_architectures_are_read_from_the_library() -> None:
    # as they stand in the library of torch 2.8.0: the text before it has no end of its own
    result = wheels.architecture_row(
        "2.8.0", "linux-64", "cu128", b"\0ipc_hsm_70 sm_75 sm_120 compute_120\0\0/pytorch/torch"
    )
    assert result is not None and result.path == ("2.8.0", "wheels", "cu128", "architectures")
    assert result.values == {"sm": ["sm_70", "sm_75", "sm_120"], "ptx": True}
    other = wheels.architecture_row("2.15.0", "linux-aarch64", "cu132", b"sm_80 sm_90\0")
    assert other is not None and other.path == (
        "2.15.0",
        "index_default",
        "linux-aarch64",
        "architectures",
    )
    assert wheels.architecture_row("2.8.0", "linux-64", "cu128", b"sm_90\0nothing") is None
    assert (
        wheels.architecture_row("2.8.0", "linux-64", "cu128", b"sm_80 sm_90\0sm_70 sm_75\0") is None
    )


# Companions


def made_for(*requirements: str) -> Content:
    return Content(requirements=requirements, names=None)


def test_companions() -> None:
    candidates = [
        ("0.29.2", made_for("numpy", "torch>=2.14.0")),
        ("0.29.0", made_for("torch==2.14.0")),
        ("0.15.1", made_for("torch (==2.0.0)")),
        ("0.15.0", made_for("torch==2.0.0+cu117")),
    ]
    assert wheels.companion("2.15.0", candidates) == ("0.29.2", False)
    assert wheels.companion("2.14.0", candidates) == ("0.29.0", True)
    assert wheels.companion("2.0.0", candidates) == ("0.15.1", True)
    assert wheels.companion("1.13.0", candidates) is None
    assert wheels.companion(
        "2.12.0", [("2.11.0", made_for()), ("2.10.0", made_for("torch==2.10.0"))]
    ) == ("2.11.0", False)


def test_only_needed_companions_are_read() -> None:
    def candidates() -> Any:
        yield "0.29.2", made_for("torch>=2.14.0")
        yield "0.28.0", made_for("torch==2.13.0")
        raise AssertionError("read on")

    assert wheels.companion("2.15.0", candidates()) == ("0.29.2", False)


def test_conflicting_platforms_are_reported() -> None:
    first, other = (
        wheels.pins(captured(name), machine, "3.11")
        for name, machine in (("2.15.0-x86_64", "x86_64"), ("2.11.0-aarch64", "aarch64"))
    )
    assert wheels.disagreements("2.15.0", {"linux-64": first, "linux-aarch64": first}) == []
    (disagreement,) = wheels.disagreements("2.15.0", {"linux-64": first, "linux-aarch64": other})
    assert "NCCL 2.30.7" in disagreement and "NCCL 2.28.9" in disagreement


# Comparison


TABLE: dict[str, Any] = {
    "2.3.1": {
        "index_default": {
            "linux-64": {"build": "cu121", "toolkit": None, "source": "PyPI metadata torch==2.3.1"}
        },
        "wheels": {
            "cu121": {
                "cuda": "12.1",
                "nccl": {"version": "2.20.5", "source": "PyPI metadata torch==2.3.1"},
                "cudnn": {"version": None, "source": None},
            },
            "cu118": {"nccl": {"version": "2.20.5", "source": "pytorch/builder@ba10bae"}},
        },
    }
}
NCCL = ("2.3.1", "wheels", "cu121", "nccl")


def findings_of(*rows: Row) -> Findings:
    into = Findings()
    compare(rows, TABLE, into)
    return into


def row(path: tuple[str, ...], **values: Any) -> Row:
    return Row(path=path, values=values, source="PyPI metadata torch==2.3.1 (new)")


def test_confirmed_facts_change_nothing() -> None:
    assert findings_of(row(NCCL, version="2.20.5")) == Findings()


def test_derived_row_is_updated() -> None:
    findings = findings_of(row(NCCL, version="2.20.6"))
    assert [item.values for item in findings.rows] == [{"version": "2.20.6"}]
    assert "2.20.5 -> 2.20.6" in findings.changed[0]


def test_unknown_facts_are_filled() -> None:
    findings = findings_of(row(("2.3.1", "wheels", "cu121", "cudnn"), version="8.9.2.26"))
    assert findings.rows and "None -> 8.9.2.26" in findings.changed[0]


def test_fact_from_another_source_is_never_changed() -> None:
    findings = findings_of(row(("2.3.1", "wheels", "cu118", "nccl"), version="2.21.0"))
    assert not findings.rows
    assert findings.conflicts == [
        "2.3.1 wheels cu118 nccl: version is 2.20.5 by pytorch/builder@ba10bae, but 2.21.0 by PyPI metadata torch==2.3.1 (new)"
    ]
    assert findings.need_a_person


def test_unproven_fact_is_reported_and_stays() -> None:
    findings = findings_of(row(NCCL, version=None))
    assert not findings.rows and "2.20.5" in findings.unproven[0]
    gone = Findings()
    unproven(TABLE, [], ["2.3.1"], gone)
    assert gone.unproven == ["2.3.1 index_default linux-64 (PyPI metadata torch==2.3.1)"]


def test_unchecked_fact_is_not_called_unproven() -> None:
    compiled = {"sm": ["sm_80"], "source": "PyPI wheel torch==2.15.0 (linux aarch64): the list"}
    table = {"2.15.0": {"index_default": {"linux-aarch64": {"architectures": compiled}}}}
    quiet, looked = Findings(), Findings()
    unproven(table, [], ["2.15.0"], quiet)
    unproven(table, [], ["2.15.0"], looked, True)
    assert (len(quiet.unproven), len(looked.unproven)) == (0, 1)


# The file

COMMENTED = """\
# head
"2.3.1":
  wheels:
    cu121:
      cuda: "12.1" # why
      nccl:
        version: null
        # below
        source: null
"2.5.0":
  x: 1
"""


@pytest.mark.parametrize("name", ["releases.yml", "nccl.yml", "cuda.yml", "gpus.yml"])
def test_unchanged_file_stays_byte_identical(name: str) -> None:
    document = Document(CATALOG / name)
    assert document.changed() == document.text


def test_change_preserves_comments_and_order(tmp_path: Path) -> None:
    text = COMMENTED
    (tmp_path / "a.yml").write_text(text)
    document = Document(tmp_path / "a.yml")
    document.set(Row(path=NCCL, values={"version": "2.20.5"}, source="PyPI metadata torch==2.3.1"))
    expected = text.replace("version: null", 'version: "2.20.5"').replace(
        "source: null", "source: PyPI metadata torch==2.3.1"
    )
    assert document.changed() == expected
    assert document.diff(expected).startswith(
        "--- a/provision/catalog/data/a.yml\n+++ b/provision/catalog/data/a.yml\n"
    )
    document.set(
        Row(
            path=("2.4.0", "triton"),
            values={"requirement": "==3.0.0"},
            source="PyPI metadata torch==2.4.0",
        )
    )
    assert list(document.content) == ["2.3.1", "2.4.0", "2.5.0"]
    assert document.content["2.4.0"]["conda_forge"]["cuda"] == {}


# A folder that is not the data


@pytest.mark.parametrize(
    "table,message",
    [
        (None, "There is no "),
        (b"", "is not a mapping"),
        (b"[", "is not YAML"),
        (b"\xff", "it is not UTF-8 text"),
        (b"{}", "holds no release"),
        (b"a: {}", "has the key 'a', which is not a release"),
        (b"2.3: {}", "has the key 2.3, which is not a release (a version in quotes)"),
        (b'"2.3.1": 3', "has no mapping under 2.3.1"),
    ],
)
def test_folder_without_data_is_refused(tmp_path: Path, table: bytes | None, message: str) -> None:
    if table is not None:
        (tmp_path / "releases.yml").write_bytes(table)
    result = CliRunner().invoke(main, ["--data", str(tmp_path), "--index", "http://127.0.0.1:1/"])
    assert (result.exit_code, result.stderr.count("\n")) == (3, 1), result.output
    assert (
        result.stderr.startswith("error: ")
        and message in result.stderr
        and "releases.yml" in result.stderr
    )
