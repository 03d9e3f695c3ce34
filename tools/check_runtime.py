"""Uses an installed provision_runtime as its users do: `python check_runtime.py VENV [--bundled]`.

Runs with nothing but that package, on every Python that it supports, for `nox -s build`. With torch
a checkpoint is saved and loaded. Without it, one that a job has written is read, verified and pruned.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARIES = ("lightning", "pytorch_lightning", "peft", "torch", "transformers")


def main(venv: str, is_bundled: bool) -> None:
    if is_bundled:
        import provision  # noqa: F401 (it adds its own copy to sys.path)
    import provision_runtime

    folder = Path(provision_runtime.__file__).parent
    assert Path(venv) in folder.parents, f"{folder} is not the installed package"
    assert (folder / "py.typed").is_file()
    for module in pkgutil.walk_packages(provision_runtime.__path__, "provision_runtime."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            # An integration is a class of its library, which only its users have.
            if ".integrations." not in module.name or error.name not in LIBRARIES:
                raise
    with tempfile.TemporaryDirectory() as root:
        use(Path(root), folder)
    python = ".".join(map(str, sys.version_info[:3]))
    torch = getattr(sys.modules.get("torch"), "__version__", "none")
    print(
        f"provision-runtime {provision_runtime.__version__}: Python {python}, torch {torch}: fine"
    )


def use(root: Path, package: Path) -> None:
    from provision_runtime import checkpoint, fs
    from provision_runtime.comm import collective, ranks

    job = ranks.single_process()
    fs.make_directory(root / "run", job)
    fs.atomic_write(root / "run" / "done.txt", b"done")
    assert collective.run_on_all("read", job, (root / "run" / "done.txt").read_text) == ["done"]
    checkpoints = root / "checkpoints"
    for step in (1, 2):
        commit(checkpoints, step)
    assert checkpoint.list_steps(checkpoints) == [1, 2]
    assert checkpoint.latest(checkpoints) == 2
    assert list(checkpoint.contents(checkpoints)) == ["value"]
    assert checkpoint.verify(checkpoints) == []
    command: list[str | Path] = [sys.executable, "-B", package, "checkpoint", "list", checkpoints]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [removed] = checkpoint.prune(checkpoints, keep=1).removed
    assert removed == "step-000000000001"
    [data] = checkpoints.glob("step-*/*.distcp")
    data.chmod(0o600)
    data.write_bytes(b"other")
    assert checkpoint.verify(checkpoints)


def commit(root: Path, step: int) -> None:
    """With torch as training code does; without it by the steps below `save`, of bytes."""
    from provision_runtime import checkpoint

    try:
        import torch
    except ImportError:
        from provision_runtime.checkpoint import items
        from provision_runtime.checkpoint.commit import Save
        from provision_runtime.checkpoint.storage import Storage
        from provision_runtime.comm.ranks import single_process

        item = items.Item("value", items.OBJECT, b"content")
        Save(Storage(root), step, [item], single_process(), print).commit()
        return
    checkpoint.save({"value": torch.arange(4)}, root, step=step)
    state = {"value": torch.zeros(4, dtype=torch.int64)}
    assert checkpoint.load(state, root).step == step
    assert state["value"].tolist() == [0, 1, 2, 3]


if __name__ == "__main__":
    main(sys.argv[1], "--bundled" in sys.argv[2:])
