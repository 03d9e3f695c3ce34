"""Faults of training programs, from their text: each with its counterpart that is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.doctor.scripts import examine

HEAD = "import os, torch, torch.distributed as dist\nfrom torch.nn.parallel import DDP\n"
LOOP = "for epoch in range(3):\n    pass\n"
MAKER = "class T(Base):\n    def __init__(self):\n        os.makedirs(d)\n"
DATASET = """class Crops(Dataset):
    def __getitem__(self, index):
        return {draw}
loader = DataLoader(Crops(), num_workers=4{options})
"""


def ids(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(HEAD + text)
    return [observation["id"] for observation in examine(path, "")]


@pytest.mark.parametrize(
    "text",
    [
        "if rank == 0:\n    dist.all_reduce(x)",
        "if step == 5 and dist.get_rank() == 0:\n    dist.barrier()",
        "if int(os.environ['RANK']) == 0:\n    dist.broadcast(x, 0)",
        "if not rank:\n    dist.barrier()",
        "if accelerator.is_main_process:\n    accelerator.wait_for_everyone()",
        "if trainer.is_global_zero:\n    self.log('loss', x, sync_dist=True)",
        "me = dist.get_rank()\nif me == 0:\n    dist.barrier()",
        "def chief(): return dist.get_rank() == 0\nif chief():\n    dist.barrier()",
        "chief = rank == 0\nif step % 10 == 0 and chief:\n    dist.barrier()",
        "def mean(x):\n    dist.all_reduce(x)\nif global_rank == 0:\n    mean(x)",
        "def save(x):\n    if rank != 0:\n        return\n    dist.barrier()",
        "for x in data:\n    if local_rank > 0:\n        continue\n    dist.barrier()",
        "@rank_zero_only\ndef report(x):\n    dist.all_reduce(x)",
        "if rank == 0:\n    pass\nelse:\n    dist.barrier()",
        "from torch.distributed import broadcast\nif rank == 0:\n    broadcast(x, 0)",
        "if not distributed or rank == 0:\n    loss.backward()",
    ],
)
def test_collectives_that_some_ranks_miss(tmp_path: Path, text: str) -> None:
    assert ids(tmp_path, text) == ["collective-one-rank"]


@pytest.mark.parametrize(
    "text",
    [
        "dist.all_reduce(x)\nif rank == 0:\n    print(x)",
        "if rank == 0:\n    dist.gather(x, y)\nelse:\n    dist.gather(x)",
        "if local_rank not in [-1, 0]:\n    dist.barrier()\nif local_rank == 0:\n    dist.barrier()",
        "if tp_rank == 0:\n    dist.all_reduce(x)",
        "if rank == 0:\n    dist.all_reduce(x, group=leaders)",
        "if rank == 0 and world_size == 1:\n    dist.barrier()",
        "if rank == 0 or use_deepspeed:\n    dist.barrier()",
        "def load(x, wait):\n    if wait:\n        dist.barrier()\nif rank == 0:\n    load(x, False)",
        "def save(x):\n    dist.barrier()\n    if rank != 0:\n        return\n    torch.save(x, 'x')",
        "if rank == 0:\n    functools.reduce(f, x)",
    ],
)
def test_collectives_of_all_ranks(tmp_path: Path, text: str) -> None:
    assert ids(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model = FSDP(m)\nif rank == 0:\n    model.state_dict()", ["checkpoint-one-rank"]),
        ("model = DDP(m)\nif rank == 0:\n    model.state_dict()", []),
        (
            "import torch.distributed.checkpoint as dcp\nif rank == 0:\n    dcp.save(x)",
            ["checkpoint-one-rank"],
        ),
        ("if rank == 0:\n    trainer.save_checkpoint(p)", ["checkpoint-one-rank"]),
        ("m = nn.Linear(8, 16 if large else 17)", []),
        ("if not os.path.exists(d):\n    os.makedirs(d)", ["makedirs-race"]),
        ("Path(d).mkdir(parents=True)", ["makedirs-race"]),
        ("shutil.rmtree(d)", ["makedirs-race"]),
        ("os.makedirs(d, exist_ok=True)", []),
        ("os.makedirs(f'out/{rank}')", []),
        ("d = f'out/{rank}'\nos.makedirs(d)", []),
        ("if rank == 0:\n    os.makedirs(d)", []),
        ("with main_process_first():\n    os.makedirs(d)", []),
        ("def make(d):\n    os.makedirs(d)\nif is_main_process():\n    make(d)", []),
        (f"{MAKER}T()", ["makedirs-race"]),
        (f"{MAKER}if rank == 0:\n    T()", []),
        ("try:\n    os.makedirs(d)\nexcept FileExistsError:\n    pass", []),
        (f"{LOOP}s = DistributedSampler(d)", ["set-epoch-missing"]),
        (f"{LOOP}s = DistributedSampler(d, shuffle=False)", []),
        (f"{LOOP}s = DistributedSampler(d)\ns.set_epoch(1)", []),
        ("mp.spawn(work, nprocs=2)", []),
        ("if __name__ == '__main__':\n    mp.spawn(work, nprocs=2)", []),
        ("fabric.launch()", []),
        (
            "def main():\n    os.makedirs(d)\nif __name__ == '__main__':\n    main()\n    spawn(work)",
            [],
        ),
        ("class T:\n    def __init__(self):\n        self.fabric.launch()", ["launch-in-init"]),
        ("os.environ['MASTER_PORT'] = '29500'", ["port-fixed"]),
        ("os.environ.update(MASTER_PORT='29500')", ["port-fixed"]),
        ("port = 29500\nos.environ['MASTER_PORT'] = str(port)", ["port-fixed"]),
        ("os.environ.setdefault('MASTER_PORT', '29500')", []),
        ("if 'MASTER_PORT' not in os.environ:\n    os.environ['MASTER_PORT'] = '1'", []),
        (DATASET.format(draw="np.random.rand()", options=""), ["workers-unseeded"]),
        (DATASET.format(draw="np.random.rand()", options=", worker_init_fn=f"), []),
        (DATASET.format(draw="torch.rand(1)", options=""), []),
        ("state = torch.load(path, map_location='cpu')", []),
        ("if rank == 0:\n    state = torch.load(path)", []),
        (
            "dist.init_process_group('nccl')\ndist.barrier()\ntorch.cuda.set_device(0)",
            ["barrier-device"],
        ),
        ("dist.init_process_group('nccl')\ntorch.cuda.set_device(0)\ndist.barrier()", []),
        (
            "dist.init_process_group()\ndist.all_reduce(x)\ntorch.cuda.set_device(0)",
            ["barrier-device"],
        ),
    ],
)
def test_other_faults(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert ids(tmp_path, text) == expected


def test_the_evidence_is_the_line_of_the_call(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch.distributed as dist\nif rank == 0:\n    dist.barrier()  # é\n")
    (fault,) = examine(path, "")
    assert fault["evidence"] == [{"source": "train.py:3", "value": "dist.barrier()  # é"}]
    assert "`rank == 0`" in fault["message"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.py", b"def f(:", "invalid syntax"),
        ("a.py", b"\xff\xfe", "cannot be read"),
        ("a.ipynb", b"{}", "nbconvert"),
        ("absent.sbatch", None, "No such file"),
    ],
)
def test_what_cannot_be_read_is_unknown(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    (fault,) = examine(tmp_path / name, "")
    assert (fault["id"], fault["verdict"]) == ("script-unreadable", "unknown")
    assert words in fault["message"]
