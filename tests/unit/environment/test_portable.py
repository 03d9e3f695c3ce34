"""Trees for nodes: nothing in them tells on which host, or under which umask, they were made."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePosixPath

import pytest

from provision.adapters import installed_files
from provision.adapters.installed_files import interpreter_lines, script_body
from provision.core.errors import IntegrityError
from provision.environment import portable

FINAL = PurePosixPath("/opt/provision/envs/lab-0123456789ab")
SITE = Path("lib") / "python3.11" / "site-packages"


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_installers_notes_go_with_their_rows(tmp_path: Path) -> None:
    info = tmp_path / SITE / "six-1.17.0.dist-info"
    for name in ("direct_url.json", "uv_cache.json", "METADATA"):
        write(info / name)
    listed = ["six.py", "__pycache__/six.cpython-311.pyc"]
    listed += [f"{info.name}/{name}" for name in ("uv_cache.json", "METADATA", "RECORD")]
    record = write(info / "RECORD", "".join(f"{path},,\n" for path in listed))
    cached = tmp_path / "cached"
    os.link(record, cached)
    portable._remove_host_files(tmp_path)
    assert sorted(path.name for path in info.iterdir()) == ["METADATA", "RECORD"]
    rows = [f"{info.name}/METADATA,,", f"{info.name}/RECORD,,", "six.py,,"]
    assert record.read_text().splitlines() == rows
    assert len(cached.read_text().splitlines()) == 5


def test_record_without_such_rows_stays_as_it_is(tmp_path: Path) -> None:
    record = write(tmp_path / SITE / "six-1.dist-info" / "RECORD", "six.py,,\na.py,,\n")
    portable._remove_host_files(tmp_path)
    assert record.read_text() == "six.py,,\na.py,,\n"


def test_conda_records_lose_the_hosts_paths(tmp_path: Path) -> None:
    record = {"name": "python", "extracted_package_dir": "/home/me", "url": "file:///home/me/c/l/p"}
    write(tmp_path / "conda-meta" / "python-1-0.json", json.dumps(record))
    portable._remove_host_files(tmp_path)
    assert "/home/me" not in (tmp_path / "conda-meta" / "python-1-0.json").read_text()


def test_permissions_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    script, module = write(tree / "bin" / "run"), write(tree / "lib" / "module.py")
    script.chmod(0o700)
    module.chmod(0o664)
    (tree / "lib").chmod(0o700)
    cached = tmp_path / "cached"
    os.link(module, cached)
    portable._normalize_permissions(tree, FINAL)
    modes = {path: path.stat().st_mode & 0o777 for path in (script, module, tree / "lib")}
    assert modes == {script: 0o755, module: 0o644, tree / "lib": 0o755}
    assert cached.stat().st_mode & 0o777 == 0o664


def test_hard_links_within_a_tree_become_files_of_their_own(tmp_path: Path) -> None:
    """Whether there are any depends on how the installers could link on this host."""
    first = write(tmp_path / "first", "text")
    os.link(first, tmp_path / "second")
    portable._normalize_permissions(tmp_path, FINAL)
    assert not first.samefile(tmp_path / "second")
    assert (tmp_path / "second").read_text() == "text"


@pytest.mark.parametrize("target", ["/usr/lib/libx.so", "../../usr/lib/libx.so"])
def test_link_out_of_the_environment_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "x").symlink_to(target)
    with pytest.raises(IntegrityError, match="bin/x of a package is a link to"):
        portable._normalize_permissions(tmp_path, FINAL)


def test_links_within_the_environment_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "relative").symlink_to("../lib/x")
    (tmp_path / "bin" / "absolute").symlink_to(FINAL / "lib" / "x")
    portable._normalize_permissions(tmp_path, FINAL)


def test_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IntegrityError, match="pipe of a package is neither a file nor a link"):
        portable._normalize_permissions(tmp_path, FINAL)


def test_record_is_written_anew_not_through_its_link(tmp_path: Path) -> None:
    record = write(tmp_path / "RECORD", "old")
    os.link(record, tmp_path / "cached")
    installed_files.write_record(record, [["a.py", "", ""]])
    assert (record.read_text(), (tmp_path / "cached").read_text()) == ("a.py,,\n", "old")


@pytest.mark.parametrize("folder", ["/opt/env", "/opt/my envs/it's", "/" + "long/" * 30])
def test_interpreter_lines_are_what_installers_write(folder: str) -> None:
    """A long path or a space need sh; either way the body is found again."""
    lines = interpreter_lines(Path(folder) / "bin" / "python")
    is_plain = folder == "/opt/env"
    assert lines.startswith(b"#!/opt/env/bin/python\n" if is_plain else b"#!/bin/sh\n'''exec' '/")
    if "'" not in folder:
        assert script_body(lines + b"import sys\n", Path(folder)) == b"import sys\n"
