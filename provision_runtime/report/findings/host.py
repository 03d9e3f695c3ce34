"""Faults of a host outside of its GPUs and environments: memory, disks, network, access, services."""

from __future__ import annotations

from .rule import FAIL, UNKNOWN, WARN, Rule

_KERNEL = "https://docs.kernel.org"

PROBES = {
    "probe-late": Rule(
        UNKNOWN,
        "probes gave no answer within their deadline",
        "find out what hangs: a dead file server, or a driver; --deep waits longer",
        breaks="what these probes look for is unknown",
        command="ps -eo pid,stat,wchan:32,args | grep ' D'",
        source=f"{_KERNEL}/admin-guide/sysctl/kernel.html",
    ),
    "probe-failed": Rule(
        UNKNOWN,
        "a probe could not read what it needs",
        "look at the file that the message names: its owner, mode and mount; if they are as they should"
        " be, report the message with `provision doctor --json`",
        breaks="what this probe looks for is unknown",
    ),
}
BASICS = {
    "null-device": Rule(
        FAIL,
        "/dev/null is not the device that everyone may read and write",
        "make it anew; a redirection by root after it was removed leaves a file in its place",
        breaks="programs that discard their output fail (Permission denied), or fill a disk",
        command="sudo rm -f /dev/null && sudo mknod -m 666 /dev/null c 1 3",
        source="https://man7.org/linux/man-pages/man4/null.4.html",
    ),
    "proc-missing": Rule(
        FAIL,
        "/proc is not mounted",
        "mount it; containers and chroots have one of their own",
        breaks="limits, mounts and processes cannot be read, and torch counts no CPUs",
        command="sudo mount -t proc proc /proc",
        source="https://man7.org/linux/man-pages/man5/proc.5.html",
    ),
    "user-unnamed": Rule(
        WARN,
        "this user's number has no name in the user database",
        "start the directory service (sssd, nslcd), or set USER and HOME",
        breaks="programs that ask for the user's name or home end with KeyError, ssh does not start",
        command="getent passwd $(id -u)",
        source="https://man7.org/linux/man-pages/man3/getpwuid.3.html",
    ),
}
MEMORY = {
    "oom-killed": Rule(
        WARN,
        "the kernel has killed processes of this group because memory ran out",
        "ask the scheduler or container engine for more memory, or use fewer workers",
        breaks="ranks and DataLoader workers end with SIGKILL and no message",
        command="cat /sys/fs/cgroup/memory.events",
        source=f"{_KERNEL}/admin-guide/cgroup-v2.html",
    ),
    "memory-limit": Rule(
        WARN,
        "the memory limit of this group is nearly reached",
        "end what you no longer need, or ask for more memory",
        breaks="the next large allocation ends with SIGKILL and no message",
        command="cat /sys/fs/cgroup/memory.current /sys/fs/cgroup/memory.max",
        source=f"{_KERNEL}/admin-guide/cgroup-v2.html",
    ),
}
DISKS = {
    "cache-full": Rule(
        FAIL,
        "a disk for caches, temporary files or the home is full",
        "remove what you no longer need, or set the cache's variable to another disk",
        breaks="builds, downloads and imports fail: No space left on device",
        command="du -xsh ~/.cache/* | sort -h | tail",
    ),
    "cache-space-low": Rule(
        WARN,
        "a disk for caches, temporary files or the home has little space or few inodes left",
        "remove what you no longer need, or set the cache's variable to another disk",
        breaks="a build of a CUDA environment needs several GB and tens of thousands of files",
        command="du -xsh ~/.cache/* | sort -h | tail",
    ),
    "object-store-mount": Rule(
        WARN,
        "a working folder is an object store that is mounted as a file system",
        "write checkpoints to a file system, or to the object store through its own protocol",
        breaks="a rename there copies and is not atomic: readers see half a checkpoint",
        command="findmnt -t fuse.s3fs,fuse.gcsfuse,fuse.goofys,fuse.rclone,fuse.mountpoint-s3",
        source="https://github.com/NVIDIA/nvidia-resiliency-ext/issues/365",
    ),
}
NETWORK = {
    "own-name-unresolvable": Rule(
        FAIL,
        "this host's own name does not resolve",
        "add the name and its address to /etc/hosts or DNS",
        breaks="torchrun's agent ends with gaierror, even if the endpoint is an address",
        command="getent hosts $(hostname)",
        source="https://github.com/pytorch/pytorch/issues/73656",
    ),
    "routes-duplicate": Rule(
        WARN,
        "two routes lead to the same network through different interfaces",
        "correct a netmask, or give the routes different metrics",
        breaks="hosts choose different ones: NCCL connects to addresses that nobody has",
        command="ip route",
        source="https://github.com/NVIDIA/nccl/issues/1581",
    ),
    "infiniband-unused": Rule(
        WARN,
        "this host has InfiniBand or RoCE, but this process cannot use it",
        "give the container /dev/infiniband and install libibverbs",
        breaks="NCCL uses TCP sockets, about ten times slower, without an error",
        command="docker run --device=/dev/infiniband --cap-add IPC_LOCK ...",
        source="https://github.com/NVIDIA/nccl/issues/417",
    ),
    "roce-gid": Rule(
        WARN,
        "NCCL_IB_GID_INDEX names an address that is not RoCE v2, or none",
        "unset it, or name a RoCE v2 address that holds an IPv4 address",
        breaks="connections fail: ibv_modify_qp ... timed out, or error 12",
        command="unset NCCL_IB_GID_INDEX",
        source="https://github.com/NVIDIA/nccl/issues/769",
    ),
    "cross-rail": Rule(
        WARN,
        "NCCL may send from one rail to another, but the rails have no route between them",
        "keep traffic within rails",
        breaks="collectives over many nodes fail: Connection timed out (errno 110)",
        command="export NCCL_CROSS_NIC=0",
        source="https://github.com/NVIDIA/nccl/issues/2013",
    ),
    "peermem-missing": Rule(
        WARN,
        "GPUs and network adapters cannot exchange data directly (GPUDirect RDMA)",
        "load nvidia_peermem, or use the open kernel modules with DMA-BUF",
        breaks="traffic between hosts passes through host memory, at a third of the bandwidth",
        command="sudo modprobe nvidia-peermem",
        source="https://github.com/NVIDIA/nccl/issues/1412",
    ),
}
ACCESS = {
    "ssh-key-open": Rule(
        FAIL,
        "others may read or change this user's ssh keys",
        "take the rights from group and others",
        breaks="ssh ignores the key (UNPROTECTED PRIVATE KEY FILE), or the server refuses it",
        command="chmod 700 ~/.ssh; chmod 600 ~/.ssh/id_*",
        source="https://man.openbsd.org/ssh",
    ),
    "ssh-agent-dead": Rule(
        WARN,
        "SSH_AUTH_SOCK names an agent that does not answer",
        "start an agent, or connect again with agent forwarding",
        breaks="pdsh, mpirun and git ask for passwords, or fail in BatchMode",
        command='eval "$(ssh-agent)" && ssh-add',
        source="https://man.openbsd.org/ssh-agent",
    ),
}
ACCOUNT = {
    "home-unwritable": Rule(
        FAIL,
        "the home is missing, or cannot be written",
        "have the home mounted; or set XDG_CONFIG_HOME, XDG_DATA_HOME and XDG_CACHE_HOME to folders"
        " where you may write",
        breaks="settings, caches and Jupyter's files have no place",
        command='findmnt --target "$HOME"',
    ),
    "quota-full": Rule(
        FAIL,
        "a quota of this user is used up",
        "remove what you no longer need there, or ask for more",
        breaks="writing fails: Disk quota exceeded",
        command='quota -s; du -xh -d1 "$HOME" | sort -h | tail',
        source="https://man7.org/linux/man-pages/man1/quota.1.html",
    ),
    "quota-low": Rule(
        WARN,
        "a quota of this user is nearly used up",
        "remove what you no longer need there, or ask for more",
        breaks="the next download or checkpoint fails: Disk quota exceeded",
        command='quota -s; du -xh -d1 "$HOME" | sort -h | tail',
        source="https://man7.org/linux/man-pages/man1/quota.1.html",
    ),
    "start-file": Rule(
        WARN,
        "a line of a shell start file changes which packages or libraries environments see",
        "remove the line, or put it into the scripts that need it",
        breaks="environments see other packages or libraries in this user's shells than in jobs",
        command="grep -nE 'PYTHON|LD_|conda|module' ~/.*profile ~/.*rc",
        source="https://github.com/conda/conda/issues/7173",
    ),
}
NOTEBOOKS = {
    "kernel-dangling": Rule(
        FAIL,
        "a Jupyter kernel starts a program that does not exist",
        "register the kernel again, or remove it",
        breaks="notebooks with this kernel do not start",
        command="jupyter kernelspec list",
        source="https://github.com/jupyterlab/jupyterlab/issues/12544",
    ),
    "kernel-unactivated": Rule(
        WARN,
        "a Jupyter kernel starts a conda environment without what its activation would set",
        "register the kernel again with `provision kernel add`",
        breaks="programs of the environment are not on PATH, and its variables are missing",
        command="provision kernel add NAME",
        source="https://github.com/Anaconda-Platform/nb_conda_kernels/issues/145",
    ),
    "notebook-open": Rule(
        FAIL,
        "a Jupyter server can be reached from the network without a token or password",
        "stop it; start it on 127.0.0.1 with a token, and reach it through an ssh tunnel",
        breaks="everyone in the network can run programs as this user",
        command="jupyter server list",
        source="https://jupyter-server.readthedocs.io/en/latest/operators/security.html",
    ),
}
