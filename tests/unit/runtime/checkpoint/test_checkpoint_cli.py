"""`provision checkpoint` on real checkpoints: what is there, what is damaged, what a removal frees, and what is no root of ours."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provision.cli.main import cli
from provision_runtime.checkpoint import hashes, layout, manifest, prune
from provision_runtime.checkpoint.inspection import audit, contents, inventory
from provision_runtime.checkpoint.items import MIN_FILE_BYTES
from provision_runtime.checkpoint.manifest import element_bytes
from provision_runtime.checkpoint.storage import Stat, Storage
from provision_runtime.cli import main as runtime_cli
from tests.checkpoints import big, flip, save
from tests.paths import ROOT

FIRST, SECOND, THIRD = (f"step-{step:012d}" for step in (100, 200, 300))


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *map(str, arguments)])


def run_json(*arguments: object, code: int = 0) -> Any:
    result = invoke(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three checkpoints; `w` is one file of all, `m` a file of each."""
    for step in (100, 200, 300):
        save(tmp_path / "run", step, {"w": big("w"), "m": big(str(step)[0]), "s": b"%d" % step})
    return tmp_path / "run"


def file_of(root: Path, folder: str, name: str) -> Path:
    manifest_of_step = manifest.loads((root / folder / manifest.NAME).read_bytes(), folder)
    return root / folder / manifest_of_step.objects[name].file


def rewrite(folder: Path, **body: Any) -> None:
    """A manifest that is whole and says something else."""
    document = json.loads((folder / manifest.NAME).read_text())
    document.pop("sha256")
    text = json.dumps({**document, **body}, sort_keys=True)[1:].encode() + b"\n"
    (folder / manifest.NAME).write_bytes(
        manifest.HEAD + hashlib.sha256(text).hexdigest().encode() + manifest.AFTER + text
    )


def temporary(host: str | None = None, number: str | None = None) -> str:
    """A name as a writer gives it; by default as this process does."""
    fields = layout.temporary("step-000000000400").split(layout.SEPARATOR)
    fields[2:4] = [host or fields[2], number or fields[3]]
    return layout.SEPARATOR.join(fields)


def test_list_reports_contents_sharing_and_origin(root: Path) -> None:
    output = run_json("list", root)
    rows = output["checkpoints"]
    assert [
        (row["step"], row["folder"], row["latest"], row["sequence"], row["parent"]) for row in rows
    ] == [
        (100, FIRST, False, 0, None),
        (200, SECOND, False, 1, FIRST),
        (300, THIRD, True, 2, SECOND),
    ]
    assert {
        (row["state"], row["world_size"], row["objects"], row["generation"]) for row in rows
    } == {("committed", 1, 3, 0)}
    on_disk = {(path.stat().st_ino, path.stat().st_size) for path in root.glob("step-*/*")}
    assert output["bytes"] == sum(length for _, length in on_disk)
    assert (output["latest"], output["unfinished"]) == (300, [])
    result = invoke("list", root).output
    assert "3 checkpoints, latest step 300, 4.0" in result
    assert len([line for line in result.splitlines() if line.endswith("latest")]) == 1


def test_json_shapes_match_the_docs(root: Path) -> None:
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    for product in (
        inventory.Checkpoint,
        inventory.Unfinished,
        inventory.CheckpointInventory,
        audit.CheckpointVerdict,
        audit.Audit,
        contents.Contents,
        contents.TensorContent,
        contents.ObjectContent,
        manifest.FileEntry,
        inventory.Cleanup,
    ):
        for field in dataclasses.fields(product):
            assert f"`{field.name}`" in page, (
                f"docs/checkpoints.md does not say what `{field.name}` of {product.__name__} is"
            )


def test_resaved_step_is_listed_with_its_generation(root: Path) -> None:
    save(root, 300, {"w": big("w")})
    row = run_json("list", root)["checkpoints"][-1]
    assert (row["folder"], row["generation"], row["latest"], row["state"]) == (
        f"{THIRD}.1",
        1,
        True,
        "committed",
    )
    (root / f"{THIRD}.2").mkdir()
    (root / f"{THIRD}.2" / manifest.NAME).write_bytes(
        (root / f"{THIRD}.1" / manifest.NAME).read_bytes()
    )
    assert [row["state"] for row in run_json("list", root)["checkpoints"]] == [
        "committed",
        "committed",
        "replaced",
        "committed",
    ]


def test_list_reports_unfinished_saves_and_their_writers(root: Path) -> None:
    own, dead, elsewhere = temporary(), temporary(number="4194305"), temporary(host="node7")
    for name in (own, dead, elsewhere):
        (root / name).mkdir()
    (root / dead / "x.distcp").write_bytes(b"123")
    (root / ".tmp~odd").mkdir()
    rows = {row["name"]: row for row in run_json("list", root)["unfinished"]}
    assert {name: rows[name]["writer"] for name in rows} == {
        own: "alive",
        dead: "gone",
        elsewhere: "unknown",
        ".tmp~odd": "unknown",
    }
    assert (
        rows[own]["pid"],
        rows[elsewhere]["host"],
        rows[dead]["bytes"],
    ) == (os.getpid(), "node7", 3)
    assert rows[".tmp~odd"]["pid"] is None
    assert "on node7, cannot be seen from here" in invoke("list", root).output


def test_list_shows_damaged_manifests_and_the_others(root: Path) -> None:
    flip(root / FIRST / manifest.NAME)
    rewrite(root / SECOND, schema=99)
    (root / THIRD / manifest.NAME).unlink()
    (root / THIRD / manifest.NAME).mkdir()
    save(root, 400, {"w": big("w")})
    rows = run_json("list", root)["checkpoints"]
    assert [row["state"] for row in rows] == ["damaged", "unreadable", "unreadable", "committed"]
    assert [row["world_size"] for row in rows] == [None, None, None, 1]
    assert "schema 99" in rows[1]["problem"] and "Is a directory" in rows[2]["problem"]
    assert f"{FIRST}/manifest.json is damaged" in invoke("list", root).output


def test_verify_names_file_and_contents_and_reads_shared_files_once(root: Path) -> None:
    output = run_json("verify", root, "--all")
    assert [row["verdict"] for row in output["checkpoints"]] == ["whole"] * 3
    sizes = [entry.size for folder in (FIRST, SECOND, THIRD) for entry in files(root, folder)]
    assert output["bytes_read"] == sum(sizes) - 2 * MIN_FILE_BYTES
    assert run_json("verify", root, "--step", 200)["bytes_read"] == sum(
        entry.size for entry in files(root, SECOND)
    )

    flip(file_of(root, SECOND, "w"))  # the others' too
    flip(file_of(root, SECOND, "m"))
    output = run_json("verify", root, "--all", code=1)
    messages = {
        row["folder"]: [(damage["folder"], damage["tensors"]) for damage in row["damages"]]
        for row in output["checkpoints"]
    }
    assert {folder: sorted(damages) for folder, damages in messages.items()} == {
        FIRST: [(FIRST, ["w"])],
        SECOND: [(SECOND, ["m"]), (SECOND, ["w"])],
        THIRD: [(THIRD, ["w"])],
    }
    assert output["bytes_read"] == sum(sizes) - 2 * MIN_FILE_BYTES
    assert [row["step"] for row in run_json("verify", root, code=1)["checkpoints"]] == [300]
    result = invoke("verify", root, "--step", 100)
    assert result.exit_code == 1
    hash_name = "XXH128" if hashes.XXH3_128 else "SHA-256"
    message = f"{file_of(root, FIRST, 'w')} is damaged: its {hash_name} is not the committed one (it holds w)"
    assert message in result.output


def test_damaged_latest_hides_nothing(root: Path) -> None:
    """The manifests say which was committed last."""
    content = (root / "latest").read_bytes()
    (root / "latest").write_bytes(content.replace(b"300", b"200"))
    for which, folders in ((["--all"], [FIRST, SECOND, THIRD]), ([], [THIRD])):
        output = run_json("verify", root, *which)
        assert [row["folder"] for row in output["checkpoints"]] == folders
    assert run_json("show", root)["step"] == run_json("list", root)["latest"] == 300


def files(root: Path, folder: str) -> tuple[manifest.FileEntry, ...]:
    return manifest.loads((root / folder / manifest.NAME).read_bytes(), folder).files


def test_unreadable_checkpoint_is_not_called_sound(root: Path) -> None:
    rewrite(root / FIRST, schema=99)
    (root / SECOND / manifest.NAME).unlink()
    (root / SECOND / manifest.NAME).mkdir()
    (root / THIRD / "stray").touch()
    rows = run_json("verify", root, "--all", code=1)["checkpoints"]
    assert [row["verdict"] for row in rows] == ["unknown", "unknown", "damaged"]
    assert rows[2]["damages"][0]["file"] == "stray"
    assert "0 of 3 checkpoints whole" in invoke("verify", root, "--all").output


def test_show_lists_contents_and_files(root: Path) -> None:
    entries = {entry.name: entry for entry in files(root, SECOND)}
    objects = manifest.loads((root / SECOND / manifest.NAME).read_bytes(), SECOND).objects
    shape, records = (2, MIN_FILE_BYTES), []
    for row, item in enumerate((objects["w"], objects["m"])):
        kind = "torch.bool", shape, (row, 0), (1, MIN_FILE_BYTES)
        digest = manifest.record_digest(entries[item.file].digest.encode(), *kind)
        records.append([item.file, 0, item.size, digest, *kind[2:]])
    rewrite(
        root / SECOND,
        tensors={"layer.w\n": {"dtype": "torch.bool", "shape": shape, "records": records}},
    )
    output = run_json("show", root, "--step", 200)
    assert (output["folder"], output["sequence"], output["parent"], output["world_size"]) == (
        SECOND,
        1,
        FIRST,
        1,
    )
    tensor = {
        "name": "layer.w\n",
        "dtype": "torch.bool",
        "shape": [*shape],
        "bytes": 2 * MIN_FILE_BYTES,
        "parts": 2,
    }
    assert output["tensors"] == [{**tensor, "files": [objects["w"].file, objects["m"].file]}]
    assert {item["name"]: (item["bytes"], item["file"]) for item in output["objects"]} == {
        name: (objects[name].size, objects[name].file) for name in objects
    }
    assert {item["name"]: (item["size"], item["digest"]) for item in output["files"]} == {
        name: (entry.size, entry.digest) for name, entry in entries.items()
    }
    result = invoke("show", root, "--step", "200").output
    assert r"layer.w\n" in result and "bool" in result and "[2, 1048576]" in result


@pytest.mark.parametrize(
    "dtype, width",
    [
        ("float32", 4),
        ("bfloat16", 2),
        ("bool", 1),
        ("complex128", 16),
        ("float8_e4m3fn", 1),
        ("int4", 1),
    ],
)
def test_element_size_comes_from_the_dtype_name(dtype: str, width: int) -> None:
    assert element_bytes(f"torch.{dtype}") == width


def test_prune_reports_removals_and_freed_bytes(root: Path) -> None:
    before = used(root)
    preview = run_json("prune", root, "--keep", 1, "--dry-run")
    assert (preview["removed"], preview["remaining"], preview["dry_run"]) == (
        [FIRST, SECOND],
        [THIRD],
        True,
    )
    assert used(root) == before
    output = run_json("prune", root, "--keep", 1)
    assert (output["removed"], output["dry_run"]) == ([FIRST, SECOND], False)
    assert (
        output["freed_bytes"] == preview["freed_bytes"] == before - used(root) > 2 * MIN_FILE_BYTES
    )
    copied = sum(path.stat().st_size for path in (root / "copies").iterdir())
    assert output["copied_bytes"] == preview["copied_bytes"] == copied > 2 * MIN_FILE_BYTES
    assert run_json("list", root)["copies_bytes"] == copied
    assert "removed 0" in invoke("prune", root, "--keep", 1).output


def used(root: Path) -> int:
    return sum(
        length
        for _, length in {
            (path.stat().st_ino, path.stat().st_size) for path in root.glob("step-*/*")
        }
    )


def test_prune_removes_leftovers_of_dead_writers_alone(root: Path) -> None:
    own, dead, elsewhere = temporary(), temporary(number="4194305"), temporary(host="node7")
    for name in (own, dead, elsewhere):
        (root / name).mkdir()
    output = run_json("prune", root, "--keep", 3)
    assert (sorted(output["unfinished"]), output["removed"], output["freed_bytes"]) == (
        [dead],
        [],
        0,
    )
    assert sorted(row["name"] for row in output["left"]) == sorted([own, elsewhere])
    assert dead not in {path.name for path in root.iterdir()} >= {own, elsewhere}


def test_wrong_roots_have_distinct_errors(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for verb, named, code, message in [
        ("list", tmp_path / "nosuch", 3, "There is no folder"),
        ("list", tmp_path / "file", 3, "There is no folder"),
        ("list", tmp_path, 3, "holds no checkpoints of provision. Name the folder that the job passes"),
        ("verify", root / SECOND, 3, f"is one checkpoint. Name the folder that holds it, {root}, and choose with --step 200"),
        ("show", tmp_path / "empty", 3, "it has no committed step"),
        ("verify", tmp_path / "empty", 3, "it has no committed step"),
        ("verify", root, 3, "no checkpoint of step 7: it has steps 100, 200, 300"),
        ("list", "s3://bucket/run", 3, "is a URL; checkpoints are saved in a folder. Save to a folder, and copy committed steps"),
    ]:  # fmt: skip
        result = invoke(verb, named, *(["--step", 7] if named == root else []))
        assert (result.exit_code, message in " ".join(result.output.split())) == (code, True), (
            result.output
        )
        assert len(result.output.strip().splitlines()) == 1
    result = invoke("list", root, "--option", "endpoint_url=http://x")
    assert result.exit_code == 2 and "ROOT is a folder" in result.output
    result = invoke("export", root, "--dcp", tmp_path / "new")
    assert result.exit_code == 2 and "checkpoint_id=DIR" in result.output
    assert run_json("list", tmp_path / "empty")["checkpoints"] == []


def test_show_of_an_unreadable_checkpoint_gives_the_reason(root: Path) -> None:
    flip(root / FIRST / manifest.NAME)
    rewrite(root / SECOND, schema=99)
    assert [invoke("show", root, "--step", step).exit_code for step in (100, 200, 300)] == [7, 7, 0]
    assert "schema 99" in invoke("show", root, "--step", 200).output


@pytest.mark.parametrize("arguments", [
    ["prune", "--keep", "0"], ["prune", "--keep", "1", "--every", "0"], ["prune"], ["prune", "--every", "5"],
    ["verify", "--step", "-1"], ["verify", "--step", "²"], ["show", "--step", "newest"], ["verify", "--all", "--step", "100"],
])  # fmt: skip
def test_usage_error_changes_nothing(root: Path, arguments: list[str]) -> None:
    verb, *rest = arguments
    result = invoke(verb, root, *rest)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert len(list(root.glob("step-*"))) == 3


def test_missing_permission_reports_the_system_error(root: Path) -> None:
    # All modules are imported before we change the user, who may not read the interpreter's files.
    assert [invoke("list", root).exit_code, invoke("list", root / "nosuch").exit_code] == [0, 3]
    is_root = os.geteuid() == 0
    root.chmod(0)
    try:
        if is_root:
            os.seteuid(65534)
        result = invoke("list", root)
    finally:
        if is_root:
            os.seteuid(0)
        root.chmod(0o700)
    assert (result.exit_code, "Permission denied" in result.output) == (14, True)


def test_runtime_command_reports_errors_in_one_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "latest").unlink()
    (root / "latest").mkdir()
    for path, message in ((root / "nosuch", "There is no folder"), (root, "Is a directory")):
        assert runtime_cli(["checkpoint", "list", str(path)]) == 3
        captured = capsys.readouterr()
        assert (captured.out, len(captured.err.splitlines())) == ("", 1)
        assert message in captured.err


def test_system_error_is_one_line(root: Path) -> None:
    (root / "latest").unlink()
    (root / "latest").mkdir()
    result = invoke("list", root)
    assert result.exit_code == 14
    assert f"{root}/latest: Is a directory" in " ".join(result.output.split())
    assert len(result.output.strip().splitlines()) == 1


def test_meter_reaches_its_total(root: Path) -> None:
    totals: list[int] = []
    counts: list[int] = []

    @contextmanager
    def meter(total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield counts.append

    result = audit.audit(Storage(root), audit.ALL, meter)
    assert totals == [sum(counts)] and totals[0] > result.bytes_read, "shared files are read once"
    assert len(counts) > 1


class Restless(Storage):
    """A store in which a job saves the step once more just before, or just after, somebody looks at a manifest; three times."""

    def __init__(self, root: Path, *, first: bool) -> None:
        super().__init__(root)
        self._first = first
        self._saves = 3

    def read(self, folder: str, name: str) -> bytes:
        if self._first:
            self._save()
        content = super().read(folder, name)
        if not self._first:
            self._save()
        return content

    def _save(self) -> None:
        if self._saves:
            self._saves -= 1
            save(Path(self.root), 300, {"w": big("w"), "n": big(f"{self._saves}")})


@pytest.mark.parametrize("first", [True, False])
def test_checkpoint_replaced_during_listing_is_looked_up_again(root: Path, first: bool) -> None:
    def newest() -> str:
        folder = layout.pointed_to((root / "latest").read_bytes())
        assert folder is not None
        return folder

    audited = audit.audit(Restless(root, first=first), 300)
    assert [
        (checkpoint.folder, checkpoint.verdict, checkpoint.damages)
        for checkpoint in audited.checkpoints
    ] == [(newest(), "whole", ())]
    # The manifest that is read first tells all that is shown.
    assert contents.read_contents(Restless(root, first=True), "latest").folder == newest()
    listed = inventory.take_inventory(Restless(root, first=first))
    assert [(checkpoint.folder, checkpoint.state) for checkpoint in listed.checkpoints] == [
        (name, "committed") for name in (FIRST, SECOND, newest())
    ]
    assert listed.checkpoints[-1].latest
    everything = audit.audit(Restless(root, first=first), "all")
    assert {checkpoint.verdict for checkpoint in everything.checkpoints} == {"whole"}
    assert {FIRST, SECOND} <= {checkpoint.folder for checkpoint in everything.checkpoints}


def test_checkpoint_vanishing_during_listing_is_not_damaged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "TRIES", 1)
    listed = inventory.take_inventory(Restless(root, first=True))
    assert [(checkpoint.step, checkpoint.state) for checkpoint in listed.checkpoints] == [
        (100, "committed"),
        (200, "committed"),
    ]


def test_file_unlinked_during_reading_is_read_by_its_other_link(root: Path) -> None:
    class Pruned(Storage):
        def stat(self, folder: str, name: str) -> Stat:
            if folder == FIRST:
                self.remove(FIRST)
            return super().stat(folder, name)

    audited = audit.audit(Pruned(root), "all")
    assert [(checkpoint.folder, checkpoint.verdict) for checkpoint in audited.checkpoints] == [
        (SECOND, "whole"),
        (THIRD, "whole"),
    ]


def test_all_commands_work_while_a_job_saves_and_prunes(root: Path) -> None:
    saves = list(range(40))

    def job() -> None:
        step = 300
        while saves:
            step += 100 * (saves.pop() % 3)
            save(root, step, {"w": big("w"), "n": b"%d" % len(saves)})
            prune(root, keep=2)

    thread = threading.Thread(target=job)
    thread.start()
    try:
        while thread.is_alive():
            for verb, *rest in (
                ["list"],
                ["show"],
                ["verify"],
                ["verify", "--all"],
                ["prune", "--keep", "2"],
            ):
                result = invoke(verb, root, *rest)
                assert result.exit_code == 0, result.output
        assert not saves
    finally:
        saves.clear()
        thread.join()
    assert [row["verdict"] for row in run_json("verify", root, "--all")["checkpoints"]] == [
        "whole"
    ] * 2


def test_torch_is_never_imported(root: Path, tmp_path: Path) -> None:
    """One that ends whoever imports it is the first to be found."""
    (tmp_path / "poison").mkdir()
    (tmp_path / "poison" / "torch.py").write_text("import os\nos._exit(99)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "poison")}
    assert subprocess.run([sys.executable, "-c", "import torch"], env=environment).returncode == 99
    script = "import sys; from provision.cli.main import cli; cli(['checkpoint', *sys.argv[1:]])"
    for arguments in (["list"], ["show"], ["verify", "--all"], ["prune", "--keep", "1"]):
        command = [sys.executable, "-c", script, arguments[0], str(root), *arguments[1:]]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
