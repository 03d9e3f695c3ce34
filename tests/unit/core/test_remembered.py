"""What was made of a text before: made once, and never of another text, by other code, by another user,
or what was damaged."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
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
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a new user's records."""
    monkeypatch.setenv("PROVISION_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    module._code.cache_clear()
    yield tmp_path / "cache" / "remembered"
    module._code.cache_clear()


def test_a_text_is_read_once(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker({"a": [1, None, True, "é", 1.5]}, "other text", "other kind", "other place", "new")
    first = remembered("kind", "a", b"text", make)
    assert remembered("kind", "a", b"text", make) == first
    assert [type(value) for value in first["a"]] == [int, type(None), bool, str, float]
    assert remembered("kind", "a", b"text2", make) == "other text"
    assert remembered("kind2", "a", b"text2", make) == "other kind"
    assert remembered("kind", "b", b"text2", make) == "other place"
    assert len(list(records.iterdir())) == 3  # the last of each kind and place
    module._code.cache_clear()
    monkeypatch.setattr(module, "PARTS", ("core", "cli"))
    assert remembered("kind", "a", b"text2", make) == "new"


def test_a_changed_file_of_ours_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours" / "__pycache__").mkdir(parents=True)
    (tmp_path / "ours" / "code.py").write_text("")
    monkeypatch.setattr(module, "PARTS", (tmp_path / "ours",))
    remembered("kind", "a", b"text", Maker("made"))
    module._code.cache_clear()
    os.utime(tmp_path / "ours" / "__pycache__", (1, 1))
    assert remembered("kind", "a", b"text", Maker("of another Python")) == "made"
    module._code.cache_clear()
    os.utime(tmp_path / "ours" / "code.py", (1, 1))
    assert remembered("kind", "a", b"text", Maker("of other code")) == "of other code"
    (tmp_path / "ours" / "code.py").write_text("longer, of the same time")
    os.utime(tmp_path / "ours" / "code.py", (1, 1))
    module._code.cache_clear()
    assert remembered("kind", "a", b"text", Maker("of longer code")) == "of longer code"
    monkeypatch.setattr(module, "__version__", "another")
    assert remembered("kind", "a", b"text", Maker("of a release")) == "of a release"


@pytest.mark.parametrize(
    "result",
    [
        *({1: "a"}, datetime.date(2026, 1, 1), (1, 2), float("nan"), [b"x"]),
        {"package": [{"url": "https://lab:secret@mirror.test/a.conda"}]},
        {"package": [{"url": "https://mirror.test/t/secret-token/a.conda"}]},
        {"package": [{"url": "https://mirror.test/a.conda?user=é&token=secret"}]},
        "# https://mirror.test/a.conda#é=1&sig=secret\n",
    ],
)
def test_secrets_and_what_json_would_change_are_made_each_time(
    records: Path, result: object
) -> None:
    make = Maker(result, result)
    assert remembered("kind", "a", b"text", make) is result
    assert remembered("kind", "a", b"text", make) is result
    assert not records.exists()


@pytest.mark.parametrize("damage", ["", "[1", "nonsense", "{}", "first", "digit", "nothing"])
def test_a_damaged_record_is_made_again(records: Path, damage: str) -> None:
    remembered("kind", "a", b"text", Maker({"sha256": "0123"}))
    (record,) = records.iterdir()
    stamp, _, text = record.read_text().partition(" ")
    assert json.loads(text) == {"sha256": "0123"}
    changed = {"first": text, "digit": f"{stamp} {text.replace('0123', '0124')}", "nothing": stamp}
    record.write_text(changed.get(damage, damage))
    assert remembered("kind", "a", b"text", Maker("second")) == "second"
    assert remembered("kind", "a", b"text", Maker()) == "second"
    record.write_bytes(b"\xff")
    assert remembered("kind", "a", b"text", Maker("third")) == "third"


def test_another_users_record_does_not_count(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remembered("kind", "a", b"text", Maker("theirs"))
    uid = os.getuid()
    monkeypatch.setattr("os.getuid", lambda: uid + 1)
    assert remembered("kind", "a", b"text", Maker("mine")) == "mine"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a link away")
def test_another_users_link_to_a_record_does_not_count(records: Path) -> None:
    remembered("kind", "a", b"text", Maker("mine"))
    (record,) = records.iterdir()
    elsewhere = record.rename(records.parent / "elsewhere")
    record.symlink_to(elsewhere)
    os.lchown(record, 65534, 65534)
    assert remembered("kind", "a", b"text", Maker("made")) == "made"


def test_what_fails_is_not_kept(records: Path) -> None:
    def fail() -> None:
        raise ValueError("no lock")

    with pytest.raises(ValueError, match="no lock"):
        remembered("kind", "a", b"text", fail)
    assert not records.exists()
    records.touch()  # a cache that cannot be written
    assert remembered("kind", "a", b"text", Maker("made")) == "made"


def test_a_new_account_stays_empty(records: Path) -> None:
    records.parent.rmdir()
    assert remembered("kind", "a", b"text", Maker("made")) == "made"
    assert not records.parent.exists()


def test_only_its_user_writes_to_the_cache(records: Path) -> None:
    before = os.umask(0o002)
    try:
        remembered("kind", "a", b"text", Maker("made"))
    finally:
        os.umask(before)
    (record,) = records.iterdir()
    assert not records.stat().st_mode & 0o022 and not record.stat().st_mode & 0o077
