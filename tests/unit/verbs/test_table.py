"""The table: which builds fit a query, against an independent calculation from the raw data; and
how it is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from provision import catalog, sources
from provision.catalog.data_files import load
from provision.cli.main import cli
from provision.core.errors import InvalidSpec, NoSuchBuild
from provision.core.platforms import PLATFORMS
from provision.resolver.table import Table, build_table, parse_query
from provision.verbs.matrix import output as formats

GPUS = (
    "K80",
    "P100",
    "sm_61",
    "V100",
    "T4",
    "A100",
    "L40S",
    "H100",
    "B200",
    "B300",
    "RTX 5090",
    "GB10",
    "Jetson AGX Orin",
)
CAPABILITIES = {name: "{}.{}".format(*catalog.find_gpu(name).capability) for name in GPUS}
DRIVERS = (
    "440.33",
    "450.80.02",
    "470",
    "525",
    "525.60.13",
    "535",
    "550.54.14",
    "580.65.06",
    "610.43.02",
)


def ask(**options: Any) -> Table:
    return build_table(parse_query(options))


def names(table: Table) -> set[tuple[str, str, str, str]]:
    return {
        (table_row.torch, table_row.source, table_row.cuda, table_row.platform)
        for table_row in table.cells
    }


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["matrix", *arguments])


# An independent calculation from the files themselves: True, False or None for not known.


def rows() -> dict[tuple[str, str, str, str], dict[str, Any]]:
    """Facts by (torch, source, CUDA, platform)."""
    facts = {}
    for version, release in load("releases.yml").items():
        defaults = release["index_default"]
        for tag, build in release["wheels"].items():
            facts[version, "wheels", build["cuda"], "linux-64"] = {
                **defaults["linux-64"],
                **build,
                "python": defaults["linux-64"]["python"],
            }
            if defaults["linux-aarch64"]["build"] == tag:
                facts[version, "wheels", build["cuda"], "linux-aarch64"] = {
                    "nccl": build["nccl"],
                    **defaults["linux-aarch64"],
                }
        for tag, wheel in release.get("aarch64_wheels", {}).items():
            facts[version, "wheels", release["wheels"][tag]["cuda"], "linux-aarch64"] = {
                "nccl": {"version": None},
                **wheel,
                "python": defaults["linux-aarch64"]["python"],
            }
        for cuda, build in release["pytorch_channel"]["cuda"].items():
            facts[version, "pytorch", cuda, "linux-64"] = build
        for cuda, build in release["conda_forge"]["cuda"].items():
            facts[version, "conda-forge", cuda, "linux-64"] = build
            if "linux-aarch64" in build:
                facts[version, "conda-forge", cuda, "linux-aarch64"] = build["linux-aarch64"]
    return facts


ROWS = rows()
TOOLKITS = load("cuda.yml")["toolkits"]


def key(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def at_least(available: str, required: str) -> bool | None:
    for available_part, required_part in zip(key(available), key(required)):
        if available_part != required_part:
            return available_part > required_part
    return True if len(key(available)) >= len(key(required)) else None


def gpu_fits(row: dict[str, Any], cuda: str, capability: str, driver: str | None) -> bool | None:
    required = key(capability)
    if row["architectures"]["sm"] is None:
        return False if required < key(TOOLKITS[cuda]["capability"]["min"]) else None
    available = [(int(sm[3:-1]), int(sm[-1])) for sm in row["architectures"]["sm"]]
    tegra = [(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (11, 0)]
    if required in available or any(
        build[0] == required[0] and build[1] <= required[1]
        for build in available
        if required not in tegra and build not in tegra
    ):
        return True
    if not row["architectures"]["ptx"] or required < max(available):
        return False
    return True if driver is None else at_least(driver, TOOLKITS[cuda]["toolkit_driver"]["version"])


def expected(options: dict[str, Any], name: tuple[str, str, str, str]) -> bool | None:
    (version, source, cuda, platform), row = name, ROWS[name]
    answers: list[bool | None] = []
    if options.get("torch"):
        answers.append(version.startswith(options["torch"] + ".") or version == options["torch"])
    if options.get("cuda"):
        answers.append(cuda == options["cuda"] or cuda.split(".")[0] == options["cuda"])
    if options.get("platform"):
        answers.append(platform in options["platform"])
    if options.get("source"):
        answers.append(source in options["source"])
    if options.get("python"):
        available = row["python"]["versions"]
        free = row["python"].get("free_threaded", [])
        pythons = available if available is not None else row["python"]["seen"]
        answers.append(
            options["python"] in [*pythons, *free] or (False if available is not None else None)
        )
    if options.get("driver"):
        floor = TOOLKITS[cuda]["driver_floor"]["version"]
        answers.append(at_least(options["driver"], floor) if platform == "linux-64" else None)
    if options.get("glibc"):
        minimum = row["glibc"]["minimum"]
        answers.append(None if minimum is None else key(options["glibc"]) >= key(minimum))
    for gpu in options.get("gpu", ()):
        answers.append(gpu_fits(row, cuda, CAPABILITIES[gpu], options.get("driver")))
        answers.append(catalog.find_gpu(gpu).platform in (None, platform))
    return False if False in answers else None if None in answers else True


QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "torch": st.sampled_from(["2", "1.12", "2.0", "2.3", "2.3.1", "2.6", "2.9", "2.15"]),
        "cuda": st.sampled_from(["10.2", "11", "11.8", "12", "12.1", "12.6", "13.0"]),
        "python": st.sampled_from(["3.7", "3.9", "3.11", "3.13", "3.13t", "3.15"]),
        "driver": st.sampled_from(DRIVERS),
        "glibc": st.sampled_from(["2.12", "2.17", "2.28", "2.35"]),
        "gpu": st.lists(st.sampled_from(GPUS), max_size=2).map(tuple),
        "platform": st.lists(st.sampled_from(PLATFORMS), max_size=2).map(tuple),
        "source": st.lists(st.sampled_from(sources.names()), max_size=2).map(tuple),
        "unknown": st.booleans(),
    },
)


@settings(max_examples=60, deadline=None)
@given(QUERIES)
def test_table_agrees_with_an_independent_calculation(options: dict[str, Any]) -> None:
    verdicts = {True, None} if options.get("unknown") else {True}
    answers = {name: expected(options, name) for name in ROWS}
    fitting = {name for name, answer in answers.items() if answer in verdicts}
    try:
        table = ask(**options)
    except NoSuchBuild:
        assert not fitting
        return
    assert names(table) == fitting
    assert {
        (table_row.torch, table_row.source, table_row.cuda, table_row.platform)
        for table_row in table.cells
        if table_row.not_known
    } == {name for name in fitting if answers[name] is None}
    assert table.hidden == (
        0 if options.get("unknown") else sum(answer is None for answer in answers.values())
    )


@settings(max_examples=10, deadline=None)
@given(QUERIES)
def test_the_table_shows_every_row(options: dict[str, Any]) -> None:
    try:
        table = ask(**options)
    except NoSuchBuild:
        return
    platforms = {table_row.platform for table_row in table.cells}
    lines = formats.terminal_lines(table, 80)
    assert max(map(len, lines)) <= 88 if "fits" in lines[0] else 80
    assert [line.split()[0] for line in lines[1 : len(table.cells) + 1]] == [
        table_row.torch for table_row in table.cells
    ]
    assert (len(platforms) == 1) == any(line.startswith("all are for ") for line in lines)
    assert ("linux-aarch64" in platforms) == ("linux-aarch64" in " ".join(lines))
    wide = formats.terminal_lines(table)
    assert (max(map(len, wide[: len(table.cells) + 1])) <= 80) or wide[0].endswith("fits")


# Queries that people make


def test_driver_535_with_a_v100() -> None:
    table = names(ask(driver="535", gpu=("V100",)))
    assert ("2.3.1", "wheels", "12.1", "linux-64") in table
    assert (
        "2.8.0",
        "wheels",
        "12.8",
        "linux-64",
    ) in table  # minor-version compatibility, and sm_70 is back in 2.8
    assert ("2.14.1", "wheels", "12.6", "linux-64") in table
    assert ("2.7.0", "wheels", "12.8", "linux-64") not in table  # no sm_70
    assert ("2.11.0", "wheels", "12.8", "linux-64") not in table
    assert not [name for name in table if name[2].startswith("13")]
    assert not [
        name for name in table if name[1] == "pytorch"
    ]  # what these packages were compiled for is not known
    assert not [name for name in table if name[0] == "2.15.0"]  # CUDA 13 left it behind


def test_unknown_rows_are_counted_and_shown_on_request() -> None:
    known_rows = ask(torch="2.15", driver="580.65.06", gpu=("H100",))
    assert {(table_row.cuda, table_row.platform) for table_row in known_rows.cells} == {
        ("13.2", "linux-64")
    }
    assert (known_rows.hidden, known_rows.hidden_by) == (2, {"gpu": 1, "driver": 1})
    table = ask(torch="2.15", driver="580.65.06", gpu=("H100",), unknown=True)
    assert {
        (table_row.cuda, table_row.platform, table_row.not_known) for table_row in table.cells
    } == {
        ("13.2", "linux-64", ()),
        ("13.0", "linux-64", ("gpu",)),
        ("13.2", "linux-aarch64", ("driver",)),
    }
    with pytest.raises(NoSuchBuild, match=r"1 might \(gpu not known\): show them with --unknown\."):
        ask(torch="2.15", cuda="13.0", gpu=("H100",))


def test_ptx_only_gpu_is_marked_with_the_nccl_caveat() -> None:
    table = ask(torch="2.3.1", gpu=("B200",))
    assert {table_row.source for table_row in table.cells} == {"conda-forge"}
    assert all(table_row.through_ptx for table_row in table.cells)
    output = "\n".join(formats.terminal_lines(table))
    assert "ptx" in output and "NCCL holds no PTX" in output


def test_empty_table_says_what_to_relax() -> None:
    with pytest.raises(NoSuchBuild, match=r"Without --driver, \d+ do\.") as caught:
        ask(driver="470", gpu=("H100",), cuda="12")
    assert "Without --cuda" in str(caught.value)
    with pytest.raises(NoSuchBuild, match="Giving up one of them is not enough"):
        ask(driver="1", gpu=("K80",), cuda="13", python="3.7")
    with pytest.raises(NoSuchBuild, match=r"V100 is sm_70, for which CUDA compiles up to 12\.9\."):
        ask(gpu=("V100",), cuda="13")
    with pytest.raises(NoSuchBuild, match=r"sm_120, for which CUDA compiles from 12\.8 on\."):
        ask(gpu=("sm_120",), cuda="12.4", torch="2.4")


def test_free_threaded_pythons_are_in_the_table() -> None:
    table_of = {
        table_row.torch: table_row
        for table_row in ask(python="3.14t", source=("wheels",), platform=("linux-64",)).cells
        if table_row.index_default
    }
    assert "2.9.1" in table_of and "2.8.0" not in table_of
    assert all("3.14t" in table_row.free_threaded for table_row in table_of.values())


def test_all_query_mistakes_are_reported() -> None:
    with pytest.raises(InvalidSpec) as caught:
        parse_query(
            {
                "cuda": "new",
                "driver": "v535",
                "glibc": "2",
                "python": "2.7",
                "gpu": ("H10", "H100"),
            }
        )
    for text in (
        "`cuda`",
        "`driver`",
        "`glibc`",
        "`python`",
        "'H10'",
        "Did you mean `H100`?",
    ):
        assert text in str(caught.value)


def test_newest_first_and_wheels_before_channels() -> None:
    table = ask(torch="2.3", platform=("linux-64",))
    assert [(table_row.torch, table_row.source, table_row.cuda) for table_row in table.cells][
        :7
    ] == [
        ("2.3.1", "wheels", "12.1"),
        ("2.3.1", "wheels", "11.8"),
        ("2.3.1", "pytorch", "12.1"),
        ("2.3.1", "pytorch", "11.8"),
        ("2.3.1", "conda-forge", "12.0"),
        ("2.3.1", "conda-forge", "11.8"),
        ("2.3.0", "wheels", "12.1"),
    ]


# The command


def test_command_as_table_and_json() -> None:
    query = ("--torch", "2.3.1", "--cuda", "12", "--source", "wheels")
    result = invoke(*query)
    assert (result.exit_code, "2.20.5" in result.output) == (0, True)
    cells = json.loads(invoke(*query, "--json").output)["cells"]
    assert [table_row["nccl"] for table_row in cells] == ["2.20.5"]


def test_exit_codes() -> None:
    assert (
        invoke("--gpu", "B200", "--cuda", "11", "--source", "wheels").exit_code
        == NoSuchBuild.exit_code
    )
    assert invoke("--gpu", "nothing").exit_code == InvalidSpec.exit_code
    assert invoke("--torch", "two").exit_code == InvalidSpec.exit_code
    assert invoke("--torch", "1.0").exit_code == NoSuchBuild.exit_code
    assert invoke("--platform", "win-64").exit_code == 2


def test_table_of_a_gpu_with_an_arm_cpu_has_its_platform_only() -> None:
    for gpu in ("GH200", "GB10"):
        platforms = {row.platform for row in ask(gpu=(gpu,)).cells}
        assert platforms == {"linux-aarch64"}
