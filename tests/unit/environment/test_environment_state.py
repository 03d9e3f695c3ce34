"""The state of an installed environment, its size, and its tree of packages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from provision.cli.console import table
from provision.cli.text import short_age, short_size, short_verdict
from provision.core import disk_usage
from provision.core.types import LockedPackage, Manager, Pin, Prefix
from provision.environment import marker, runtime_package
from provision.environment.marker import Marker
from provision.environment.state import quick_state
from provision.lockfile import tree
from provision.verbs.env import output as inventory
from provision.workflow.environments import (
    Environment,
    SmokeVerdict,
)
from provision_runtime.facts import freshness

LOCK = b"version: 1\n"


@pytest.fixture
def lock_path(tmp_path: Path) -> Path:
    path = tmp_path / "envs" / "lab" / "conda-lock.yml"
    path.parent.mkdir(parents=True)
    path.write_bytes(LOCK)
    return path


@pytest.fixture
def prefix(tmp_path: Path) -> Prefix:
    """A prefix with one conda package and two wheels, as `create` leaves it."""
    path = tmp_path / "prefix"
    site = path / "lib" / "python3.11" / "site-packages"
    for folder in ("conda-meta", "bin"):
        (path / folder).mkdir(parents=True)
    (path / "bin" / "python").touch()
    (path / "conda-meta" / "python-3.11.7-h1_0.json").write_text("{}")
    for name in ("numpy-2.0.0", "torch-2.3.1+cu121"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    sha256 = hashlib.sha256(LOCK).hexdigest()
    records = tuple(freshness.package_records(str(path)))
    folder = str(tmp_path / "envs" / "lab")
    marker.write(path, Marker(name="lab", folder=folder, lock_sha256=sha256, records=records))
    # provision installs its own package afterwards.
    package = runtime_package.load()
    (site / package.dist_info).mkdir()
    record = f"{package.dist_info}/RECORD"
    (site / record).write_bytes(package.files[record])
    return Prefix(name="lab", path=path, lock_sha256=sha256)


def site_packages(prefix: Prefix) -> Path:
    return prefix.path / "lib" / "python3.11" / "site-packages"


def test_an_untouched_prefix_of_the_lock_is_current(prefix: Prefix, lock_path: Path) -> None:
    assert quick_state(prefix, lock_path.parent).state == "current"


def test_a_package_added_by_hand_is_named(prefix: Prefix, lock_path: Path) -> None:
    (site_packages(prefix) / "einops-0.8.1.dist-info").mkdir()
    answer = quick_state(prefix, lock_path.parent)
    assert (answer.state, answer.reason.endswith(": einops")) == ("differs", True)


def test_an_updated_and_a_removed_package_are_named_once(prefix: Prefix) -> None:
    numpy = site_packages(prefix) / "numpy-2.0.0.dist-info"
    numpy.rename(numpy.with_name("numpy-2.1.0.dist-info"))
    (prefix.path / "conda-meta" / "python-3.11.7-h1_0.json").unlink()
    recorded = freshness.read_marker(str(prefix.path))
    assert freshness.changed_packages(str(prefix.path), recorded) == ["numpy", "python"]


def test_a_prefix_of_a_pack_has_no_records_to_differ_from(prefix: Prefix) -> None:
    present = marker.read(prefix.path)
    assert present is not None
    marker.write(prefix.path, dataclasses.replace(present, records=(), pack="key"))
    (site_packages(prefix) / "einops-0.8.1.dist-info").mkdir()
    recorded = freshness.read_marker(str(prefix.path))
    assert freshness.changed_packages(str(prefix.path), recorded) == []


@pytest.mark.parametrize(
    "damage",
    [{"name": 5}, {"folder": None}, {"size": "7"}, {"records": "x"}, {"pack": {}}],
)
def test_a_damaged_marker_makes_no_prefix(prefix: Prefix, damage: dict[str, object]) -> None:
    file = prefix.path / marker.MARKER
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": 1}))
    assert marker.find("lab", prefix.path) is not None
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    assert marker.find("lab", prefix.path) is None


def test_a_newer_lock_makes_a_prefix_stale(prefix: Prefix, lock_path: Path) -> None:
    lock_path.write_bytes(LOCK + b"\n")
    assert quick_state(prefix, lock_path.parent).state == "stale"
    lock_path.unlink()
    assert quick_state(prefix, lock_path.parent).state == "no lock"


def test_a_prefix_without_interpreter_is_damaged(prefix: Prefix, lock_path: Path) -> None:
    prefix.python.unlink()
    assert quick_state(prefix, lock_path.parent).state == "damaged"
    assert quick_state(None, lock_path.parent).state == "not installed"


SPEC = 'torch: "2.3"\npip:\n  - einops\n'


@pytest.mark.parametrize(
    "text,state",
    [
        ("# why\n\n" + SPEC.replace("einops", "einops  # for blocks") + "\n", "current"),
        (SPEC.replace("\n", "\r\n"), "current"),
        (SPEC.replace("2.3", "2.4"), "stale"),
        (SPEC + "  - x @ git+https://host/x#egg=x\n", "stale"),
        (None, "current"),  # a lock alone
    ],
)
def test_a_changed_spec_is_stale_until_it_is_recorded(
    prefix: Prefix, lock_path: Path, text: str | None, state: str
) -> None:
    spec = lock_path.with_name("spec.yml")
    spec.write_text(SPEC)
    marker.record_spec(prefix.path, spec.parent)
    spec.unlink() if text is None else spec.write_bytes(text.encode())
    assert quick_state(prefix, spec.parent).state == state
    installed_at = (prefix.path / marker.MARKER).stat().st_mtime
    marker.record_spec(prefix.path, spec.parent)
    assert quick_state(prefix, spec.parent).state == "current"
    assert (prefix.path / marker.MARKER).stat().st_mtime == installed_at


@pytest.mark.parametrize("change", ["version", "size", "missing", "unreadable"])
def test_the_runtime_package_of_another_provision_is_stale(
    prefix: Prefix, lock_path: Path, change: str
) -> None:
    site = site_packages(prefix)
    info = next(site.glob("provision_runtime-*.dist-info"))
    if change == "version":
        info.rename(site / "provision_runtime-0.0.1.dist-info")
    elif change == "unreadable":
        (info / "RECORD").rename(info / "moved")
        (info / "RECORD").mkdir()  # root may read every file
    else:
        record = (info / "RECORD").read_text().splitlines()
        record[-1] = f"{record[-1]}0"
        (info / "RECORD").write_text("\n".join(record if change == "size" else record[:-1]))
    assert quick_state(prefix, lock_path.parent).state == "stale"
    present = marker.read(prefix.path)
    assert present is not None
    marker.write(prefix.path, dataclasses.replace(present, records=(), pack="key"))
    assert quick_state(prefix, lock_path.parent).state == "current"  # whoever shipped it updates it


def test_a_kernel_says_in_its_first_cell_that_its_environment_changed(
    prefix: Prefix,
    lock_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hooks: list[Callable[[object], None]] = []
    events = SimpleNamespace(
        register=lambda event, hook: hooks.append(hook),
        unregister=lambda event, hook: hooks.remove(hook),
    )
    monkeypatch.setattr(sys, "prefix", str(prefix.path))
    for content, is_noticed in ((LOCK, False), (LOCK + b"\n", True)):
        lock_path.write_bytes(content)
        freshness.load_ipython_extension(SimpleNamespace(events=events))
        hooks[0](None)
        assert hooks == []
        assert ("warning: lab " in capsys.readouterr().err) is is_noticed


def test_disk_usage_counts_shared_files_once_and_as_not_freed(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "tree"
    folder.mkdir()
    cache.write_bytes(b"x" * 1000)
    os.link(cache, folder / "linked")
    (folder / "own").write_bytes(b"x" * 10)
    os.link(folder / "own", folder / "own again")
    (folder / "link").symlink_to(cache)
    assert disk_usage.measure(folder) == disk_usage.DiskUsage(size=1010, freed=10)
    assert disk_usage.measure(tmp_path / "missing") == disk_usage.DiskUsage(size=0, freed=0)


def entry(name: str, manager: Manager = "pip", depends: tuple[str, ...] = ()) -> LockedPackage:
    return LockedPackage(
        manager=manager, name=name, version="1.0", url="", sha256="", depends=depends
    )


GRAPH = tree.packages_by_name(
    [
        entry("python", "conda", ("__glibc >=2.17",)),
        entry("torch", depends=("jinja2 *", "typing_extensions >=4")),
        entry("torchvision", depends=("torch ==1.0",)),
        entry("jinja2", depends=("MarkupSafe >=2.0", "torch *")),  # a circle
        entry("markupsafe"),
        entry("typing-extensions"),
    ]
)
PINS = [
    Pin(manager="pip", requirement="torch==1.0", reason="asked", source="test"),
    Pin(manager="pip", requirement="torchvision", reason="", source="test"),
]


def test_tree_lists_a_package_below_everyone_who_needs_it_but_expands_it_once() -> None:
    lines = inventory.tree_lines(tree.dependency_tree(GRAPH, PINS), width=None)
    assert lines == [
        "torch 1.0  requested: asked",
        "├── jinja2 1.0",
        "│   ├── markupsafe 1.0 (>=2.0)",
        "│   └── torch 1.0 (*)",
        "└── typing-extensions 1.0 (>=4)",
        "torchvision 1.0 (torchvision)",
        "└── torch 1.0 (==1.0) (*)",
    ]


def test_tree_of_dependents_ends_at_what_was_requested() -> None:
    root = tree.dependents_tree(GRAPH, PINS, "markupsafe")
    lines = inventory.tree_lines([root], width=30)
    assert lines[:2] == ["markupsafe 1.0", "└── jinja2 1.0 (>=2.0)"]
    assert lines[2] == "    └── torch 1.0  requested:…"


def test_sizes_and_ages_are_short() -> None:
    assert [short_size(n) for n in (None, 12, 2048, 5 << 30)] == [
        "-",
        "12 B",
        "2.0 KiB",
        "5.0 GiB",
    ]
    ages = [short_age(since, 200_000.0) for since in (None, 199_990, 190_000, 0)]
    assert ages == ["-", "0 min", "2 h", "2 d"]


def verdict(
    target: str, word: str, elsewhere: str = "", age_s: float | None = None
) -> SmokeVerdict:
    return SmokeVerdict(
        target=target,
        verdict=word,
        host="gpu07",
        elsewhere=elsewhere,
        measured_at=None if age_s is None else NOW - age_s,
    )


NOW = 1_000_000.0


@pytest.mark.parametrize(
    "verdicts,smoke,text",
    [
        ((verdict("prefix", "pass"), verdict("image", "pass")), "", "pass"),
        ((verdict("prefix", "pass"), verdict("image", "fail")), "", "prefix: pass; image: fail"),
        ((verdict("prefix", "pass", "on gpu07", 2 * 86400),), "", "pass on gpu07, 2 d ago"),
        ((verdict("prefix", "pass", "on gpu07", 3700),), "", "pass on gpu07, 1 h ago"),
        ((verdict("prefix", "pass", "on gpu07", -9),), "", "pass on gpu07, 0 min ago"),
        ((verdict("prefix", "pass", "on gpu07"),), "", "pass on gpu07"),
        (
            (
                verdict("prefix", "fail"),
                *(verdict("prefix", "pass", f"on n{i}") for i in (1, 2, 3)),
            ),
            "",
            "fail; pass on n1; 2 more",
        ),
        ((), "of another lock", "of another lock"),
        ((), "", ""),
    ],
)
def test_verdicts_are_joined_where_they_agree(
    verdicts: tuple[SmokeVerdict, ...], smoke: str, text: str
) -> None:
    environment = Environment(
        project=Path("/home/me/repo"),
        name="lab",
        prefix=None,
        state="current",
        reason="",
        size=None,
        installed_at=None,
        image="",
        image_size=0,
        kernel=False,
        smoke=smoke,
        verdicts=verdicts,
    )
    assert short_verdict(environment, NOW) == text


def test_a_table_wraps_its_last_column() -> None:
    text = table([("a", "one two three four five six seven")], ("name", "what"), width=30)
    assert text.splitlines() == ["name  what", "a     one two three four five", "      six seven"]


def test_records_of_what_cannot_be_listed_are_none(tmp_path: Path) -> None:
    """A file in a folder's place stands for a folder that another user may not read."""
    (tmp_path / "lib" / "python3.11").mkdir(parents=True)
    (tmp_path / "lib" / "python3.11" / "site-packages").touch()
    assert freshness.package_records(str(tmp_path)) == frozenset()
    for path in ("numpy-2.json", "history", "a-1.dist-info"):
        (tmp_path / "conda-meta").mkdir(exist_ok=True)
        (tmp_path / "conda-meta" / path).touch()
    assert freshness.package_records(str(tmp_path)) == {"numpy-2.json"}
