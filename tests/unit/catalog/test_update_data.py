"""Refreshing the data: how what wheels say is held against the table, and how the file is changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ruamel.yaml", reason="the refresh of the data has tools of its own")

from click.testing import CliRunner
from update_data.__main__ import main
from update_data.architectures import compiled_for
from update_data.companions import companion, fewer_pythons
from update_data.compare import Findings, Row, compare, unproven
from update_data.document import Document
from update_data.refresh import disagreements

from provision.adapters.uv.index_page import IndexFile
from provision.adapters.uv.linux_wheels import LinuxWheel, linux_wheels
from provision.catalog import DATA as CATALOG
from provision.workflow.index_facts import Pins


def test_conflicting_platforms_are_reported() -> None:
    def pins(nccl: str) -> Pins:
        return Pins(cuda="13.2", toolkit="13.2.2", nccl=nccl, cudnn="9.26.0.51", triton="none")

    assert (
        disagreements("2.15.0", {"linux-64": pins("2.30.7"), "linux-aarch64": pins("2.30.7")}) == []
    )
    (disagreement,) = disagreements(
        "2.15.0", {"linux-64": pins("2.30.7"), "linux-aarch64": pins("2.28.9")}
    )
    assert "NCCL 2.30.7" in disagreement and "NCCL 2.28.9" in disagreement


# Companions


def files(*names: str, requires_python: str = "") -> list[LinuxWheel]:
    return list(linux_wheels(IndexFile(name, f"u/{name}", requires_python) for name in names))


def test_universal_wheel_covers_every_python() -> None:
    torch = files(
        "torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.15.0-cp315-cp315-manylinux_2_28_x86_64.whl",
    )
    assert (
        fewer_pythons(torch, [files("torchvision-0.29.2-py3-none-manylinux_2_28_x86_64.whl")])
        is None
    )
    assert (
        fewer_pythons(torch, [files("torchvision-0.29.2-cp310-abi3-manylinux_2_28_x86_64.whl")])
        is None
    )
    assert fewer_pythons(
        torch, [files("torchvision-0.29.1-cp311-cp311-manylinux_2_28_x86_64.whl")]
    ) == ["3.11"]
    limited = files(
        "torchvision-0.29.2-py3-none-manylinux_2_28_x86_64.whl", requires_python=">=3.12"
    )
    assert fewer_pythons(torch, [limited]) == ["3.15"]


def made_for(*requirements: str) -> tuple[str, ...]:
    return requirements


def test_companions() -> None:
    candidates = [
        ("0.29.2", made_for("numpy", "torch>=2.14.0")),
        ("0.29.0", made_for("torch==2.14.0")),
        ("0.15.1", made_for("torch (==2.0.0)")),
        ("0.15.0", made_for("torch==2.0.0+cu117")),
    ]
    assert companion("2.15.0", candidates) == ("0.29.2", False)
    assert companion("2.14.0", candidates) == ("0.29.0", True)
    assert companion("2.0.0", candidates) == ("0.15.1", True)
    assert companion("1.13.0", candidates) is None
    assert companion("2.12.0", [("2.11.0", made_for()), ("2.10.0", made_for("torch==2.10.0"))]) == (
        "2.11.0",
        False,
    )


def test_only_needed_companions_are_read() -> None:
    def candidates() -> Any:
        yield "0.29.2", made_for("torch>=2.14.0")
        yield "0.28.0", made_for("torch==2.13.0")
        raise AssertionError("read on")

    assert companion("2.15.0", candidates()) == ("0.29.2", False)


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


def test_architectures_are_read_from_the_library() -> None:
    # as they stand in the library of torch 2.8.0: the text before it has no end of its own
    library = b"\0ipc_hsm_70 sm_75 sm_120 compute_120\0\0/pytorch/torch"
    row = compiled_for("2.8.0", "x86_64", library)
    assert row is not None and (row["sm"], row["ptx"]) == (["sm_70", "sm_75", "sm_120"], True)
    for library in (b"sm_90\0nothing", b"sm_80 sm_90\0sm_70 sm_75\0"):
        assert compiled_for("2.8.0", "x86_64", library) is None
