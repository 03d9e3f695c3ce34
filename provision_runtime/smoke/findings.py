"""Every finding that the smoke test can report: what it means, how bad it is, and what to do about it.

The ids are part of the report's contract: scripts and dashboards act on them. docs/findings.md shows this table; a test
compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..report import model

FAIL, WARN, UNKNOWN = model.FAIL, model.WARN, model.UNKNOWN


@dataclass(frozen=True)
class Rule:
    verdict: str
    meaning: str
    advice: str


# In any phase: who kept the others from going on.
RUN = {
    "rank-died": Rule(
        FAIL,
        "the process of a rank ended",
        "see rank*.log of that rank; for SIGKILL ask dmesg for the OOM killer",
    ),
    "rank-stopped": Rule(
        FAIL,
        "the process of a rank is stopped (SIGSTOP, a debugger)",
        "continue or end that process",
    ),
    "rank-silent": Rule(
        FAIL,
        "a rank does not answer, and nothing is known of its process",
        "look at that rank's host: is it up, is its job still running?",
    ),
    "link-lost": Rule(
        FAIL,
        "a rank lives, but its host no longer reaches the others",
        "check link, switch port and firewall of that rank's host",
    ),
    "rank-stuck": Rule(
        FAIL,
        "a rank did not come as far as the others before the deadline",
        "its Python stack is in rank*.stuck.json",
    ),
    "deadline-passed": Rule(
        FAIL,
        "all ranks are in one place, and it took longer than its deadline",
        "a slow or blocked network or disk; raise it with --deadline PHASE=S if it is only slow",
    ),
    "collective-skipped": Rule(
        FAIL,
        "a rank left out a collective that the others are in",
        "every rank must take the same path through the program; the stacks are in rank*.stuck.json",
    ),
    "collective-mismatch": Rule(
        FAIL,
        "ranks are in different collectives",
        "make all ranks call the same collective there, with the same shape and type",
    ),
    "backend-error": Rule(
        FAIL, "the backend or torch raised an error", "see rank*.log; with NCCL set NCCL_DEBUG=INFO"
    ),
    "store-lost": Rule(
        FAIL,
        "the store of the rendezvous is gone",
        "see why the process that hosts it (rank 0, or torchrun's agent) ended",
    ),
    "interrupted": Rule(
        FAIL,
        "the run was told to end (SIGTERM, SIGINT)",
        "if nobody meant to: a scheduler's time limit or a node that drains",
    ),
    "time-over": Rule(
        FAIL,
        "the time of the whole run is over",
        "raise it with --timeout S if the hardware is only slow",
    ),
}

FACTS = {
    "torch-broken": Rule(
        FAIL,
        "torch is missing or cannot be imported",
        "install the locked environment again (provision env create)",
    ),
    "environment-unlike": Rule(
        FAIL,
        "the environment is not what was promised",
        "install the locked environment again (provision env create), and start it without foreign variables",
    ),
    "cpu-build": Rule(
        FAIL,
        "torch is a CPU build where CUDA was promised",
        "install the locked environment again; an index that prefers CPU builds, or a solve without __cuda, gives one silently",
    ),
    "environment-drift": Rule(
        FAIL, "ranks have different environments", "give every host the same lock or image"
    ),
    "nccl-shadowed": Rule(
        FAIL,
        "another libnccl than the environment's is loaded",
        "unset LD_LIBRARY_PATH and LD_PRELOAD in the launcher and the kernel; load nothing with NCCL before torch",
    ),
    "nccl-older": Rule(
        WARN,
        "the NCCL that is loaded is older than the one torch was compiled with",
        "install the NCCL of the lock again: functions that torch calls may be missing",
    ),
    "foreign-library": Rule(
        FAIL,
        "libraries of CUDA are loaded that are not the environment's",
        "unset LD_LIBRARY_PATH and LD_PRELOAD in the launcher and the kernel",
    ),
    "library-path": Rule(
        WARN,
        "LD_LIBRARY_PATH offers libraries of CUDA that can come before the environment's",
        "unset LD_LIBRARY_PATH in the launcher and the kernel: torch brings its own libraries of CUDA",
    ),
    "user-site": Rule(
        FAIL,
        "modules of the user's home are loaded in place of the environment's",
        "set PYTHONNOUSERSITE=1 in the launcher and the kernel, or start Python with -s",
    ),
    "user-site-on-path": Rule(
        WARN,
        "packages of the user's home can be loaded in place of the environment's",
        "set PYTHONNOUSERSITE=1 in the launcher and the kernel, or start Python with -s",
    ),
    "pythonpath": Rule(
        FAIL,
        "modules are loaded from PYTHONPATH",
        "unset PYTHONPATH in the launcher and the kernel; install what is needed into the environment",
    ),
    "pythonpath-on-path": Rule(
        WARN,
        "packages in PYTHONPATH can be loaded in place of the environment's",
        "unset PYTHONPATH in the launcher and the kernel, unless it is meant",
    ),
    "gpu-lost": Rule(
        FAIL,
        "the host has a GPU that torch does not see",
        "the driver may be too old for this CUDA, or the container was started without the GPU: compare with nvidia-smi",
    ),
    "gpu-missing": Rule(
        FAIL, "a GPU is required and there is none", "run where a GPU is, or without --require-gpu"
    ),
    "gpu-shared": Rule(
        FAIL,
        "ranks are on one GPU",
        "give every rank its own GPU: check CUDA_VISIBLE_DEVICES and the launcher's GPU binding",
    ),
    "gpu-mixed": Rule(
        WARN, "ranks have different GPUs", "the slowest sets the pace: ask for one model of GPU"
    ),
    "arch-unsupported": Rule(
        FAIL,
        "torch holds no code for this GPU",
        "use a build for it: sm_90 needs torch 2.0.1 with CUDA 11.8, sm_100 and sm_120 need 2.7 with CUDA 12.8",
    ),
    "backend-unusable": Rule(
        FAIL,
        "the backend that was asked for cannot work here",
        "choose another --backend, or run where its hardware is",
    ),
    "world-size": Rule(
        FAIL,
        "several tasks were started, and each is a world of its own",
        "give every task RANK, WORLD_SIZE and MASTER_ADDR, or start one torchrun per host",
    ),
    "shm-small": Rule(
        FAIL,
        "/dev/shm is too small for the ranks that share it",
        "docker run --shm-size=1g or --ipc=host; in Kubernetes an emptyDir with medium: Memory on /dev/shm",
    ),
    "shm-full": Rule(
        WARN,
        "/dev/shm is nearly full",
        "remove what ended jobs left in /dev/shm, or give it more room",
    ),
    "cpu-quota": Rule(
        WARN,
        "the CPU quota is below what os.cpu_count() and the affinity say",
        "set OMP_NUM_THREADS and DataLoader's num_workers by the quota, divided by the ranks of the host",
    ),
    "omp-threads": Rule(
        WARN,
        "OMP_NUM_THREADS does not suit the CPUs",
        "set it to the CPUs divided by the ranks of the host",
    ),
    "nofile-small": Rule(
        WARN,
        "few files may be open",
        "raise it (ulimit -n, LimitNOFILE, docker --ulimit nofile=65536), or use the sharing strategy file_system",
    ),
    "memlock-small": Rule(
        WARN,
        "little memory may be locked, and InfiniBand needs it",
        "ulimit -l unlimited in the job step itself: docker --ulimit memlock=-1, PropagateResourceLimits in Slurm",
    ),
    "iommu-on": Rule(
        WARN,
        "an IOMMU stands between the GPUs: peer access over PCIe can be slow, wrong, or hang",
        "boot with iommu=pt, or turn ACS off on the PCIe switches; NCCL_P2P_DISABLE=1 tells whether this is the cause of a hang",
    ),
    "nccl-setting": Rule(
        WARN, "a setting makes NCCL slow, or failures silent", "unset it, unless it is meant"
    ),
}

RENDEZVOUS = {
    "rank-missing": Rule(
        FAIL,
        "a rank never came",
        "check that as many ranks were started as WORLD_SIZE says, and their logs",
    ),
    "port-busy": Rule(
        FAIL,
        "another process listens on the port of the store",
        "end that process, or set MASTER_PORT to a free port",
    ),
    "master-unresolvable": Rule(
        FAIL,
        "the name in MASTER_ADDR does not resolve",
        "use a name that this host can resolve, or an address",
    ),
    "store-refused": Rule(
        FAIL,
        "nothing listens at MASTER_ADDR:MASTER_PORT",
        "see whether rank 0 started, and that all ranks have the same MASTER_ADDR and MASTER_PORT",
    ),
    "store-filtered": Rule(
        FAIL,
        "MASTER_ADDR:MASTER_PORT does not answer at all",
        "a firewall drops it, or the host is down: open the port between the hosts",
    ),
    "store-unreachable": Rule(
        FAIL,
        "there is no route to MASTER_ADDR",
        "check addresses, routes and interfaces of this host",
    ),
    "store-silent": Rule(
        FAIL,
        "something listens at MASTER_ADDR:MASTER_PORT, but it is no store of torch",
        "set MASTER_PORT to a port of your own; or rank 0 has another torch, whose store this one does not understand",
    ),
    "interface-absent": Rule(
        FAIL,
        "the interface that was asked for does not exist",
        "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to one that is listed",
    ),
    "interface-loopback": Rule(
        FAIL,
        "a host's own name resolves to a loopback address, which other hosts cannot reach",
        "correct /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface of the network between the hosts",
    ),
    "peer-unreachable": Rule(
        FAIL,
        "a rank cannot reach another rank's host at the address that the backend will use",
        "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to the right interface; open the ephemeral ports between the hosts",
    ),
    "backend-other": Rule(
        FAIL,
        "the process group runs on another backend than was asked for",
        "use a torch that was built with the backend",
    ),
    "clock-skew": Rule(
        WARN,
        "a host's clock is more than a second off",
        "run chrony or another NTP client there; Munge, TLS and time stamps depend on it",
    ),
}

BARRIER = {
    "slow-rank": Rule(
        WARN,
        "one rank comes last to nearly every barrier, and the others wait for it",
        "look for what else runs on that rank's cores, for thermal throttling, or a slow link",
    ),
}

COLLECTIVES = {
    "wrong-value": Rule(
        FAIL,
        "an element changed in a rank's memory before it was sent",
        "test the memory of that rank: ECC counters, dcgmi diag -r 3",
    ),
    "wrong-result": Rule(
        FAIL,
        "a result is not what it must be, though every rank sent what it should",
        "a transfer or a sum was wrong: check links and ECC counters (dcgmi diag -r 3) of the named ranks",
    ),
    "bandwidth-low": Rule(
        FAIL,
        "less than 0.8 of the bandwidth that is expected here",
        "run with NCCL_DEBUG=INFO: which algorithm and transport? Look for NCCL_* variables, links down, PCIe ACS, no GPUDirect",
    ),
    "bandwidth-reduced": Rule(
        WARN,
        "between 0.8 and 0.9 of the bandwidth that is expected here",
        "measure again on an idle machine; then as for bandwidth-low",
    ),
    "baseline-regressed": Rule(
        WARN,
        "slower than the baseline by more than is noise",
        "what changed since: driver, NCCL, variables, topology, other jobs?",
    ),
    "baseline-unlike": Rule(
        UNKNOWN,
        "the baseline is of another machine, environment or number of ranks",
        "save a baseline here: --baseline save",
    ),
    "baseline-unsaved": Rule(
        FAIL,
        "the baseline could not be written",
        "name a file in a folder that rank 0 may write to",
    ),
}

COMPUTE = {
    "compute-straggler": Rule(
        WARN,
        "a rank computes or copies much more slowly than the median of the ranks",
        "look for throttling (clocks, temperature), a CPU quota, other processes on its cores, ECC errors",
    ),
}

DDP = {
    "parameter-mismatch": Rule(
        FAIL,
        "ranks built different models",
        "build the same model on every rank (same config, same code, same seed): DDP would hang or add up unlike tensors",
    ),
    "gradient-mismatch": Rule(
        FAIL,
        "gradients are not the single-process ones",
        "a wrong sum or a nondeterministic kernel: see the phase collectives, and ECC counters",
    ),
    "not-deterministic": Rule(
        FAIL,
        "the same seed gives other losses the second time, on the CPU",
        "test the memory and CPU of that rank's host; look for libraries that replace torch's own (LD_PRELOAD, a foreign MKL)",
    ),
    "sampler-wrong": Rule(
        FAIL,
        "DistributedSampler leaves out samples or gives them twice",
        "install the locked torch again: its sampler is not the released one",
    ),
    "dataloader-failed": Rule(
        FAIL,
        "a DataLoader with workers does not deliver",
        "after a bus error or 'shared memory' enlarge /dev/shm (--shm-size, --ipc=host); else see rank*.log",
    ),
}

FILESYSTEM = {
    "folder-unwritable": Rule(
        FAIL,
        "the target folder cannot be written",
        "check owner, mode and mount (ro) of the folder on the named ranks' hosts, or name another (--checkpoint-dir)",
    ),
    "folder-unmounted": Rule(
        FAIL,
        "the target folder is not mounted on a rank, or it vanished",
        "mount it there (findmnt shows what is), and see the kernel log of that host for the server that was lost",
    ),
    "folder-not-shared": Rule(
        FAIL,
        "what one rank writes into the target folder does not appear on another",
        "name a folder that all hosts share (--checkpoint-dir)",
    ),
    "folder-error": Rule(
        FAIL,
        "the target folder fails with an error",
        "see the kernel log of the named ranks' hosts for that file system",
    ),
    "disk-full": Rule(
        FAIL,
        "the disk or the quota of the target folder is full",
        "delete old checkpoints, or name another folder (--checkpoint-dir)",
    ),
    "rename-not-atomic": Rule(
        FAIL,
        "a reader saw half of a file that was replaced by a rename, or none",
        "never replace a file that others read there; write under a new name and tell the readers when it is whole",
    ),
    "makedirs-unsafe": Rule(
        WARN,
        "makedirs with exist_ok fails when several ranks make one folder",
        "let one rank make folders and the others wait (fs.make_directory)",
    ),
    "locks-unsupported": Rule(
        WARN,
        "file locks do not work between ranks, or protect nothing",
        "mount with locks (not nolock or local_lock; Lustre: flock), or keep lock files elsewhere; hard links can serve as locks",
    ),
    "folder-slow": Rule(
        WARN,
        "the target folder takes seconds for a small file",
        "see what else uses that file system or its network; checkpoints will be slow",
    ),
    "space-low": Rule(
        WARN,
        "hardly any space or inodes are left in the target folder",
        "make room for two checkpoints at least",
    ),
}

CHECKPOINT = {
    "checkpoint-failed": Rule(
        FAIL,
        "a checkpoint could not be written or read",
        "see the message, and rank*.log of the named ranks",
    ),
    "checkpoint-damaged": Rule(
        FAIL,
        "a checkpoint is not what was written",
        "the storage or its network changed bytes: check its error counters",
    ),
}

BY_PHASE = {
    "any": RUN,
    "facts": FACTS,
    "rendezvous": RENDEZVOUS,
    "barrier": BARRIER,
    "collectives": COLLECTIVES,
    "compute": COMPUTE,
    "ddp": DDP,
    "filesystem": FILESYSTEM,
    "checkpoint": CHECKPOINT,
}
CATALOG = {name: rule for rules in BY_PHASE.values() for name, rule in rules.items()}
