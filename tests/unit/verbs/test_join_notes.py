"""Which commands `join` ends with."""

from __future__ import annotations

from pathlib import Path

from provision.verbs.join.join import _commands
from provision.verbs.join.join_run import JoinRun
from provision.workflow.lab_definition import Cluster, Engine, Lab, LabEnvironment, read_lab
from tests.paths import ROOT
from tests.progress import Recorder

SAMPLE = ROOT / "examples" / "lab"
IMAGE = "registry.lab/serve@sha256:" + "0" * 64


def commands(
    folder: Path, engine: Engine, environment: LabEnvironment, account: str = ""
) -> list[str]:
    cluster = Cluster(name="main", engine=engine, nodes="gpu", account=account)
    lab = Lab(
        name="lab", folder=folder, contact="me", clusters=(cluster,), environments=(environment,)
    )
    run = JoinRun(lab=lab, progress=Recorder(), act=False)
    return [command for _, command in _commands(run)]


def test_the_commands_at_the_end(tmp_path: Path) -> None:
    """Without an installed environment there is no notebook yet."""
    train = LabEnvironment(name="train")
    serve = LabEnvironment(name="serve", image=IMAGE)
    assert commands(tmp_path, "slurm", train) == [
        "provision shell train",
        "provision smoke train --on gpu --nodes 1 --quick",
        "provision launch train --on gpu -- train.py",
    ]
    assert commands(tmp_path, "slurm", train, "ml")[1:] == [
        "SBATCH_ACCOUNT=ml provision smoke train --on gpu --nodes 1 --quick",
        "provision launch train --on gpu --account ml -- train.py",
    ]
    launch = "provision launch train --on gpu --image HOST/NAME:TAG -- train.py"
    assert commands(tmp_path, "kubernetes", train)[1] == launch
    launch = f"provision launch serve --on gpu --image {IMAGE} -- train.py"
    assert commands(tmp_path, "kubernetes", serve)[1] == launch


def test_the_lock_of_the_sample_lab_is_of_its_spec() -> None:
    """As the rules of today have it; otherwise: provision lock train --relock --envs examples/lab/envs."""
    lab = read_lab(SAMPLE)
    run = JoinRun(lab=lab, progress=Recorder(), act=False)
    [environment] = lab.environments
    assert run.plan(environment).current_lock is not None
