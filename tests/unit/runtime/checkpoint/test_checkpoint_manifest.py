"""A manifest is accepted whole or is damaged: nothing of it is used before all of it was checked."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision_runtime.checkpoint import catalog, errors, manifest, verify
from provision_runtime.checkpoint.items import MIN_FILE_BYTES
from provision_runtime.checkpoint.storage import Storage
from tests.checkpoints import save

PACK, BIG, OTHER = "a" * 64, "b" * 64, "c" * 64
FIRST, SECOND, THIRD = "1" * 8, "2" * 8, "3" * 8
RUN = "d" * 32 + "e" * 8


WIDTH = MIN_FILE_BYTES // 4
ROW = 4 * WIDTH


def digest_of(file: str, row: int, rows: int) -> str:
    kind = "torch.float32", (3, WIDTH), (row, 0), (rows, WIDTH)
    return manifest.record_digest(file.encode(), *kind)


def whole() -> dict[str, Any]:
    """As a save writes it: a pack of two tensors and an object, a tensor in two pieces, and a run
    of two small ones.
    """
    files = [
        {"name": f"{PACK}.distcp", "size": 3000, "digest": PACK, "links": 2},
        {"name": f"{BIG}.distcp", "size": 2 * ROW, "digest": BIG, "links": 0},
        {"name": f"{OTHER}.distcp", "size": ROW, "digest": OTHER},
        {"name": f"{RUN}.distcp", "size": 24, "digest": RUN},
    ]
    records = [
        [f"{BIG}.distcp", 0, 2 * ROW, digest_of(BIG, 0, 2), [0, 0], [2, WIDTH]],
        [f"{OTHER}.distcp", 0, ROW, digest_of(OTHER, 2, 1), [2, 0], [1, WIDTH]],
    ]
    flag = [[f"{PACK}.distcp", 0, 1, FIRST, [], []]]
    empty = [[f"{PACK}.distcp", 1000, 0, SECOND, [0], [0]]]
    return {
        "schema": manifest.SCHEMA,
        "step": 2,
        "sequence": 1,
        "parent": "step-000000000001",
        "world_size": 2,
        "torch": "2.3.1",
        "files": files,
        "tensors": {
            "w": {"dtype": "torch.float32", "shape": [3, WIDTH], "records": records},
            "flag": {"dtype": "torch.bool", "shape": [], "records": flag},
            "empty": {"dtype": "torch.float16", "shape": [0], "records": empty},
        },
        "runs": [
            {
                "file": f"{RUN}.distcp",
                "at": 4,
                "dtype": "torch.float32",
                "shape": [2],
                "names": ["r0", "r1"],
                "digests": FIRST + SECOND,
            }
        ],
        "objects": {"n": [f"{PACK}.distcp", 1900, 1100, THIRD, [], []]},
        "metadata": {"loss": math.nan, "deep": [[{"a": 1}]]},
    }


def framed(body: str) -> bytes:
    rest = body[1:].encode() + b"\n"
    return manifest.HEAD + hashlib.sha256(rest).hexdigest().encode() + manifest.AFTER + rest


def read(document: dict[str, Any]) -> manifest.Manifest:
    return manifest.loads(framed(json.dumps(document)), "manifest.json")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from places(value[key], (*path, key))


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(whole())
    container: Any = document
    for key in path[:-1]:
        container = container[key]
    container[path[-1]] = value
    return document


WRONG: list[Any] = [None, True, -1, 2**63, 1.5, math.nan, "x", "../x", "", [], [[]], {}, {"a": {}}]


def test_whole_manifest_is_read_and_written_again() -> None:
    content = read(whole())
    assert manifest.loads(manifest.dumps(content), "again").digest == content.digest
    [last] = content.tensors["r1"].records
    assert last == manifest.Record(f"{RUN}.distcp", 12, 8, SECOND, (0,), (2,))


def test_every_value_of_another_type_or_out_of_bounds_is_damage() -> None:
    """Each value of the document becomes each of the wrong ones."""
    free = {"step", "sequence", "world_size", "torch", "parent", "metadata"}
    free |= {"tensors", "objects", "runs"}
    expected = read(whole())
    refused = 0
    for path in places(whole()):
        for wrong in WRONG:
            if path[0] == "runs" and (isinstance(wrong, str) or wrong == []):
                continue  # another name, or the digests of the records show it
            try:
                content = read(changed(path, wrong))
            except errors.DamagedFile as error:
                assert error.path == "manifest.json" and error.problem
                refused += 1
                continue
            # What is accepted says the same of each tensor and object.
            assert path[0] in free, (path, wrong)
            assert content.tensors.items() <= expected.tensors.items()
            assert content.objects.items() <= expected.objects.items()
    assert refused > 800


def test_every_missing_field_is_damage() -> None:
    optional = {"parent", "links", "torch", "w", "flag", "empty", "n"}
    for path in places(whole()):
        is_free = path[-1] in optional or path[0] == "metadata"
        if isinstance(path[-1], str) and not is_free:
            document = changed(path, None)
            container: Any = document
            for key in path[:-1]:
                container = container[key]
            del container[path[-1]]
            with pytest.raises(errors.DamagedFile):
                read(document)


W, N = ("tensors", "w"), ("objects", "n")


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ((*W, "dtype"), "torch.complex128", "'w': a record is not the file that it names"),
        ((*W, "dtype"), "torch.int32", "'w': a record is not the file that it names"),
        ((*W, "dtype"), "torch.load(x)", "dtype of tensor 'w'"),
        ((*W, "records", 0, 3), FIRST, "'w': a record is not the file that it names"),
        ((*W, "records", 0, 1), 4, "'w' goes beyond the end of its file"),
        (("tensors", "flag", "dtype"), "torch.int16", "'flag': a record is not its elements"),
        (("tensors", "flag", "shape"), [1], "'flag': a record has other dimensions"),
        (("tensors", "flag", "records", 0, 3), "1" * 9, "the digest of tensor 'flag'"),
        (("tensors", "empty", "shape"), [2], "'empty': the ranks hold 0 of its 2 elements"),
        (("tensors", "empty", "records", 0, 4), [1], "'empty': a record is outside of its shape"),
        ((*W, "records", 1, 2), ROW + 1, "'w' goes beyond the end of its file"),
        (("runs", 0, "at"), 9, "the run of tensors from 'r0' on is outside of its file"),
        (("runs", 0, "file"), "z", "the run of tensors from 'r0' on is outside of its file"),
        (("runs", 0, "names"), ["r0", "r0"], "'r0' is there twice"),
        (("runs", 0, "names"), ["r0", "w"], "'w' is there twice"),
        (("runs", 0, "names"), ["r0"], "the digests of the run of tensors from 'r0'"),
        (("files", 3, "digest"), RUN[:32], "the digest of file"),
        ((*W, "records", 1, 0), "z.distcp", "'w' is in 'z.distcp', which is not one of the files"),
        ((*W, "records", 0), [1, 2], "not a list of 6 values"),
        ((*W, "shape"), [1] * 65, "'w' has 65 dimensions"),
        (("tensors", "flag", "records", 0, 1), 1900, "'flag', 'n' overlap in"),
        ((*N, 4), [1], "'n': a record has other dimensions"),
        ((*N, 5), [1], "'n': a record has other dimensions"),
        (("files", 1, "name"), f"{PACK}.distcp", "is there twice"),
        (("files", 1, "name"), "a/b", "leads out of its folder"),
        (("files", 1, "name"), "\ud800", "surrogates not allowed"),
        (("files", 1, "digest"), "B" * 64, "the digest of file"),
        (("files", 1, "links"), False, "files[1].links"),
        (("files", 1, "size"), 2**63 - 1, "the size of all files"),
        (("objects", "w"), [f"{PACK}.distcp", 1900, 1100, THIRD, [], []], "is a tensor too"),
        (("metadata", "deep"), json.loads("[" * 200 + "]" * 200), "nested more than 100 deep"),
    ],
)
def test_contradictions_are_damage_by_name(path: tuple[Any, ...], value: Any, problem: str) -> None:
    with pytest.raises(errors.DamagedFile) as refused:
        read(changed(path, value))
    assert problem in refused.value.problem


@pytest.mark.parametrize(
    "body",
    [
        "{" + "[" * 200_000,
        "{" + '"a":{' * 200_000,
        '{"schema": 4, "schema": 4}',
        '{"schema": 4' + "0" * 10_000 + "}",
        '{"schema": 1e999}',
        "{} {}",
        "{'a': 1}",
        "{",
        '{"schema": 4, "files": "\ud800"}',
    ],
)
def test_what_is_no_document_is_damage(body: str) -> None:
    rest = body[1:].encode(errors="surrogatepass")
    digest = hashlib.sha256(rest).hexdigest().encode()
    with pytest.raises(errors.DamagedFile):
        manifest.loads(manifest.HEAD + digest + manifest.AFTER + rest, "manifest.json")


def test_names_that_look_like_paths_are_names() -> None:
    document = whole()
    names = ["a/b", "../c", "", ".", "a.b", "a\nb", "ä"]
    for name in names:
        document["tensors"][name] = document["tensors"]["w"]
    assert set(names) <= read(document).tensors.keys()


def test_big_manifest_is_refused_unread(tmp_path: Path) -> None:
    """300 MB of it, in a file without blocks on the disk."""
    folder = tmp_path / save(tmp_path, 1, {"a": b"1"}).folder
    with (folder / manifest.NAME).open("r+b") as stream:
        stream.truncate(300 << 20)
    tracemalloc.start()
    with pytest.raises(errors.DamagedFile, match="at most 134217728 are read"):
        catalog.read_manifest(Storage(tmp_path), folder.name)
    assert [damage.file for damage in verify(tmp_path)] == [manifest.NAME]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty dicts take thirty times the memory of their text."""
    monkeypatch.setattr(manifest, "MAX_VALUES", 100_000)
    content = framed('{"metadata": [' + "{}," * 200_000 + "{}]}")
    tracemalloc.start()
    with pytest.raises(errors.DamagedFile, match="at most 100000 are read"):
        manifest.loads(content, "manifest.json")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_no_save_writes_what_no_reader_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, {"a": b"1"})
    monkeypatch.setattr(manifest, "MAX_VALUES", 100)
    with pytest.raises(errors.NotCommitted, match="the manifest is too big"):
        save(tmp_path, 2, {f"n{number}": b"1" for number in range(20)})
    assert [name.step for name in catalog.steps(Storage(tmp_path))] == [1]
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"a": deep}
    with pytest.raises(ValueError, match="nested more than 100 deep"):
        manifest.check_metadata(deep)
    for wrong in ({"a": (1, 2)}, {1: "a"}, {"a": [{"b": b"c"}]}, {"a": {2}}):
        with pytest.raises(ValueError, match="must be what JSON can hold"):
            manifest.check_metadata(wrong)


def test_a_record_digest_is_of_its_type_shape_and_box() -> None:
    parts: list[Any] = ["float32", (4, 4), (0, 0), (2, 4)]
    others: list[Any] = ["int32", (2, 8), (2, 0), (4, 2)]
    digest = manifest.record_digest(b"1" * 32, *parts)
    for place, other in enumerate(others):
        changed_parts = [*parts[:place], other, *parts[place + 1 :]]
        assert manifest.record_digest(b"1" * 32, *changed_parts) != digest
