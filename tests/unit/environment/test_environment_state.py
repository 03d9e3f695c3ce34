"""The state of an installed environment, its size, and its tree of packages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest

from provision.cli.console import table
from provision.cli.text import short_age, short_size, short_verdict
from provision.core import disk_usage
from provision.core.documents import Passport
from provision.core.types import Manager, Pin, Prefix
from provision.environment import marker
from provision.environment.marker import Marker
from provision.environment.state import changed_packages, quick_state
from provision.lockfile import tree
from provision.lockfile.conda_lock_v1 import LockEntry
from provision.verbs.env import output as inventory
from provision.workflow.environments import (
    Environment,
    SmokeVerdict,
    changed_keys,
    environment_state,
)

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
    records = tuple(marker.package_records(path))
    marker.write(path, Marker(name="lab", folder="x", lock_sha256=sha256, records=records))
    # provision installs its own package afterwards.
    (site / "provision_runtime-0.1.0.dist-info").mkdir()
    return Prefix(name="lab", path=path, lock_sha256=sha256)


def site_packages(prefix: Prefix) -> Path:
    return prefix.path / "lib" / "python3.11" / "site-packages"


def test_an_untouched_prefix_of_the_lock_is_current(prefix: Prefix, lock_path: Path) -> None:
    assert quick_state(prefix, lock_path).state == "current"


def test_a_package_added_by_hand_is_named(prefix: Prefix, lock_path: Path) -> None:
    (site_packages(prefix) / "einops-0.8.1.dist-info").mkdir()
    answer = quick_state(prefix, lock_path)
    assert (answer.state, answer.reason.endswith(": einops")) == ("differs", True)


def test_an_updated_and_a_removed_package_are_named_once(prefix: Prefix) -> None:
    numpy = site_packages(prefix) / "numpy-2.0.0.dist-info"
    numpy.rename(numpy.with_name("numpy-2.1.0.dist-info"))
    (prefix.path / "conda-meta" / "python-3.11.7-h1_0.json").unlink()
    assert changed_packages(prefix) == ["numpy", "python"]


def test_a_prefix_of_a_pack_has_no_records_to_differ_from(prefix: Prefix) -> None:
    present = marker.read(prefix.path)
    assert present is not None
    marker.write(prefix.path, dataclasses.replace(present, records=(), pack="key"))
    (site_packages(prefix) / "einops-0.8.1.dist-info").mkdir()
    assert changed_packages(prefix) == []


@pytest.mark.parametrize(
    "damage",
    [{"name": 5}, {"folder": None}, {"size": "7"}, {"wheels": []}, {"records": "x"}, {"pack": {}}],
)
def test_a_damaged_marker_makes_no_prefix(prefix: Prefix, damage: dict[str, object]) -> None:
    file = prefix.path / marker.MARKER
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": 1}))
    assert marker.find("lab", prefix.path) is not None
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    assert marker.find("lab", prefix.path) is None


def test_a_newer_lock_makes_a_prefix_stale(prefix: Prefix, lock_path: Path) -> None:
    lock_path.write_bytes(LOCK + b"\n")
    assert quick_state(prefix, lock_path).state == "stale"
    lock_path.unlink()
    assert quick_state(prefix, lock_path).state == "no lock"


def test_a_prefix_without_interpreter_is_damaged(prefix: Prefix, lock_path: Path) -> None:
    prefix.python.unlink()
    assert quick_state(prefix, lock_path).state == "damaged"
    assert quick_state(None, lock_path).state == "not installed"


@pytest.mark.parametrize(
    "content,keys",
    [
        ({"torch": "2.3", "cuda": "12"}, []),  # settled to 12.1
        ({"torch": "2.3", "cuda": "12.1", "pip": ["einops"]}, ["pip"]),
        ({"torch": "2.4", "cuda": "12.1"}, ["torch"]),
        ({"torch": "latest", "cuda": "12.1"}, []),
        ({"torch": "2.3", "cuda": "1"}, ["cuda"]),
        ({"torch": "2.3", "cuda": "12.1", "jupyter": False}, []),
    ],
)
def test_changed_keys_of_a_spec(content: dict[str, object], keys: list[str]) -> None:
    built = {"torch": "2.3", "cuda": "12.1", "python": "3.11"}
    assert changed_keys(content, built) == keys


def test_a_changed_spec_is_stale_unless_the_lock_followed_it(
    prefix: Prefix, lock_path: Path
) -> None:
    """`provision add` writes spec.yml, lock and prefix; the passport is that of the last build."""
    folder = lock_path.parent
    (folder / "spec.yml").write_text('torch: "2.3"\ncuda: "12.1"\npip: [einops]\n')
    request = {"torch": "2.3", "cuda": "12.1", "python": "3.11"}
    passport: Passport = {"request": request, "lock": {"sha256": prefix.lock_sha256}}
    answer = environment_state(prefix, folder, passport)
    assert (answer.state, answer.reason.endswith("last build: pip")) == ("stale", True)
    passport["lock"] = {"sha256": "of the lock before"}
    assert environment_state(prefix, folder, passport).state == "current"


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


def entry(
    name: str, manager: Manager = "pip", depends: tuple[tuple[str, str], ...] = ()
) -> LockEntry:
    return LockEntry(
        manager=manager,
        platform="linux-64",
        name=name,
        version="1.0",
        url="",
        md5="",
        sha256="",
        build="",
        depends=depends,
        category="main",
    )


GRAPH = tree.PackageGraph(
    [
        entry("python", "conda", (("__glibc", ">=2.17"),)),
        entry("torch", depends=(("jinja2", "*"), ("typing_extensions", ">=4"))),
        entry("torchvision", depends=(("torch", "==1.0"),)),
        entry("jinja2", depends=(("MarkupSafe", ">=2.0"), ("torch", "*"))),  # a circle
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
    root = tree.dependents_tree(GRAPH, PINS, "MarkupSafe")
    lines = inventory.tree_lines([root], width=30)
    assert lines[:2] == ["markupsafe 1.0", "└── jinja2 1.0 (>=2.0)"]
    assert lines[2] == "    └── torch 1.0  requested:…"
    with pytest.raises(KeyError):
        tree.dependents_tree(GRAPH, PINS, "numpy")


def test_sizes_and_ages_are_short() -> None:
    assert [short_size(n) for n in (None, 12, 2048, 5 << 30)] == [
        "-",
        "12 B",
        "2.0 KiB",
        "5.0 GiB",
    ]
    ages = [short_age(since, 200_000.0) for since in (None, 199_990, 190_000, 0)]
    assert ages == ["-", "now", "2 h", "2 d"]


def verdict(
    target: str, word: str, elsewhere: str = "", age_s: float | None = None
) -> SmokeVerdict:
    return SmokeVerdict(
        target=target,
        verdict=word,
        elsewhere=elsewhere,
        measured_at=None if age_s is None else NOW - age_s,
    )


NOW = 1_000_000.0


@pytest.mark.parametrize(
    "verdicts,smoke,text",
    [
        ((verdict("prefix", "pass"), verdict("image", "pass")), "", "pass"),
        ((verdict("prefix", "pass"), verdict("image", "fail")), "", "prefix: pass; image: fail"),
        ((verdict("prefix", "pass", "on gpu07", 2 * 86400),), "", "pass on gpu07, 2 days ago"),
        ((verdict("prefix", "pass", "on gpu07", 3700),), "", "pass on gpu07, 1 hour ago"),
        ((verdict("prefix", "pass", "on gpu07", -9),), "", "pass on gpu07, just now"),
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
        project=Path("/work/repo"),
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
