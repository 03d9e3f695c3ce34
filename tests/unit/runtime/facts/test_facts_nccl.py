"""NCCL's settings: from which source, with which effect."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.facts import nccl

CONF = "# of the site\nNCCL_IB_HCA=mlx5\nNCCL_P2P_DISABLE=1\n#NCCL_ALGO=Ring\nno setting\nNCCL_IB_HCA=later\n"


def test_file_is_parsed_as_nccl_does() -> None:
    assert nccl.parse(CONF) == {"NCCL_IB_HCA": "mlx5", "NCCL_P2P_DISABLE": "1"}
    assert nccl.parse(" NCCL_ALGO=Ring\nNCCL_NET = Socket\nNCCL_PROTO=a=b\n=x\n") == {
        " NCCL_ALGO": "Ring",
        "NCCL_NET ": " Socket",
        "NCCL_PROTO": "a=b",
        "": "x",
    }


def test_environment_overrides_files_and_first_file_overrides_second() -> None:
    settings = nccl.effective(
        {"NCCL_IB_HCA": "mine", "PATH": "/bin"},
        [
            ("/home/.nccl.conf", "NCCL_NET=Socket\nNCCL_IB_HCA=x\n"),
            ("/etc/nccl.conf", CONF + "NCCL_NET=IB\n"),
        ],
    )
    assert [
        (setting["name"], setting["value"], setting["source"], setting["is_costly"])
        for setting in settings
    ] == [
        ("NCCL_IB_HCA", "mine", "environment", False),
        ("NCCL_NET", "Socket", "/home/.nccl.conf", True),
        ("NCCL_P2P_DISABLE", "1", "/etc/nccl.conf", True),
    ]
    assert "neither through NVLink nor PCIe" in settings[2]["effect"]


def test_unknown_setting_is_reported_but_not_judged() -> None:
    (setting,) = nccl.effective({"NCCL_IB_DISBALE": "1"}, [])
    assert (setting["effect"], setting["is_costly"]) == ("unknown to this test", False)


@pytest.mark.parametrize(
    ("name", "value", "costly"),
    [
        ("NCCL_P2P_DISABLE", "0", False),
        ("NCCL_P2P_DISABLE", "", False),
        ("NCCL_P2P_DISABLE", "0x0", False),
        ("NCCL_P2P_DISABLE", "2", True),
        ("NCCL_P2P_DISABLE", "1 # why", True),
        ("NCCL_NVLS_ENABLE", "0", True),
        ("NCCL_NVLS_ENABLE", "1", False),
        ("NCCL_NVLS_ENABLE", "", False),
        ("NCCL_ALGO", "Ring", True),
        ("NCCL_DEBUG", "INFO", False),
        ("NCCL_DEBUG", "trace", True),
        ("NCCL_DEBUG", "INF0", True),
        ("NCCL_P2P_LEVEL", "PHB", False),
        ("NCCL_P2P_LEVEL", "2", False),
        ("NCCL_VERSION", "2.17.1-1", False),
        ("NCCL_SOCKET_IFNAME", "eth0", False),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", False),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", True),
        ("TORCH_NCCL_BLOCKING_WAIT", "true", True),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL", True),
        ("TORCH_DISTRIBUTED_DEBUG", "OFF", False),
    ],
)
def test_costly_values(name: str, value: str, costly: bool) -> None:
    (setting,) = nccl.effective({name: value}, [])
    assert setting["is_costly"] is costly


@given(st.dictionaries(st.sampled_from(sorted(nccl.reference()["settings"])), st.text(max_size=8)))
def test_each_setting_is_reported_once(environment: dict[str, str]) -> None:
    conf = "\n".join(f"{name}=1" for name in environment)
    assert [setting["name"] for setting in nccl.effective(environment, [("conf", conf)])] == sorted(
        environment
    )


@pytest.mark.parametrize(
    ("version", "first"), [(None, "/site.conf"), ("2.23.4", "/site.conf"), ("2.20.5", "HOME")]
)
def test_files_that_nccl_reads(version: str | None, first: str) -> None:
    paths = nccl.files({"NCCL_CONF_FILE": "/site.conf"}, Path("HOME"), version)
    assert paths[0] == (Path("HOME/.nccl.conf") if first == "HOME" else Path(first))
    assert paths[1:] == nccl.files({}, None) == [nccl.SYSTEM_FILE]


def test_settings_from_a_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").write_text("NCCL_PROTO=Simple\n")
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "conf"))
    settings = {setting["name"]: setting["source"] for setting in nccl.settings()}
    assert settings["NCCL_PROTO"] == str(tmp_path / "conf")


@pytest.mark.parametrize("name", ["NCCL_IB_DISABLE", "NCCL_NVLS_ENABLE"])
@pytest.mark.parametrize("value", ["true", "yes", "on"])
def test_a_word_is_zero_for_nccl(name: str, value: str) -> None:
    (setting,) = nccl.effective({name: value}, [])
    assert setting["is_costly"]
    assert setting["effect"].startswith(
        "NCCL reads numbers only: this means 0, not 1. Its meaning: "
    )


def test_a_word_is_a_value_for_torch() -> None:
    (setting,) = nccl.effective({"TORCH_NCCL_BLOCKING_WAIT": "true"}, [])
    assert (setting["is_costly"], "numbers only" in setting["effect"]) == (True, False)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [
        ("NCCL_ALGO", "Foo", "'Foo'"),
        ("NCCL_ALGO", "ring,collnetdirect;allreduce:tree,nvsl", "'nvsl'"),
        ("NCCL_ALGO", "allreduce:^tree", ""),
        ("NCCL_PROTO", "^LL128", ""),
        ("NCCL_PROTO", "LL256", "'LL256'"),
    ],
)
def test_values_that_nccl_does_not_know(name: str, value: str, word: str) -> None:
    (setting,) = nccl.effective({name: value}, [])
    assert setting["is_costly"]
    assert word in setting["effect"]
    assert ("does not know" in setting["effect"]) == bool(word)


def test_names_that_nccl_does_not_read(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"\x7fELF\0NCCL_IB_DISABLE\0NCCL_OF_THIS_BUILD\0NCCL_\0")
    names = ["NCCL_IB_DISBALE", "NCCL_SOCKET_IFNAM", "NCCL_TYPO_X", "NCCL_OF_THIS_BUILD"]
    names += ["NCCL_IB_TIMEOUT", "NCCL_SHARP_MAX", "NCCL_FASTRAK_CTRL_DEV", "NCCL_HOME", "PATH"]
    assert nccl.mistyped(names, str(library)) == {
        "NCCL_IB_DISBALE": "is not a setting of NCCL; NCCL_IB_DISABLE is",
        "NCCL_SOCKET_IFNAM": "is not a setting of NCCL; NCCL_SOCKET_IFNAME is",
        "NCCL_TYPO_X": nccl.NO_SETTING,
    }
    assert "NCCL_OF_THIS_BUILD" in nccl.mistyped(names)


def test_variables_of_nccl_are_known_by_release() -> None:
    variables = nccl.reference()["variables"]
    assert len(variables) > 250
    for name in ("NCCL_ALGO", "NCCL_IB_HCA", "NCCL_HOSTID", "NCCL_P2P_DISABLE", "NCCL_DEBUG"):
        assert variables[name][1] is None
