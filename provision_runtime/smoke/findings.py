"""Every finding that the smoke test can report: how bad it is, what it means, and what to do.

The ids are part of the report's contract: scripts and dashboards act on them. docs/findings.md is
generated from this catalog; a check compares the two.
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


# In any phase: which rank the others were waiting for.
RUN = {
    "rank-died": Rule(
        FAIL,
        "the process of a rank ended",
        "see that rank's rank*.log; after SIGKILL, look for the OOM killer in dmesg",
    ),
    "rank-stopped": Rule(
        FAIL,
        "the process of a rank is stopped (SIGSTOP, a debugger)",
        "resume or end that process",
    ),
    "rank-silent": Rule(
        FAIL,
        "a rank does not answer, and the state of its process is unknown",
        "check that rank's host: is it up, and is its job still running?",
    ),
    "link-lost": Rule(
        FAIL,
        "a rank is alive, but its host no longer reaches the others",
        "check the link, switch port and firewall of that rank's host",
    ),
    "rank-stuck": Rule(
        FAIL,
        "a rank fell behind the others and did not catch up before the deadline",
        "its Python stack is in rank*.stuck.json",
    ),
    "deadline-passed": Rule(
        FAIL,
        "all ranks are at the same step, which took longer than its deadline",
        "look for a slow or blocked network or disk; if it is only slow, raise the deadline with"
        " --deadline PHASE=S",
    ),
    "collective-skipped": Rule(
        FAIL,
        "a rank skipped a collective that the other ranks are in",
        "every rank must take the same path through the program; the stacks are in"
        " rank*.stuck.json",
    ),
    "collective-mismatch": Rule(
        FAIL,
        "ranks are in different collectives",
        "make all ranks call the same collective there, with the same shape and type",
    ),
    "backend-error": Rule(
        FAIL,
        "the backend or torch raised an error",
        "see rank*.log; with NCCL, run again with NCCL_DEBUG=INFO",
    ),
    "store-lost": Rule(
        FAIL,
        "the store of the rendezvous is gone",
        "find out why the process that hosts it (rank 0, or torchrun's agent) ended",
    ),
    "interrupted": Rule(
        FAIL,
        "the run was ended from outside (SIGTERM, SIGINT)",
        "if nobody did this on purpose, check the scheduler's time limit, and whether the node was"
        " drained",
    ),
    "time-over": Rule(
        FAIL,
        "the whole run took longer than its time limit",
        "if the hardware is only slow, raise the limit with --timeout S",
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
        "the environment is not the expected one",
        "install the locked environment again (provision env create), and start it without"
        " variables of other environments",
    ),
    "cpu-build": Rule(
        FAIL,
        "torch is a CPU build, but CUDA was expected",
        "install the locked environment again; an index that prefers CPU builds, or a solve without"
        " __cuda, installs one without a warning",
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
    ),
    "nccl-older": Rule(
        WARN,
        "the loaded NCCL is older than the one that torch was compiled with",
        "install the locked NCCL again: functions that torch calls may be missing",
    ),
    "foreign-library": Rule(
        FAIL,
        "CUDA libraries that are not the environment's are loaded",
        "unset LD_LIBRARY_PATH and LD_PRELOAD in the launcher and the kernel",
    ),
    "library-path": Rule(
        WARN,
        "LD_LIBRARY_PATH has CUDA libraries that may be loaded instead of the environment's",
        "unset LD_LIBRARY_PATH in the launcher and the kernel: torch brings its own CUDA libraries",
    ),
    "user-site": Rule(
        FAIL,
        "modules from the user's home are loaded instead of the environment's",
        "set PYTHONNOUSERSITE=1 in the launcher and the kernel, or start Python with -s",
    ),
    "user-site-on-path": Rule(
        WARN,
        "packages in the user's home may be loaded instead of the environment's",
        "set PYTHONNOUSERSITE=1 in the launcher and the kernel, or start Python with -s",
    ),
    "pythonpath": Rule(
        FAIL,
        "modules are loaded from PYTHONPATH",
        "unset PYTHONPATH in the launcher and the kernel; install what you need into the"
        " environment",
    ),
    "pythonpath-on-path": Rule(
        WARN,
        "packages in PYTHONPATH may be loaded instead of the environment's",
        "unset PYTHONPATH in the launcher and the kernel, unless this is intended",
    ),
    "gpu-lost": Rule(
        FAIL,
        "the host has a GPU that torch does not see",
        "compare with nvidia-smi: the driver may be too old for this CUDA, or the container was"
        " started without the GPU",
    ),
    "gpu-missing": Rule(
        FAIL,
        "a GPU is required, but there is none",
        "run on a host with a GPU, or without --require-gpu",
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
    ),
    "backend-unusable": Rule(
        FAIL,
        "the requested backend cannot work on this host",
        "choose another --backend, or a host with the hardware that it needs",
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
    ),
    "shm-full": Rule(
        WARN,
        "/dev/shm is nearly full",
        "delete what earlier jobs left in /dev/shm, or enlarge it",
    ),
    "cpu-quota": Rule(
        WARN,
        "the CPU quota is below os.cpu_count() and the affinity",
        "set OMP_NUM_THREADS and DataLoader's num_workers to the quota divided by the number of"
        " ranks on the host",
    ),
    "omp-threads": Rule(
        WARN,
        "OMP_NUM_THREADS does not fit the CPUs",
        "set it to the number of CPUs divided by the number of ranks on the host",
    ),
    "nofile-small": Rule(
        WARN,
        "the limit on open files is low",
        "raise it (ulimit -n, LimitNOFILE, docker --ulimit nofile=65536), or use the sharing"
        " strategy file_system",
    ),
    "memlock-small": Rule(
        WARN,
        "the limit on locked memory is too low for InfiniBand",
        "set ulimit -l unlimited in the job step itself: docker --ulimit memlock=-1,"
        " PropagateResourceLimits in Slurm",
    ),
    "iommu-on": Rule(
        WARN,
        "an IOMMU is between the GPUs: peer access over PCIe can be slow, wrong, or hang",
        "boot with iommu=pt, or turn ACS off on the PCIe switches; to see whether it causes a hang,"
        " run with NCCL_P2P_DISABLE=1",
    ),
    "nccl-setting": Rule(
        WARN,
        "a setting slows NCCL down, or hides failures",
        "unset it, unless it is intended",
    ),
}

RENDEZVOUS = {
    "rank-missing": Rule(
        FAIL,
        "a rank never joined",
        "check that all WORLD_SIZE ranks were started, and see their logs",
    ),
    "port-busy": Rule(
        FAIL,
        "another process listens on the port of the store",
        "end that process, or set MASTER_PORT to a free port",
    ),
    "master-unresolvable": Rule(
        FAIL,
        "the name in MASTER_ADDR does not resolve",
        "use a name that this host can resolve, or an IP address",
    ),
    "store-refused": Rule(
        FAIL,
        "nothing listens at MASTER_ADDR:MASTER_PORT",
        "check that rank 0 started, and that all ranks have the same MASTER_ADDR and MASTER_PORT",
    ),
    "store-filtered": Rule(
        FAIL,
        "MASTER_ADDR:MASTER_PORT does not answer at all",
        "a firewall drops the packets, or the host is down: open the port between the hosts",
    ),
    "store-unreachable": Rule(
        FAIL,
        "there is no route to MASTER_ADDR",
        "check the addresses, routes and interfaces of this host",
    ),
    "store-silent": Rule(
        FAIL,
        "something listens at MASTER_ADDR:MASTER_PORT, but it is not torch's store",
        "set MASTER_PORT to a port that only your job uses; or rank 0 has a torch release whose"
        " store this one does not understand",
    ),
    "interface-absent": Rule(
        FAIL,
        "the configured network interface does not exist",
        "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to one of the listed interfaces",
    ),
    "interface-loopback": Rule(
        FAIL,
        "a host's own name resolves to a loopback address, which other hosts cannot reach",
        "correct /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface of the network between the"
        " hosts",
    ),
    "peer-unreachable": Rule(
        FAIL,
        "a rank cannot reach another rank's host at the address that the backend will use",
        "set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME to the right interface; open the ephemeral"
        " ports between the hosts",
    ),
    "backend-other": Rule(
        FAIL,
        "the process group uses a different backend than requested",
        "use a torch that was built with that backend",
    ),
    "clock-skew": Rule(
        WARN,
        "a host's clock is more than a second off",
        "run chrony or another NTP client there; Munge, TLS and time stamps depend on the clock",
    ),
}

BARRIER = {
    "slow-rank": Rule(
        WARN,
        "one rank arrives last at nearly every barrier, and the others wait for it",
        "check that rank's host for other work on its cores, thermal throttling, or a slow link",
    ),
}

COLLECTIVES = {
    "wrong-value": Rule(
        FAIL,
        "a value changed in a rank's memory before it was sent",
        "test the memory of that rank: ECC counters, dcgmi diag -r 3",
    ),
    "wrong-result": Rule(
        FAIL,
        "a result is wrong, although every rank sent the right values",
        "a transfer or a sum went wrong: check links and ECC counters (dcgmi diag -r 3) of the"
        " named ranks",
    ),
    "bandwidth-low": Rule(
        FAIL,
        "the bandwidth is below 80 % of what is expected",
        "run with NCCL_DEBUG=INFO to see the algorithm and transport; look for NCCL_* variables,"
        " links that are down, PCIe ACS, and missing GPUDirect",
    ),
    "bandwidth-reduced": Rule(
        WARN,
        "the bandwidth is between 80 % and 90 % of what is expected",
        "measure again on an idle machine; if the bandwidth is still low, follow the advice for"
        " bandwidth-low",
    ),
    "baseline-regressed": Rule(
        WARN,
        "a collective is slower than in the baseline, by more than noise explains",
        "find out what has changed since: driver, NCCL, variables, topology, other jobs",
    ),
    "baseline-unlike": Rule(
        UNKNOWN,
        "the baseline was saved with other hardware, another environment or another number of ranks",
        "save a baseline on this machine (--baseline save)",
    ),
    "baseline-unsaved": Rule(
        FAIL,
        "the baseline could not be written",
        "choose a file in a folder that rank 0 can write to",
    ),
}

COMPUTE = {
    "compute-straggler": Rule(
        WARN,
        "a rank computes or copies much more slowly than the median of the ranks",
        "check that rank's host for throttling (clocks, temperature), a CPU quota, other processes"
        " on its cores, and ECC errors",
    ),
}

DDP = {
    "parameter-mismatch": Rule(
        FAIL,
        "ranks built different models",
        "build the same model on every rank (same config, same code, same seed): otherwise DDP"
        " hangs, or adds up tensors that do not belong together",
    ),
    "gradient-mismatch": Rule(
        FAIL,
        "the gradients differ from those of a single process",
        "a sum is wrong, or a kernel is nondeterministic: see the phase collectives, and check ECC"
        " counters",
    ),
    "not-deterministic": Rule(
        FAIL,
        "on the CPU, a second run with the same seed gives different losses",
        "test the memory and CPU of that rank's host; look for libraries that replace torch's own"
        " (LD_PRELOAD, a foreign MKL)",
    ),
    "sampler-wrong": Rule(
        FAIL,
        "DistributedSampler skips samples, or gives the same samples to several ranks",
        "install the locked torch again: its sampler is not the released one",
    ),
    "dataloader-failed": Rule(
        FAIL,
        "a DataLoader with workers does not deliver its samples",
        "after a bus error or 'shared memory', enlarge /dev/shm (--shm-size, --ipc=host); otherwise"
        " see rank*.log",
    ),
}

FILESYSTEM = {
    "folder-unwritable": Rule(
        FAIL,
        "the target folder is not writable",
        "check the folder's owner, mode and mount options (ro) on the named ranks' hosts, or choose"
        " another folder (--folder)",
    ),
    "folder-unmounted": Rule(
        FAIL,
        "the target folder is not mounted on a rank's host, or it disappeared",
        "mount it there (findmnt lists the mounts), and check that host's kernel log for a lost"
        " file server",
    ),
    "folder-not-shared": Rule(
        FAIL,
        "files that one rank writes into the target folder do not appear on another",
        "choose a folder that all hosts share (--folder)",
    ),
    "folder-error": Rule(
        FAIL,
        "an operation in the target folder failed with a system error",
        "check the kernel log of the named ranks' hosts for errors of that file system",
    ),
    "disk-full": Rule(
        FAIL,
        "the disk or the quota of the target folder is full",
        "delete old checkpoints, or choose another folder (--folder)",
    ),
    "rename-not-atomic": Rule(
        FAIL,
        "a reader saw half a file, or no file, while a rename replaced it",
        "never replace a file there that others read; write a new file, and announce its name when"
        " it is complete",
    ),
    "makedirs-unsafe": Rule(
        WARN,
        "makedirs with exist_ok fails when several ranks create the same folder",
        "let one rank create folders while the others wait (fs.make_directory)",
    ),
    "locks-unsupported": Rule(
        WARN,
        "file locks do not work between ranks, or do not exclude other ranks",
        "mount with locks (without nolock or local_lock; on Lustre: with flock), or put lock files"
        " elsewhere; hard links can serve as locks",
    ),
    "folder-slow": Rule(
        WARN,
        "writing or finding a small file in the target folder takes seconds",
        "find out what else uses that file system or its network; expect slow checkpoints",
    ),
    "space-low": Rule(
        WARN,
        "the target folder is almost out of space or inodes",
        "free enough space for at least two checkpoints",
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
        "a checkpoint does not contain the bytes that were written",
        "the storage or its network changed them: check its error counters",
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
CATALOG = {finding_id: rule for rules in BY_PHASE.values() for finding_id, rule in rules.items()}
