"""Faults of batch scripts and programs, from their text."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision_runtime.doctor.scripts import examine, parse

HEAD = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --cpus-per-task=12\n"
# Slurm's own words.
OLD, NEW = "slurm-wlm 22.05.8", "slurm 23.11.4"


def ids(tmp_path: Path, text: str, version: str = OLD, name: str = "job.sbatch") -> list[str]:
    path = tmp_path / name
    path.write_text(text)
    return [observation["id"] for observation in examine(path, version)]


@pytest.mark.parametrize(
    ("lines", "version", "expected"),
    [
        ("srun train", OLD, ["srun-cpus"]),
        ("srun train", "", ["srun-cpus"]),
        ("srun train", NEW, []),
        ("srun train", "slurm 21.08.5", []),
        ("srun --cpus-per-task=12 train", OLD, []),
        ("srun -c 12 train", OLD, []),
        ("srun -c12 train", OLD, []),
        ("srun \\\n  --cpus-per-task=$SLURM_CPUS_PER_TASK \\\n  train", OLD, []),
        ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun train", OLD, []),
        ("srun bash -c 'train'", OLD, ["srun-cpus"]),
        ("srun nvidia-smi\nsrun -c 12 train", OLD, []),
        ("srun -l --mpi none --exclusive train -c 12", OLD, ["srun-cpus"]),
        ("srun -l --mpi none --exclusive -c 12 train", OLD, []),
        ("# srun train", OLD, []),
        ("echo srun", OLD, []),
    ],
)
def test_cpus_that_srun_forgets(
    tmp_path: Path, lines: str, version: str, expected: list[str]
) -> None:
    assert ids(tmp_path, f"{HEAD}{lines}\n", version) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("srun --gpus-per-task=1 train", ["gpus-hidden"]),
        ("#SBATCH --gpus-per-task=1\nsrun train", ["gpus-hidden"]),
        ("srun --gpu-bind=single:1 train", ["gpus-hidden"]),
        ("srun --gpus-per-task=1 --gpu-bind=none train", []),
        ("#SBATCH --gpus-per-node=8\nsrun train", []),
        ("srun --ntasks-per-node=1 --gpus-per-task=8 train", []),
        ("srun --gpus-per-task=1 --gres-flags=allow-task-sharing train", []),
        ("srun -N1 -n1 --gpus-per-task=8 train", ["gpus-hidden"]),
    ],
)
def test_gpus_that_tasks_hide_from_one_another(
    tmp_path: Path, lines: str, expected: list[str]
) -> None:
    assert ids(tmp_path, f"{HEAD}{lines}\n", NEW) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('srun bash -c "torchrun --node_rank=$SLURM_PROCID"', ["rank-expanded-early"]),
        ("srun torchrun --node_rank=$SLURM_NODEID", ["rank-expanded-early"]),
        ("srun torchrun --node_rank ${SLURM_PROCID} train", ["rank-expanded-early"]),
        ('RUN="torchrun --node_rank $SLURM_PROCID"\nsrun bash -c "$RUN"', ["rank-expanded-early"]),
        ("srun bash -c \"echo '$SLURM_PROCID'\"", ["rank-expanded-early"]),
        ('srun bash -c "torchrun \\\n --node_rank=$SLURM_PROCID"', ["rank-expanded-early"]),
        ('srun bash -c "\ntorchrun --node_rank=$SLURM_PROCID\n"', ["rank-expanded-early"]),
        ("srun bash -c 'torchrun --node_rank=$SLURM_PROCID'", []),
        ('srun bash -c "torchrun --node_rank=\\$SLURM_PROCID"', []),
        ("srun bash <<'END'\ntorchrun --node_rank=$SLURM_PROCID\nEND", []),
        ('echo "$SLURM_PROCID"\nsrun train', []),
        ("RUN='torchrun --node_rank $SLURM_PROCID'\nsrun bash -c \"$RUN\"", []),
        ("srun train --seed=$SLURM_PROCIDS", []),
        ("export RANK=$SLURM_PROCID\nsrun python train.py", ["rank-expanded-early"]),
        ("srun torchrun --rdzv-backend=c10d --node-rank=$SLURM_NODEID", []),
        ("ARGS=(\n --rdzv_backend c10d\n --node_rank $SLURM_NODEID)\nsrun x ${ARGS[@]}", []),
        ("srun torchrun --rdzv-backend=static --node-rank=$SLURM_NODEID", ["rank-expanded-early"]),
    ],
)
def test_variables_of_a_task_that_the_batch_script_expands(
    tmp_path: Path, lines: str, expected: list[str]
) -> None:
    assert ids(tmp_path, f"{HEAD}{lines}\n", NEW) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("srun torchrun --nnodes=4 train", ["node-count-fixed"]),
        ("srun torchrun --nnodes 4 train", ["node-count-fixed"]),
        ("srun torchrun --nnodes 4 \\", ["node-count-fixed"]),  # the file ends here
        ("cat <<END\ndon't\nEND\nsrun torchrun --nnodes 4 train", ["node-count-fixed"]),
        ("N=2  # don't change\nsrun torchrun --nnodes 4 train", ["node-count-fixed"]),
        ("declare -a A=(\n  --nnodes=4\n)\nsrun torchrun ${A[@]} train", ["node-count-fixed"]),
        ("NNODES=4\nsrun torchrun --nnodes=$NNODES train", ["node-count-fixed"]),
        ("srun torchrun --nnodes=2 train", []),
        ("srun torchrun --nnodes=1:4 train", []),
        ("srun torchrun --nnodes=$SLURM_NNODES train", []),
        ("torchrun --nnodes=2 train", ["node-count-fixed"]),
        ("ssh n2 torchrun --nnodes=2 train", []),
        ("RUN='torchrun --nnodes=2 train'\nsource run.sh", []),
        ("srun -n2 torchrun --nproc_per_node=4 train", ["node-count-fixed"]),
        ("srun -n2 torchrun --standalone train", ["node-count-fixed"]),
        ("srun -n2 -N1 torchrun --standalone train", []),
        ("srun -n2 torchrun $ARGS train", []),
        ('srun -n2 torchrun "${ARGS[@]}" train', []),
        ("srun torchrun --nnodes=2 --master_addr=$A train", ["rank-expanded-early"]),
        ("srun torchrun --nnodes=2 --node_rank=0 --master_addr=$A train", ["rank-expanded-early"]),
        ("srun accelerate launch --num_machines 2 --machine_rank 0 train", ["rank-expanded-early"]),
        ("srun accelerate launch --num_machines 2 train", []),
        ("srun -w n1 torchrun --nnodes=2 --node_rank=0 train", []),
        # meta-llama/llama-cookbook: multi_node.slurm. An address alone makes no world of two nodes.
        ("srun torchrun --rdzv_backend c10d --rdzv_endpoint $A:1 train", ["node-count-fixed"]),
        # torch/distributed/run.py (get_rdzv_endpoint) reads --master_addr for `static` only.
        ("srun torchrun --nnodes=2 --master_addr=$A --rdzv_backend=c10d x", ["address-local"]),
        ("srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=$A:1 x", []),
        ("srun deepspeed train.py --deepspeed", ["node-count-fixed"]),
        ("srun deepspeed --no_ssh --node_rank $SLURM_NODEID train.py", ["rank-expanded-early"]),
        ("srun python train.py --deepspeed config.json", []),
        ("srun bash -c 'conda activate deepspeed && python train.py'", []),
        ("deepspeed --hostfile hosts train.py", []),
    ],
)
def test_node_counts_that_contradict_the_job(
    tmp_path: Path, lines: str, expected: list[str]
) -> None:
    assert ids(tmp_path, f"{HEAD}{lines}\n", NEW) == expected


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        ("-N2 -n2 --gpus-per-task=8", "srun python train.py", []),
        ("-N2 -n4 --gpus-per-task=8", "srun python train.py", ["gpus-hidden"]),
        ("-N2", "MASTER_ADDR=$(scontrol show hostnames || echo localhost)", ["address-uncertain"]),
        ("-N2", "MASTER_ADDR=${MASTER_ADDR:-127.0.0.1}", ["address-uncertain"]),
        ("-N2", "srun x --rdzv_endpoint=$SLURM_LAUNCH_NODE_IPADDR:29500", ["address-uncertain"]),
        ("-N2", "ip=$(srun -N1 -n1 hostname --ip-address)", ["address-uncertain"]),
        ("-N2", "ip=$(hostname -I | awk '{print $1}')", []),
        ("-N2", "export MASTER_ADDR=localhost", ["address-local"]),
        ("-N2", "srun sh -c 'MASTER_ADDR=$(hostname) train'", ["address-local"]),
        ("-N2", "srun sh -c 'x --rdzv_id=$RANDOM train'", ["address-local"]),
        ("-N2", "srun x --rdzv_id=$RANDOM --rdzv_endpoint=$(hostname):29500", []),
        ("-N2", "MASTER_ADDR=$(scontrol show hostnames | head -n1)", []),
        ("-N1", "export MASTER_ADDR=localhost", []),
        ("--gpus-per-node=a100:4", "x --nproc_per_node=$SLURM_GPUS_PER_NODE", ["gpu-variable"]),
        ("--gpus-per-node=4", "x --nproc_per_node=$SLURM_GPUS_PER_NODE", []),
        ("--gpus-per-node=a100:4", "x --n=${SLURM_GPUS_PER_NODE##*:}", []),
        ("--gpus=a100:8", "N=$((SLURM_GPUS * 2))", ["gpu-variable"]),
        ("--gres=gpu:4", "x --nproc_per_node=$SLURM_GPUS_PER_NODE", ["gpu-variable"]),
        ("--gres=gpu:4", "x --nproc_per_node=${SLURM_GPUS_PER_NODE:-4}", []),
        ("--gres=gpu:a100:4", "torchrun --nproc_per_node=8 x", ["processes-many"]),
        ("--gres=gpu:4", "N=8\ntorchrun --nproc-per-node $N x", ["processes-many"]),
        ("--gres=gpu:8 --ntasks-per-node=8", "srun x --nproc_per_node=8", ["processes-many"]),
        ("--gres=gpu:8 -n8", "srun x --nproc_per_node=$SLURM_GPUS_ON_NODE", ["processes-many"]),
        ("--gres=gpu:8 -n16", "srun --cpu-bind=none train", []),
        ("-N1", 'srun sh -c "x --node_rank $SLURM_PROCID"', []),
        ("-N1 -n2", 'srun sh -c "x --node_rank $SLURM_PROCID"', ["rank-expanded-early"]),
        ("--nodes=$NODES", "srun train", ["sbatch-ignored"]),
        ("-N1", "date\n#SBATCH --nodes=4\n#SBATCH -n4", ["sbatch-ignored"]),
        ("-N1", "cat > job <<END\n#SBATCH --nodes=4\nEND\nsbatch job", []),
        ("--gres=gpu:8", "CUDA_VISIBLE_DEVICES=0,1 x --nproc_per_node=4", ["processes-many"]),
        ("--gpus-per-node=8", "srun torchrun --nproc_per_node=8 x", []),
    ],
)
def test_addresses_and_numbers_of_gpus(
    tmp_path: Path, options: str, line: str, expected: list[str]
) -> None:
    assert ids(tmp_path, f"#!/bin/bash\n#SBATCH {options}\n{line}\n", NEW) == expected


PROGRAM = """import torch.distributed as dist
dist.init_process_group({arguments})
{choice}
dist.barrier()
"""


@pytest.mark.parametrize(
    ("arguments", "choice", "expected"),
    [
        ("'nccl'", "", ["barrier-device"]),
        ("", "", ["barrier-device"]),
        ("backend='cpu:gloo,cuda:nccl'", "", ["barrier-device"]),
        ("'nccl', device_id=device", "", []),
        ("'nccl'", "torch.cuda.set_device(rank)", []),
        ("backend='gloo'", "", []),
    ],
)
def test_programs_with_barriers_that_choose_no_gpu(
    tmp_path: Path, arguments: str, choice: str, expected: list[str]
) -> None:
    text = PROGRAM.format(arguments=arguments, choice=choice)
    assert ids(tmp_path, text, name="train.py") == expected


def test_the_evidence_is_the_line() -> None:
    script = parse("job.sbatch", "#!/bin/sh\n\nA=1 \\\n  B=2\nsrun x\n")
    assert [(line.number, line.text.split()) for line in script.lines if line.text] == [
        (3, ["A=1", "B=2"]),
        (5, ["srun", "x"]),
    ]
    fault = script.fault("srun-cpus", "x", script.steps[0])
    assert fault["evidence"] == [{"source": "job.sbatch:5", "value": "srun x"}]
