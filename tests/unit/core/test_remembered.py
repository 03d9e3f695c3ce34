"""What was made of a text before: made once, and never another user's, a damaged or a changed one."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import pytest

from provision.core import remembered as module
from provision.core.remembered import remembered


class Maker:
    def __init__(self, *results: Any) -> None:
        self.results = list(results)

    def __call__(self) -> Any:
        return self.results.pop(0)


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a new user's records."""
    monkeypatch.setenv("PROVISION_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "remembered"


def test_a_text_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker({"a": [1, None, True, "é", 1.5]}, "other text", "other kind", "other release")
    first = remembered("kind", b"text", make)
    assert remembered("kind", b"text", make) == first
    assert [type(value) for value in first["a"]] == [int, type(None), bool, str, float]
    assert remembered("kind", b"text2", make) == "other text"
    assert remembered("kind2", b"text", make) == "other kind"
    monkeypatch.setattr(module, "__version__", "999")
    assert remembered("kind", b"text", make) == "other release"


@pytest.mark.parametrize(
    "result",
    [
        *({1: "a"}, datetime.date(2026, 1, 1), (1, 2), float("nan"), [b"x"]),
        {"package": [{"url": "https://lab:secret@mirror.test/a.conda"}]},
        {"package": [{"url": "https://mirror.test/t/secret-token/a.conda"}]},
    ],
)
def test_secrets_and_what_json_would_change_are_made_each_time(
    records: Path, result: object
) -> None:
    make = Maker(result, result)
    assert remembered("kind", b"text", make) is result
    assert remembered("kind", b"text", make) is result
    assert not records.exists()


@pytest.mark.parametrize("damage", [b"", b"[1", b"\xff", b"nonsense"])
def test_a_damaged_record_is_replaced(records: Path, damage: bytes) -> None:
    remembered("kind", b"text", Maker("first"))
    (record,) = records.iterdir()
    record.write_bytes(damage)
    assert remembered("kind", b"text", Maker("second")) == "second"
    assert remembered("kind", b"text", Maker()) == "second"


def test_another_users_record_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered("kind", b"text", Maker("theirs"))
    uid = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: uid + 1)
    assert remembered("kind", b"text", Maker("mine")) == "mine"


def test_what_fails_is_not_kept(records: Path) -> None:
    def fail() -> None:
        raise ValueError("no lock")

    with pytest.raises(ValueError, match="no lock"):
        remembered("kind", b"text", fail)
    assert not records.exists()
    records.touch()  # a cache that cannot be written
    assert remembered("kind", b"text", Maker("made")) == "made"


def test_a_new_account_stays_empty(records: Path) -> None:
    records.parent.rmdir()
    assert remembered("kind", b"text", Maker("made")) == "made"
    assert not records.parent.exists()


def test_only_its_user_writes_to_the_cache(records: Path) -> None:
    before = os.umask(0o002)
    try:
        remembered("kind", b"text", Maker("made"))
    finally:
        os.umask(before)
    (record,) = records.iterdir()
    assert not records.stat().st_mode & 0o022 and not record.stat().st_mode & 0o077
