"""What is wrong with an environment, or with what surrounds it on a host: found by the smoke test's
phase facts, and by `doctor` without starting ranks."""

from __future__ import annotations

from .rule import FAIL, WARN, Rule

FACTS = {
    "torch-broken": Rule(
        FAIL,
        "torch is missing or cannot be imported",
        "install the locked environment again (provision env create)",
        breaks="every program that imports torch fails",
        command="python -X faulthandler -c 'import torch'",
        source="https://github.com/pytorch/pytorch/issues/119932",
    ),
    "environment-unlike": Rule(
        FAIL,
        "the environment is not the expected one",
        "install the locked environment again (provision env create), and start it without"
        " variables of other environments",
    ),
    "cpu-build": Rule(
        FAIL,
        "torch is a CPU build, but CUDA was expected",
        "install the locked environment again; an index that prefers CPU builds, or a solve without"
        " __cuda, installs one without a warning",
        breaks="torch.cuda.is_available() is False: jobs fail, or run on the CPU",
        command="python -c 'import torch; print(torch.__version__, torch.version.cuda)'",
        source="https://github.com/conda/conda-lock/issues/85",
    ),
    "environment-drift": Rule(
        FAIL,
        "ranks have different environments",
        "install the same lock or image on every host",
    ),
    "nccl-shadowed": Rule(
        FAIL,
        "a libnccl that is not the environment's is loaded",
        "unset LD_LIBRARY_PATH and LD_PRELOAD in the launcher and the kernel; load nothing that"
        " brings its own NCCL before torch",
        breaks="another NCCL than tested runs: undefined symbols, hangs, other speeds",
        command="unset LD_LIBRARY_PATH LD_PRELOAD",
        source="https://github.com/NVIDIA/nccl/issues/1180",
    ),
    "nccl-older": Rule(
        WARN,
        "the loaded NCCL is older than the one that torch was compiled with",
        "install the locked NCCL again: functions that torch calls may be missing",
        breaks="importing torch fails (undefined symbol: nccl...), or a collective does",
        command="pip list | grep nvidia-nccl",
        source="https://github.com/pytorch/pytorch/issues/119932",
    ),
    "foreign-library": Rule(
        FAIL,
        "CUDA libraries that are not the environment's are loaded",
        "unset LD_LIBRARY_PATH and LD_PRELOAD in the launcher and the kernel",
        breaks="cuDNN or cuBLAS versions mismatch at the first call",
        command="unset LD_LIBRARY_PATH LD_PRELOAD",
        source="https://github.com/pytorch/pytorch/issues/188892",
    ),
    "library-path": Rule(
        WARN,
        "LD_LIBRARY_PATH has CUDA libraries that may be loaded instead of the environment's",
        "unset LD_LIBRARY_PATH in the launcher and the kernel: torch brings its own CUDA libraries",
        breaks="cuDNN or NCCL versions mismatch at the first call",
        command="unset LD_LIBRARY_PATH",
        source="https://github.com/pytorch/pytorch/issues/80637",
    ),
    "user-site": Rule(
        FAIL,
        "modules from the user's home are loaded instead of the environment's",
        "set PYTHONNOUSERSITE=1 in the launcher and the kernel, or start Python with -s",
        breaks="other versions than locked are imported",
        command="export PYTHONNOUSERSITE=1",
        source="https://github.com/conda/conda/issues/7173",
    ),
    "user-site-on-path": Rule(
        WARN,
        "packages in the user's home may be loaded instead of the environment's",
        "set PYTHONNOUSERSITE=1 in the launcher and the kernel, or start Python with -s",
        breaks="a later `pip install --user` changes what is imported",
        command="export PYTHONNOUSERSITE=1",
        source="https://github.com/conda/conda/issues/7173",
    ),
    "pythonpath": Rule(
        FAIL,
        "modules are loaded from PYTHONPATH",
        "unset PYTHONPATH in the launcher and the kernel; install what you need into the"
        " environment",
        breaks="other versions than locked are imported",
        command="unset PYTHONPATH",
        source="https://github.com/conda/conda/issues/7173",
    ),
    "pythonpath-on-path": Rule(
        WARN,
        "packages in PYTHONPATH may be loaded instead of the environment's",
        "unset PYTHONPATH in the launcher and the kernel, unless this is intended",
        breaks="other versions than locked may be imported",
        command="unset PYTHONPATH",
        source="https://github.com/conda/conda/issues/7173",
    ),
    "gpu-lost": Rule(
        FAIL,
        "the host has a GPU that torch does not see",
        "compare with nvidia-smi: the driver may be too old for this CUDA, or the container was"
        " started without the GPU",
        breaks="torch.cuda.is_available() is False: jobs fail, or run on the CPU",
        command="nvidia-smi",
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    ),
    "gpu-missing": Rule(
        FAIL,
        "a GPU is required, but there is none",
        "run on a host with a GPU, or without --set require_gpu=true",
    ),
    "gpu-shared": Rule(
        FAIL,
        "several ranks use the same GPU",
        "give every rank its own GPU: check CUDA_VISIBLE_DEVICES and the launcher's GPU binding",
    ),
    "gpu-mixed": Rule(
        WARN,
        "ranks have different GPUs",
        "the slowest GPU sets the pace: request a single GPU model",
    ),
    "arch-unsupported": Rule(
        FAIL,
        "torch has no code for this GPU",
        "use a newer torch or CUDA: `provision matrix --gpu NAME` lists the builds that run on it",
        breaks="every kernel fails: no kernel image is available for execution",
        command="python -c 'import torch; print(torch.cuda.get_arch_list())'",
        source="https://developer.nvidia.com/cuda-gpus",
    ),
    "backend-unusable": Rule(
        FAIL,
        "the requested backend cannot work on this host",
        "choose another backend (--set backend=NAME), or a host with the hardware that it needs",
    ),
    "world-size": Rule(
        FAIL,
        "several tasks were started, but they do not form one world",
        "give every task RANK, WORLD_SIZE and MASTER_ADDR, or start one torchrun per host",
    ),
    "shm-small": Rule(
        FAIL,
        "/dev/shm is too small for the ranks that share it",
        "docker run --shm-size=1g or --ipc=host; in Kubernetes, mount an emptyDir with"
        " medium: Memory on /dev/shm",
        breaks="DataLoader workers end with a bus error, NCCL fails or hangs at its start",
        command="df -h /dev/shm",
        source="https://github.com/pytorch/pytorch/issues/5040",
    ),
    "shm-limited": Rule(
        WARN,
        "/dev/shm is enough for one rank, but small for a DataLoader with workers",
        "docker run --shm-size=1g or --ipc=host, if the loader has workers and large samples",
        breaks="DataLoader workers end with a bus error once their samples do not fit",
        command="df -h /dev/shm",
        source="https://github.com/pytorch/pytorch/issues/5040",
    ),
    "shm-full": Rule(
        WARN,
        "/dev/shm is nearly full",
        "delete what earlier jobs left in /dev/shm, or enlarge it",
        breaks="DataLoader workers end with a bus error, NCCL fails or hangs at its start",
        command="ls -lhS /dev/shm | head",
        source="https://github.com/mosaicml/streaming/issues/493",
    ),
    "cpu-quota": Rule(
        WARN,
        "the CPU quota is below os.cpu_count() and the affinity",
        "set OMP_NUM_THREADS and DataLoader's num_workers to the quota divided by the number of"
        " ranks on the host",
        breaks="DataLoader workers and OpenMP threads are throttled, and ranks wait",
        command="export OMP_NUM_THREADS=N",
        source="https://github.com/Unity-Technologies/ml-agents/issues/4471",
    ),
    "omp-threads": Rule(
        WARN,
        "OMP_NUM_THREADS does not fit the CPUs",
        "set it to the number of CPUs divided by the number of ranks on the host",
        breaks="threads wait for one another, or too few work",
        command="export OMP_NUM_THREADS=N",
        source="https://github.com/NVIDIA/enroot/issues/185",
    ),
    "nofile-small": Rule(
        WARN,
        "the limit on open files is low",
        "raise it (ulimit -n, LimitNOFILE, docker --ulimit nofile=65536), or use the sharing"
        " strategy file_system",
        breaks="DataLoader fails: received 0 items of ancdata, or Too many open files",
        command="ulimit -n $(ulimit -Hn)",
        source="https://github.com/InternLM/xtuner/issues/1859",
    ),
    "memlock-small": Rule(
        WARN,
        "the limit on locked memory is too low for InfiniBand",
        "set ulimit -l unlimited in the job step itself: docker --ulimit memlock=-1,"
        " PropagateResourceLimits in Slurm",
        breaks="NCCL fails: ibv_reg_mr or ibv_create_cq, Cannot allocate memory",
        command="ulimit -l unlimited",
        source="https://github.com/NVIDIA/nccl-tests/issues/206",
    ),
    "iommu-on": Rule(
        WARN,
        "an IOMMU is between the GPUs: peer access over PCIe can be slow, wrong, or hang",
        "boot with iommu=pt, or turn ACS off on the PCIe switches; to see whether it causes a hang,"
        " run with NCCL_P2P_DISABLE=1",
        breaks="the first collective hangs, or copies between GPUs give wrong values",
        command="sudo lspci -vvv | grep ACSCtl",
        source="https://github.com/NVIDIA/nccl/issues/631",
    ),
    "nccl-setting-mistyped": Rule(
        WARN,
        "NCCL does not read a variable, which is mistyped or of another release",
        "correct its name, or remove it",
        breaks="the setting has no effect, and nothing says so",
        command="env | grep NCCL",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    "nccl-setting": Rule(
        WARN,
        "a setting slows NCCL down, or hides failures",
        "unset it, unless it is intended",
        breaks="bandwidth is lost, or failures are hidden, without an error",
        command="env | grep NCCL",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
}
