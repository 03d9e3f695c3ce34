"""Every file that a person may write: invalid YAML is refused with the file's name, never a
traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from provision import ci, lockfile
from provision.cluster.inventory import read_inventory
from provision.core import settings
from provision.core.errors import ProvisionError
from provision.core.yaml_text import YamlError, parse_yaml, read_source
from provision.render.files import file_state, read_text
from provision.resolver import spec
from provision.workflow.lab_definition import read_lab

# 400 million entries, if something goes through them.
EXPLODING = b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b",".join([b"*a%d" % (level - 1)] * 9))
    for level in range(1, 9)
)
ODD = [
    b"!!int",
    b"!!bool x",
    b"!!float",
    b"!!timestamp x",
    b"!!binary \xc3\xa9",
    b"a: !!int ''",
    b"2024-13-01",
    b"1" * 5000,
    b"9" * 5000 + b": 1",
    b"? [a]\n: 1",
    b"&a [*a]",
    EXPLODING,
    b"a: &a {b: *a}",
    b"[" * 3000,
    b"[" * 100_000,
    b"- " * 100_000 + b"x",
    b"a: [",
    b"\xff\xfe",
    b"a: \x00",
    b"!!python/object:os.system x",
    b"2001-12-14t21:59:43.10-99:99",
    b"190:20:30:99e99",
    b"<<: 1",
    b"<<: [a]",
    b"",
]


def read_settings(path: Path) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(settings.CONFIG, str(path))
        return settings.mirror_settings(())


READERS: dict[str, Callable[[Path], object]] = {
    "spec.yml": spec.read,
    "runners.yml": ci.read_runners,
    "settings.yml": read_settings,
    "conda-lock.yml": lockfile.read,
    "lock contents": lockfile.read_file,
    "environment.yml": lambda path: lockfile.read_inputs(
        path.read_text(errors="replace"), "subdirs: {}", path.parent
    ),
    "virtual-packages.yml": lambda path: lockfile.read_inputs(
        "channels: []\ndependencies: []\n", path.read_text(errors="replace"), path.parent
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:20]))
def test_text_that_is_not_yaml_is_refused(text: bytes, reader: str, tmp_path: Path) -> None:
    path = tmp_path / reader
    path.write_bytes(text)
    try:
        READERS[reader](path)
    except ProvisionError as refused:
        assert str(tmp_path) in refused.message
    else:
        assert reader == "settings.yml" and text in (b"", b"\xff\xfe")  # no settings are fine


def test_aliases_are_limited() -> None:
    assert parse_yaml("a: &x [1, 2]\nb: *x\nc: {<<: &y {d: 1}}") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": {"d": 1},
    }
    with pytest.raises(YamlError, match="its aliases expand to too much data"):
        parse_yaml(EXPLODING)
    with pytest.raises(YamlError, match=r"\*x stands for itself"):
        parse_yaml("a: &x {b: *x}")


def test_a_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    """A repository may have a link to a device; each of its files is read so."""
    with pytest.raises(YamlError, match="it has more than 16 MiB"):
        read_source(Path("/dev/zero"))
    readers: dict[str, Callable[[Path], object]] = {
        "lab.yml": lambda path: read_lab(path.parent),
        "nodes.yml": read_inventory,
        "spec.yml": spec.read,
        "conda-lock.yml": lockfile.read,
        "runners.yml": ci.read_runners,
        "environment.yml": read_text,
    }
    for name, read in readers.items():
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(ProvisionError, match=f"{name}.* it has more than 16 MiB"):
            read(tmp_path / name)
    assert file_state(tmp_path / "environment.yml") == "edited"
