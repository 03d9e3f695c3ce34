"""The types of the facts: environment.py collects them, and `facts` prints them as JSON."""

from __future__ import annotations

from typing import Dict, List, Optional, TypedDict


class PythonFacts(TypedDict):
    version: str
    executable: str
    prefix: str


class PlatformFacts(TypedDict):
    machine: str


class CpuFacts(TypedDict):
    """allowed: what the kernel really gives; os.cpu_count() ignores affinity and quota."""

    count: Optional[int]
    affinity: int
    quota: Optional[float]
    allowed: float


class SharedMemory(TypedDict):
    """device: two containers of one host do not share their file systems."""

    bytes: int
    free_bytes: int
    device: int


class LimitFacts(TypedDict):
    """infiniband: the devices of adapters that this process may open."""

    cpus: CpuFacts
    shm: Optional[SharedMemory]
    nofile: Optional[int]
    memlock: Optional[int]
    infiniband: List[str]


class PciGpu(TypedDict):
    """iommu: the type of its IOMMU group. DMA or DMA-FQ: addresses are translated; identity: they
    pass unchanged; None: no IOMMU."""

    address: str
    iommu: Optional[str]


class NcclFacts(TypedDict):
    compiled: Optional[str]
    loaded: Optional[str]
    file: Optional[str]


class DeviceFacts(TypedDict):
    index: int
    name: str
    uuid: Optional[str]
    architecture: str


class TorchFacts(TypedDict):
    version: str
    file: str
    cuda: Optional[str]
    nccl: NcclFacts
    arch_list: List[str]
    cuda_available: bool
    device_count: int
    devices: List[DeviceFacts]
    distributed: bool


class LoadedLibraries(TypedDict):
    """foreign: loaded, and not this environment's; loadable: what LD_LIBRARY_PATH could bring."""

    loaded: List[str]
    foreign: List[str]
    loadable: List[str]


class UserSiteFacts(TypedDict):
    """packages: how many there are. modules: which were loaded from there."""

    folder: str
    on_path: bool
    packages: int
    modules: List[str]


class PythonPathFacts(TypedDict):
    entries: List[str]
    modules: List[str]


class NcclSetting(TypedDict):
    """source: `environment`, or the file. is_costly: it makes jobs slow or hides failures."""

    name: str
    value: str
    source: str
    effect: str
    is_costly: bool


class EnvironmentFacts(TypedDict):
    """torch: None if it cannot be used; error then has the reason."""

    schema: int
    python: PythonFacts
    host: str
    platform: PlatformFacts
    limits: LimitFacts
    environment: Dict[str, str]
    nccl_settings: List[NcclSetting]
    nccl_mistyped: Dict[str, str]
    lock_hash: Optional[str]
    driver: Optional[str]
    device_nodes: List[str]
    pci_gpus: List[PciGpu]
    torch: Optional[TorchFacts]
    error: Optional[str]
    libraries: LoadedLibraries
    user_site: UserSiteFacts
    pythonpath: PythonPathFacts


class LinkFacts(TypedDict):
    """A GPU's NVLinks: the rate of each active one, and how many lead to each other GPU."""

    links_gb_s: List[float]
    links_to: Dict[str, int]


class CardPath(TypedDict, total=False):
    """path: the card's folder below /sys/devices, which shows the switches above it."""

    path: str


class PcieFacts(CardPath):
    """A GPU's link. generation: the lower of the card's and its slot's best. card_lanes: those
    that the card has."""

    address: str
    generation: int
    lanes: int
    card_lanes: int
    gb_s: float


class PortFacts(CardPath):
    """A port of an RDMA card that is up."""

    name: str
    port: int
    gb_s: float
    driver: str
    link_layer: str


class WireFacts(TypedDict):
    """nvlink: by the GPU's UUID. interfaces: GB/s of each whose driver reports it. instance: what
    the firmware calls the machine, which on Amazon EC2 is the instance type. virtual: whether a
    hypervisor runs it."""

    nvlink: Dict[str, LinkFacts]
    pcie: List[PcieFacts]
    ports: List[PortFacts]
    interfaces: Dict[str, float]
    instance: str
    virtual: bool
