"""What the phases of the smoke test find when ranks meet, compute and store."""

from __future__ import annotations

from .rule import FAIL, UNKNOWN, WARN, Rule

# In any phase: which rank the others were waiting for.
RUN = {
    "rank-died": Rule(
        FAIL,
        "the process of a rank ended",
        "see that rank's rank*.log; after SIGKILL, look for the OOM killer in dmesg",
    ),
    "rank-oom-killed": Rule(
        FAIL,
        "the kernel killed a rank because its cgroup, or the host, had no memory left",
        "ask the scheduler or container engine for more memory, or use fewer ranks or loader workers",
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
        "its Python stack is in rank*.last-state.json",
    ),
    "deadline-passed": Rule(
        FAIL,
        "all ranks are at the same step, which took longer than its deadline",
        "look for a slow or blocked network or disk; if it is only slow, raise the deadline with"
        " --set deadline=PHASE=S",
    ),
    "collective-skipped": Rule(
        FAIL,
        "a rank skipped a collective that the other ranks are in",
        "every rank must take the same path through the program; the stacks are in"
        " rank*.last-state.json",
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
        "if the hardware is only slow, raise the limit with --set timeout=S",
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
        breaks="rank 0 fails: EADDRINUSE",
        command="ss -ltnp",
        source="https://github.com/pytorch/pytorch/issues/73320",
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
        breaks="the backend fails at its start: no such interface",
        command="ip -br addr",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    "loopback-down": Rule(
        FAIL,
        "the loopback interface (lo) is down",
        "bring it up; a network namespace of its own starts with lo down (unshare -n, ip netns)",
        breaks="ranks of one host do not reach the store at 127.0.0.1: Network is unreachable",
        command="sudo ip link set lo up",
        source="https://man7.org/linux/man-pages/man7/network_namespaces.7.html",
    ),
    "interface-loopback": Rule(
        FAIL,
        "a host's own name resolves to a loopback address, which other hosts cannot reach",
        "correct /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface of the network between the"
        " hosts",
        breaks="Gloo gives other hosts 127.0.0.1: connectFullMesh failed",
        command="getent hosts $(hostname)",
        source="https://github.com/aws-samples/aws-do-eks/issues/69",
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
        "the bandwidth is below 80 % of what is expected, or far below what the slowest wire"
        " allows",
        "run with NCCL_DEBUG=INFO to see the algorithm and transport; look for NCCL_* variables,"
        " links that are down, PCIe ACS, and missing GPUDirect",
    ),
    "bandwidth-reduced": Rule(
        WARN,
        "the bandwidth is between 80 % and 90 % of what is expected, or below what healthy machines"
        " reach of the slowest wire",
        "measure again on an idle machine; if the bandwidth is still low, follow the advice for"
        " bandwidth-low",
    ),
    "rail-slow": Rule(
        FAIL,
        "between hosts, the ranks with one local rank exchange data at less than half of what the"
        " others do",
        "look at the network card of that number on each host (provision doctor), and at the switch"
        " that these cards share",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    "pair-slow": Rule(
        FAIL,
        "a pair of ranks exchanges data at less than half of what other pairs do",
        "look at the links of these GPUs (provision doctor: NVLink, PCIe) or, between hosts, at the"
        " network card and port of that rail",
    ),
    "transport-socket": Rule(
        FAIL,
        "NCCL uses TCP between hosts that have InfiniBand, RoCE or EFA",
        "pass /dev/infiniband into the container; install libibverbs (for EFA: aws-ofi-nccl); unset"
        " NCCL_IB_DISABLE and NCCL_NET; `NET/IB` and `NET/Plugin` in nccl*.log say what was missing",
    ),
    "p2p-absent": Rule(
        FAIL,
        "GPUs that NVLink joins exchange data through the host's memory or the network",
        "unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; give the ranks of one host one container, or"
        " shared PID and IPC namespaces; see whether all GPUs of the host are visible to each rank",
    ),
    "p2p-through-host": Rule(
        WARN,
        "GPUs at one PCIe switch exchange data through the host's memory instead of directly",
        "turn off ACS on the PCIe switches (iommu=pt); unset NCCL_P2P_DISABLE; nvidia-smi topo -m"
        " shows which GPUs have a switch in common (PIX, PXB)",
    ),
    "host-identity": Rule(
        WARN,
        "NCCL counts other hosts than there are machines",
        "unset NCCL_HOSTID, or set it differently on each machine; give the containers of one"
        " machine one host name (docker run --uts=host, hostNetwork)",
        breaks="ranks of one machine use the network instead of NVLink, or those of two try NVLink",
        command="cat /proc/sys/kernel/random/boot_id; hostname; echo $NCCL_HOSTID",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
    ),
    "mnnvl-absent": Rule(
        FAIL,
        "NCCL does not use the multi-node NVLink that joins these hosts",
        "see that nvidia-imex runs on all of them with one list of nodes (nvidia-imex-ctl -N); give"
        " containers an IMEX channel; unset NCCL_MNNVL_ENABLE",
        breaks="data between these hosts take the network, several times slower",
        command="nvidia-imex-ctl -N",
        source="https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/overview.html",
    ),
    "gdr-absent": Rule(
        WARN,
        "GPUDirect RDMA is not used: data pass through the host's memory on the way to the network",
        "load nvidia_peermem (modprobe nvidia_peermem), or use a kernel and driver with DMA-BUF; see"
        " NCCL_NET_GDR_LEVEL",
    ),
    "nvls-absent": Rule(
        WARN,
        "NCCL does not sum in the NVLink switch (NVLS), although the GPUs are at one that can",
        "check the fabric manager (systemctl status nvidia-fabricmanager); in a container, give it"
        " the IMEX channels; all 8 GPUs must be in the job",
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
    "wrong-product": Rule(
        FAIL,
        "a matrix product has wrong elements",
        "take the host out of service and test the GPU or CPU: dcgmi diag -r 3, ECC counters",
    ),
    "compute-slow": Rule(
        FAIL,
        "a GPU computes or copies at less than 40 % of its data sheet",
        "look at clocks, power limit and throttle reasons (provision doctor, nvidia-smi -q); end"
        " other processes on the GPU",
    ),
    "host-copy-slow": Rule(
        FAIL,
        "a GPU exchanges data with the host at less than half of what its PCIe link carries",
        "compare the link with what card and slot can do (nvidia-smi -q, PCI); bind the rank to the"
        " processor of the GPU's slot (numactl)",
    ),
    "compute-straggler": Rule(
        WARN,
        "a rank computes or copies much more slowly than the median of the ranks",
        "check that rank's GPU or processor for throttling (clocks, temperature), slow memory and ECC"
        " errors",
    ),
}

# How long the path of the folder for temporary files may be, in bytes: a socket's path has at most
# 107 (unix(7)), and multiprocessing adds `/pymp-XXXXXXXX/listener-XXXXXXXX`. Later
# releases of Python 3.13, and 3.14, take /tmp instead of a longer path.
TMPDIR_LENGTH = 107 - 32

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
    "tmpdir-unusable": Rule(
        FAIL,
        "DataLoader workers cannot make sockets in the folder for temporary files",
        "set TMPDIR to a local folder that can be written, with a path of at most"
        f" {TMPDIR_LENGTH} characters; in a container with a read-only root, mount one at /tmp"
        " (docker run --tmpfs /tmp)",
        breaks="a DataLoader with workers hangs: its workers cannot hand over what they read",
        command="echo ${#TMPDIR} $TMPDIR",
        source="https://github.com/KaiyangZhou/deep-person-reid/issues/499",
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
        " another folder (--set folder=DIR)",
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
        "choose a folder that all hosts share (--set folder=DIR)",
    ),
    "folder-error": Rule(
        FAIL,
        "an operation in the target folder failed with a system error",
        "check the kernel log of the named ranks' hosts for errors of that file system",
    ),
    "disk-full": Rule(
        FAIL,
        "the disk or the quota of the target folder is full",
        "delete old checkpoints, or choose another folder (--set folder=DIR)",
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
