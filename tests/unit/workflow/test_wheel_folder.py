"""The wheels next to spec.yml: what provision put there goes when nothing names it; nothing else."""

from pathlib import Path

from provision.workflow.wheel_folder import RECORD, WHEELS, Placed, place, remove_unnamed, undo


def filename(name: str) -> str:
    return f"{name}-1-py3-none-any.whl"


def names(folder: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in folder.glob("*.whl")}


def test_only_what_provision_put_there_goes(tmp_path: Path) -> None:
    wheels = tmp_path / "lab" / WHEELS
    for name in ("dropped", "named+cu121", "rebuilt"):
        place(filename(name), b"wheel", tmp_path / "lab", {})
    (wheels / filename("own")).write_bytes(b"wheel")
    (wheels / "rebuilt-1-py3-none-any.whl").write_bytes(b"by hand")
    (tmp_path / "victim").write_bytes(b"wheel")
    digest = (wheels / RECORD).read_text().split()[0]
    with (wheels / RECORD).open("a") as file:
        file.write(f"{digest}  ../../victim\n")
    remove_unnamed(tmp_path / "lab", "url: file:wheels/named%2Bcu121-1-py3-none-any.whl", "")
    assert names(wheels) == {"named+cu121", "rebuilt", "own"}
    assert (tmp_path / "victim").exists()
    assert (wheels / RECORD).read_text().split()[1:] == ["named+cu121-1-py3-none-any.whl"]
    remove_unnamed(tmp_path / "lab", "")
    assert {path.name for path in wheels.glob("*")} == {
        "own-1-py3-none-any.whl",
        "rebuilt-1-py3-none-any.whl",
    }


def test_an_own_wheel_of_the_same_bytes_stays_the_users(tmp_path: Path) -> None:
    (tmp_path / WHEELS).mkdir()
    (tmp_path / WHEELS / filename("own")).write_bytes(b"wheel")
    place(filename("own"), b"wheel", tmp_path, {})
    remove_unnamed(tmp_path, "")
    assert names(tmp_path / WHEELS) == {"own"}


def test_a_failure_puts_everything_back(tmp_path: Path) -> None:
    place(filename("a"), b"wheel", tmp_path, {})
    before = {path: path.read_bytes() for path in (tmp_path / WHEELS).iterdir()}
    placed: Placed = {}
    place(filename("a"), b"for another torch", tmp_path, placed)
    place(filename("b"), b"wheel", tmp_path, placed)
    undo(placed)
    assert {path: path.read_bytes() for path in (tmp_path / WHEELS).iterdir()} == before
    remove_unnamed(tmp_path, "")
    assert not (tmp_path / WHEELS).exists()
