"""Faults of GPUs, their links and their driver, as the driver reports them."""

from __future__ import annotations

from .rule import FAIL, WARN, Rule

_NVIDIA = "https://docs.nvidia.com"
_MEMORY = f"{_NVIDIA}/deploy/a100-gpu-mem-error-mgmt/index.html"
_RMA = f"{_NVIDIA}/deploy/a100-gpu-mem-error-mgmt/rma-policy-thresholds-for-row-remapping.html"
_CLOCKS = f"{_NVIDIA}/deploy/nvml-api/group__nvmlClocksEventReasons.html"
_FABRIC = f"{_NVIDIA}/datacenter/tesla/fabric-manager-user-guide"

GPU = {
    "driver-old": Rule(
        FAIL,
        "the driver is too old for the CUDA of the environment",
        "update the driver, or build the environment for an older CUDA",
        breaks="torch.cuda.is_available() is False, or CUDA reports an insufficient driver",
        command="provision matrix --gpu NAME",
        source=f"{_NVIDIA}/cuda/cuda-toolkit-release-notes/index.html",
    ),
    "driver-mismatch": Rule(
        FAIL,
        "the driver's libraries and the loaded kernel module have different versions",
        "reboot, or unload the NVIDIA modules and load those that are installed",
        breaks="nvidia-smi and every CUDA program fail until then",
        command="cat /proc/driver/nvidia/version; modinfo -F version nvidia",
        source="https://github.com/NVIDIA/nvidia-docker/issues/1515",
    ),
    "gpu-revoked": Rule(
        FAIL,
        "this container may no longer open its GPUs",
        "start the container again; to prevent it, give the devices through CDI or create the"
        " /dev/char links with a udev rule",
        breaks="programs that run keep their GPUs; new ones get `Unknown Error` from NVML",
        command="sudo nvidia-ctk system create-dev-char-symlinks --create-all",
        source="https://github.com/NVIDIA/nvidia-container-toolkit/issues/48",
    ),
    "gpu-off-bus": Rule(
        FAIL,
        "the driver shows fewer GPUs than the PCI bus has",
        "reboot the host; if the GPU is missing again, reseat or replace it",
        breaks="jobs that ask for all GPUs fail, or run with fewer",
        command="sudo dmesg | grep -i xid",
        source=f"{_NVIDIA}/deploy/xid-errors/index.html",
    ),
    "gpu-xid": Rule(
        FAIL,
        "the driver has reported a fault of the hardware in the kernel log",
        "look the number up in the catalog of Xid errors; drain the node if it comes again",
        breaks="the programs on that GPU ended with a CUDA error, or will",
        command="sudo dmesg -T | grep -i xid",
        source=f"{_NVIDIA}/deploy/xid-errors/analyzing-xid-catalog.html",
    ),
    "gpu-memory-errors": Rule(
        FAIL,
        "a GPU has met uncorrectable memory errors since the driver was loaded",
        "end its jobs and reset the GPU; if the count grows again, run NVIDIA's field diagnostic",
        breaks="the program that used this memory was ended; results before it may be wrong",
        command="nvidia-smi -q -d ECC",
        source=_MEMORY,
    ),
    "gpu-memory-pending": Rule(
        WARN,
        "a GPU waits for a reset to replace bad memory",
        "drain the node, and reset the GPU when no program uses it",
        breaks="the bad memory stays in use until then",
        command="nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT",
        source=_MEMORY,
    ),
    "gpu-memory-worn": Rule(
        FAIL,
        "a GPU can no longer replace bad memory",
        "run NVIDIA's field diagnostic: this is the criterion for a replacement (RMA)",
        breaks="memory errors will end programs again and again",
        command="nvidia-smi -q -d ROW_REMAPPER,ECC",
        source=_RMA,
    ),
    "gpu-ecc-off": Rule(
        WARN,
        "error correction of the GPU memory is switched off, or will be after a reset",
        "switch it on and reset the GPU",
        breaks="bit flips change results without any error",
        command="sudo nvidia-smi -e 1",
        source=_MEMORY,
    ),
    "gpu-throttled": Rule(
        WARN,
        "the hardware has lowered a GPU's clocks: heat, or a power brake",
        "check fans, air flow and power supplies; hw_slowdown halves the clocks or worse",
        breaks="this GPU is slow, and all ranks wait for it",
        command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
        source=_CLOCKS,
    ),
    "gpu-clocks-limited": Rule(
        WARN,
        "somebody has set a GPU's application clocks below their default",
        "set them back",
        breaks="this GPU is slow, and all ranks wait for it",
        command="sudo nvidia-smi -rac",
        source=_CLOCKS,
    ),
    "gpu-power-limited": Rule(
        WARN,
        "somebody has set a GPU's power limit below its default",
        "set it back, unless the rack needs it",
        breaks="this GPU lowers its clocks under load, and all ranks wait for it",
        command="sudo nvidia-smi -pl WATTS",
        source=_CLOCKS,
    ),
    "pcie-reduced": Rule(
        WARN,
        "a GPU's PCIe link is narrower or slower than the GPU and its slot allow",
        "reseat the GPU or riser; check the slot's setting in the firmware",
        breaks="copies to and from the host are slow, and so are collectives without NVLink",
        command="nvidia-smi --query-gpu=pci.bus_id,pcie.link.width.current,pcie.link.width.max,"
        "pcie.link.gen.gpucurrent,pcie.link.gen.max --format=csv",
        source=f"{_NVIDIA}/deploy/gpu-debug-guidelines/index.html",
    ),
    "nvlink-down": Rule(
        FAIL,
        "an NVLink is inactive that other GPUs of this model have",
        "reset the GPUs; if the link stays down, check the baseboard or bridge",
        breaks="collectives take another way, several times slower, or NCCL fails to start",
        command="nvidia-smi nvlink --status",
        source=f"{_NVIDIA}/deploy/gpu-debug-guidelines/index.html",
    ),
    "nvlink-errors": Rule(
        WARN,
        "an NVLink has replayed, recovered or corrupted transfers",
        "watch whether the count grows under load; then reset the GPUs or replace the bridge",
        breaks="collectives over this link are slower, or end with Xid 74",
        command="nvidia-smi nvlink -e",
        source=f"{_NVIDIA}/deploy/xid-errors/analyzing-xid-catalog.html",
    ),
    "persistence-off": Rule(
        WARN,
        "the driver unloads a GPU whenever nobody uses it",
        "run the persistence daemon",
        breaks="each first program waits 1 to 3 s per GPU, and settings such as clocks are lost",
        command="sudo systemctl enable --now nvidia-persistenced",
        source=f"{_NVIDIA}/deploy/driver-persistence/overview.html",
    ),
    "mig-empty": Rule(
        FAIL,
        "a GPU is in MIG mode, but has no instances",
        "create instances, or leave MIG mode",
        breaks="CUDA sees no device there",
        command="sudo nvidia-smi -i INDEX -mig 0",
        source=f"{_NVIDIA}/datacenter/tesla/mig-user-guide/",
    ),
    "fabric-manager": Rule(
        FAIL,
        "the NVSwitch fabric is not set up",
        "install the fabric manager of exactly the driver's version, and start it",
        breaks="CUDA fails with error 802 (system not yet initialized)",
        command="sudo systemctl enable --now nvidia-fabricmanager",
        source=_FABRIC,
    ),
    "compat-library": Rule(
        FAIL,
        "the libcuda of a compatibility package comes before the driver's",
        "remove the compat folder from LD_LIBRARY_PATH and ld.so.conf, and match the driver",
        breaks="CUDA fails with error 804 on GPUs that are not for data centers, or 803",
        command="ldconfig -p | grep libcuda.so",
        source="https://github.com/NVIDIA/nvidia-docker/issues/1515",
    ),
    "imex-channel": Rule(
        WARN,
        "this container lacks the IMEX channel of its multi-node NVLink",
        "give the container /dev/nvidia-caps-imex-channels/channel0, or disable NVLS",
        breaks="NCCL fails in transport/nvls.cc with `invalid argument`",
        command="export NCCL_NVLS_ENABLE=0",
        source="https://github.com/NVIDIA/nccl/issues/1672",
    ),
    "docker-gpu-runtime": Rule(
        WARN,
        "Docker is not set up to give containers the GPUs of this host",
        "install nvidia-container-toolkit and configure Docker with it",
        breaks="docker run --gpus fails: could not select device driver",
        command="sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        source=f"{_NVIDIA}/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    ),
}
