"""Checkpoints in a bucket: s3fs asks moto's S3 over HTTP, on loopback. Without a server: tests/unit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.checkpoint import (
    NotCommitted,
    catalog,
    latest,
    list_steps,
    manifest,
    prune,
    verify,
)
from provision_runtime.checkpoint.backends import open_root
from provision_runtime.checkpoint.commit import Committed, commit
from provision_runtime.checkpoint.items import MIN_FILE_BYTES
from provision_runtime.comm.addresses import free_port
from provision_runtime.comm.ranks import Ranks, single_process
from tests.checkpoints import plan
from tests.integration import s3
from tests.integration.scripts import run_ranks
from tests.rank_threads import RankThreads

PYTHON = os.environ.get("PROVISION_TEST_PYTHON", sys.executable)
# Where that interpreter finds s3fs, if it has none of its own.
S3FS = os.environ.get("PROVISION_TEST_S3FS", "")
REPOSITORY = Path(__file__).parents[2]
TIMEOUT_S = 120
Fault = Callable[[str], Any]


@pytest.fixture(scope="module")
def store() -> Iterator[s3.S3]:
    with s3.serve() as served:
        yield served


@pytest.fixture
def root(store: s3.S3, request: pytest.FixtureRequest) -> Iterator[str]:
    store.request_lines.clear()
    yield f"s3://{s3.BUCKET}/{request.node.name}"
    store.fault = lambda _: None


def save(
    store: s3.S3, root: str, step: int, contents: dict[str, bytes], ranks: Ranks | None = None
) -> Committed:
    backend = open_root(root, store.options)
    return commit(
        backend,
        step,
        plan(contents),
        ranks or single_process(),
        metadata={},
        incremental=True,
        progress=lambda _: None,
    )


def newest(store: s3.S3, root: str) -> dict[str, bytes]:
    backend = open_root(root, store.options)
    folder = catalog.latest(backend)
    assert folder is not None
    assert verify(root, storage_options=store.options) == []
    contents = catalog.read_manifest(backend, folder)
    return {
        name: backend.read(folder, at.file)[at.at : at.at + at.size]
        for name, at in contents.objects.items()
    }


def big(letter: str) -> bytes:
    return letter.encode() * MIN_FILE_BYTES


def folders(store: s3.S3, root: str) -> set[str]:
    """Of all objects that are there, with a client of its own."""
    start = root.partition("://")[2] + "/"
    return {path[len(start) :].partition("/")[0] for path in store.client.find(start)}


def test_bucket_save_prune_and_load(store: s3.S3, root: str) -> None:
    first = save(store, root, 1, {"a": big("a"), "b": b"1"})
    second = save(store, root, 2, {"a": big("a"), "b": b"2"})
    third = save(store, root, 2, {"a": big("a"), "b": b"3"})
    assert (third.progress.written, third.progress.linked) == (MIN_FILE_BYTES + 1, 0)
    assert prune(root, keep=1, storage_options=store.options).removed == (first.folder,)
    assert (
        list_steps(root, storage_options=store.options),
        latest(root, storage_options=store.options),
    ) == ([2], 2)
    assert newest(store, root) == {"a": big("a"), "b": b"3"}
    assert folders(store, root) == {"copies", "latest", third.folder}
    assert second.folder not in folders(store, root)
    files = open_root(root, store.options)
    stored = catalog.read_manifest(files, third.folder).objects["a"].file
    content = bytearray(files.read(third.folder, stored))
    content[7] ^= 1
    store.client.pipe_file(f"{root}/{third.folder}/{stored}", bytes(content))
    assert [
        (damage.folder, damage.file, damage.tensors)
        for damage in verify(root, storage_options=store.options)
    ] == [(third.folder, stored, ("a",))]


def test_manifest_is_uploaded_last(store: s3.S3, root: str) -> None:
    committed = save(store, root, 1, {"a": big("a"), "b": b"1"})
    put = store.of("PUT", root)
    assert put[0].startswith(".tmp~")
    assert put[-2:] == [f"{committed.folder}/{manifest.NAME}", "latest"]
    assert store.of("DELETE", root)[-1] == put[0]
    start = f" /{s3.BUCKET}/{root.rpartition('/')[2]}/"
    order = [
        request_line
        for request_line in store.request_lines
        if start in request_line and not request_line.startswith(("HEAD", "GET"))
    ]
    assert [request_line.split(start)[0] for request_line in order[-3:]] == ["PUT", "PUT", "DELETE"]


def test_concurrent_changes_are_detected(store: s3.S3, root: str) -> None:
    backend = open_root(root, store.options)
    save(store, root, 1, {"a": b"1"})
    assert len(backend.folders()) == 1
    other = {
        **store.options,
        "default_block_size": 5 << 20,
    }  # a client that shares nothing with ours
    commit(
        open_root(root, other),
        2,
        plan({"a": b"2"}),
        single_process(),
        metadata={},
        incremental=True,
        progress=lambda _: None,
    )
    assert [name.step for name in catalog.steps(backend)] == [1, 2]
    prune(root, keep=1, storage_options=other)
    assert [name.step for name in catalog.steps(backend)] == [2]


@pytest.mark.parametrize(
    ("fault", "message", "code"),
    [
        (s3.matching(r"^PUT .*distcp$", s3.ACCESS_DENIED, first=2), "Access Denied: s3://", 13),
        (
            s3.matching(r"^PUT .*distcp$", s3.INTERNAL_ERROR),
            "We encountered an internal error: s3://",
            121,
        ),
        (s3.matching(r"^PUT .*distcp$", "drop"), "Could not connect|Connection", 5),
        (s3.matching(r"^PUT .*manifest.json$", s3.ACCESS_DENIED), "Access Denied: s3://", 13),
        (
            s3.matching(r"^PUT .*latest$", s3.INTERNAL_ERROR),
            "We encountered an internal error: s3://",
            121,
        ),
    ],
    ids=["denied", "error", "dropped", "manifest", "latest"],
)
def test_store_refusal_is_raised_on_all_ranks_and_leaves_nothing(
    store: s3.S3, root: str, fault: Fault, message: str, code: int
) -> None:
    root = re.sub(r"[\[\]]", "-", root)
    committed = save(store, root, 1, {"a": big("o")})

    def only_here(request_line: str) -> Any:
        return (
            fault(request_line)
            if request_line.endswith(f"/{manifest.NAME}") or not request_line.endswith("done")
            else None
        )

    store.fault = only_here
    errors = RankThreads(2).run(
        lambda ranks: save(
            store, root, 2, {f"{ranks.rank}": big("n"), f"{ranks.rank}b": big("m")}, ranks
        )
    )
    store.fault = lambda _: None
    assert [type(error) for error in errors] == [NotCommitted] * 2, errors
    assert re.search(message, str(errors[0]))
    assert errors[0].errno == code
    prune(
        root, keep=9, storage_options=store.options
    )  # a rank may have put an object after rank 0 had cleared away
    assert folders(store, root) == {"copies", "latest", committed.folder}
    assert newest(store, root) == {"a": big("o")}


def test_missing_bucket_or_server(store: s3.S3, root: str) -> None:
    with pytest.raises(
        NotCommitted, match="The specified bucket does not exist: s3://nowhere/run/"
    ) as missing:
        save(store, "s3://nowhere/run", 1, {"a": b"1"})
    assert missing.value.errno == 2
    assert list_steps("s3://nowhere/run", storage_options=store.options) == []
    silent = {**store.options, "endpoint_url": f"http://127.0.0.1:{free_port()}"}
    with pytest.raises(OSError, match="Could not connect to the endpoint URL"):
        list_steps(root, storage_options=silent)


# What a writer had asked (it may still be served), or had just been served, when it was killed; and the steps that are there then.
DEATHS = {
    r"^PUT .*/\.tmp~[^/]* done$": ([1],),
    r"^PUT .*distcp done$": ([1],),
    r"^PUT .*manifest\.json$": ([1], [1, 2]),
    r"^PUT .*manifest\.json done$": ([1, 2],),
    r"^PUT .*latest done$": ([1, 2],),
}
# Forks a writer for each root, so that s3fs is imported once; prints their process numbers, and their
# exit codes once all have ended. A writer begins when it may read from standard input.
WRITERS = """
import json, os, sys
import s3fs
from provision_runtime.checkpoint.backends import open_root
from provision_runtime.checkpoint.commit import commit
from provision_runtime.checkpoint.items import OBJECT, Item
from provision_runtime.comm.ranks import single_process
options, size, roots = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
plan = [Item("a", OBJECT, b"a" * size), Item("b", OBJECT, b"n" * size)]
children = []
for root in roots:
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        commit(open_root(root, options), 2, plan, single_process(), metadata={}, incremental=True, progress=lambda _: None)
        os._exit(0)
    children.append(child)
print(json.dumps(children), flush=True)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))
"""


@pytest.mark.exhaustive
def test_killed_writer_leaves_old_or_new_checkpoint(store: s3.S3, root: str) -> None:
    roots = {pattern: f"{root}/{place}" for place, pattern in enumerate(DEATHS)}
    for place in roots.values():
        save(store, place, 1, {"a": big("a"), "b": big("o")})
    command = [sys.executable, "-c", WRITERS, json.dumps(store.options), str(MIN_FILE_BYTES)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *roots.values()], cwd=REPOSITORY, **pipes) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        writers = dict(zip(roots, json.loads(parent.stdout.readline())))

        def kill(request_line: str) -> None:
            for pattern, place in roots.items():
                if f"/{place.partition('://')[2]}/" in request_line and re.search(
                    pattern, request_line
                ):
                    with contextlib.suppress(ProcessLookupError):  # it is gone
                        os.kill(writers[pattern], signal.SIGKILL)

        store.fault = kill
        statuses, _ = parent.communicate("." * len(writers), timeout=TIMEOUT_S)
    store.fault = lambda _: None
    assert set(json.loads(statuses)) == {-signal.SIGKILL}
    for pattern, steps in DEATHS.items():
        place = roots[pattern]
        assert list_steps(place, storage_options=store.options) in steps, pattern
        assert newest(store, place) in (
            {"a": big("a"), "b": big("o")},
            {"a": big("a"), "b": big("n")},
        ), pattern
        last = save(store, place, 3, {"z": b"z"})
        prune(place, keep=1, storage_options=store.options)
        assert folders(store, place) == {"copies", "latest", last.folder}, pattern


RANK = """
import json, os, sys
import torch
from provision_runtime import checkpoint
from provision_runtime.comm import ranks
rank, world_size, root, options = int(os.environ["RANK"]), 2, os.environ["ROOT"], json.loads(os.environ["OPTIONS"])
from datetime import timedelta
store = torch.distributed.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, rank == 0, timedelta(seconds=60))
us = ranks.through_store(store, rank, world_size, timeout_s=60)
found = {}
state = {"same": torch.arange(300_000.0), f"own{rank}": torch.full((300_000,), float(rank)), "small": torch.tensor(1), "word": "one"}
checkpoint.save(state, root, step=1, ranks=us, storage_options=options)
state["small"], state["word"] = torch.tensor(2), "two"
report = checkpoint.save(state, root, step=1, ranks=us, storage_options=options)
found["sizes"] = [report.bytes, report.written, report.linked]
other = {"same": torch.zeros(300_000), f"own{1 - rank}": torch.zeros(300_000), "small": torch.tensor(0), "word": ""}
checkpoint.load(other, root, ranks=us, storage_options=options)
of_other = other[f"own{1 - rank}"].unique().tolist()
found["loaded"] = [bool((other["same"] == state["same"]).all()), of_other, int(other["small"]), other["word"]]
print("found", json.dumps(found), flush=True)
store.get("left") if rank == 0 else store.set("left", "1")  # rank 0 hosts the store, so it leaves last
os._exit(0)
"""


@pytest.mark.exhaustive
@pytest.mark.torch
def test_two_ranks_save_and_load_tensors(store: s3.S3, root: str, tmp_path: Path) -> None:
    variables = {"ROOT": root, "OPTIONS": json.dumps(store.options)}
    paths = [str(REPOSITORY), S3FS]
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    asked = subprocess.run(
        [PYTHON, "-c", "import importlib.util as u; raise SystemExit(not u.find_spec('s3fs'))"],
        env={**os.environ, **variables},
    )
    if asked.returncode != 0:
        assert not S3FS, f"PROVISION_TEST_S3FS={S3FS} holds no s3fs that {PYTHON} can import"
        pytest.skip(f"{PYTHON} has no s3fs; nox installs one beside it (PROVISION_TEST_S3FS)")
    (tmp_path / "rank.py").write_text(RANK)
    result = run_ranks(tmp_path / "rank.py", world_size=2, variables=variables)
    total, written, linked = result[0]["sizes"]
    assert (written, linked) == (total, 0)
    assert [item["loaded"] for item in result] == [[True, [1.0], 2, "two"], [True, [0.0], 2, "two"]]
