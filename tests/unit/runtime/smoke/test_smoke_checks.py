"""How the facts phase judges: expectations, architectures, contaminations, differences of ranks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.checks import expectation, surroundings
from provision_runtime.report.findings import CATALOG
from provision_runtime.smoke import context, outcome, phases
from provision_runtime.smoke.outcome import Finding
from provision_runtime.smoke.phases import facts as facts_phase
from provision_runtime.smoke.rank_env import RankEnv
from tests.unit.runtime.smoke.builders import GIB, parsed, rank_env

SITE = "/prefix/lib/python3.11/site-packages"
OWN = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


def facts(torch: dict[str, Any] | None = None, **more: Any) -> Any:
    """A clean GPU host."""
    torch_facts = {
        "version": "2.3.1+cu121",
        "cuda": "12.1",
        "nccl": {"compiled": "2.20.5", "loaded": "2.20.5", "file": OWN},
        "arch_list": ["sm_80", "sm_90"],
        "cuda_available": True,
        "device_count": 1,
        "devices": [{"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "architecture": "sm_90"}],
    }
    return {
        "torch": {**torch_facts, **(torch or {})},
        "environment": {},
        "device_nodes": ["/dev/nvidia0"],
        "driver": "550.54.15",
        "pci_gpus": [{"address": "0000:17:00.0", "iommu": "DMA-FQ"}],
        "nccl_settings": [],
        "nccl_mistyped": {},
        "libraries": {"loaded": [OWN], "foreign": [], "loadable": []},
        "user_site": {"folder": "/home/me/.local", "on_path": False, "packages": 9, "modules": []},
        "pythonpath": {"entries": [], "modules": []},
        "limits": {
            "cpus": {"count": 8, "affinity": 8, "quota": None, "allowed": 8},
            "shm": {"bytes": GIB, "free_bytes": GIB, "device": 1},
            "nofile": 1024,
            "memlock": None,
            "infiniband": [],
        },
        **more,
    }


def expecting(*arguments: str) -> expectation.Expectation:
    return facts_phase.expected_by(parsed(*arguments))


def ids(findings: Iterable[Finding]) -> list[str]:
    found = [finding.id for finding in findings]
    assert set(found) <= set(CATALOG)
    return found


# expectations


@pytest.mark.parametrize(
    ("torch", "arguments"),
    [
        ({}, ["--expect-torch=2.3.1", "--expect-cuda=12.1", "--expect-nccl=2.20.5", "--require-gpu"]),
        ({}, ["--expect-torch=2.3.1+cu121"]),
        ({"cuda": None, "cuda_available": False}, ["--expect-cuda=none"]),
        # The NCCL that is loaded counts, not the one that torch was compiled with.
        ({"nccl": {"compiled": "2.20.5", "loaded": "2.21.5", "file": OWN}}, ["--expect-nccl=2.21.5"]),
    ],
)  # fmt: skip
def test_clean_environment_meets_its_expectations(
    torch: dict[str, Any], arguments: list[str]
) -> None:
    assert ids(expectation.differences(facts(torch), expecting(*arguments), 0)) == []


OLD_NCCL = {"compiled": "2.20.5", "loaded": "2.9.6", "file": "/x/libnccl.so.2"}


@pytest.mark.parametrize(
    ("torch", "arguments", "id", "values"),
    [
        ({}, "--expect-torch=2.3.1+cu118", "environment-unlike", "2.3.1+cu121 2.3.1+cu118"),
        ({}, "--expect-cuda=11.8", "environment-unlike", "12.1 11.8"),
        ({}, "--expect-cuda=none", "environment-unlike", "12.1 none"),
        ({}, "--expect-nccl=2.21.5", "environment-unlike", "2.20.5 2.21.5"),
        ({"cuda": None}, "--expect-cuda=12.1", "cpu-build", "2.3.1+cu121 12.1"),
        ({"cuda": None, "cuda_available": False}, "--require-gpu", "cpu-build", "2.3.1+cu121"),
        ({"cuda_available": False}, "", "gpu-lost", "/dev/nvidia0 550.54.15 12.1"),
        ({"arch_list": ["sm_80"]}, "", "arch-unsupported", "H200 sm_90 2.3.1+cu121 sm_80"),
        ({"nccl": OLD_NCCL}, "", "nccl-older", "2.9.6 /x/libnccl.so.2 2.20.5"),
    ],
)
def test_unmet_expectation_is_one_finding_with_both_values(
    torch: dict[str, Any], arguments: str, id: str, values: str
) -> None:
    (finding,) = expectation.differences(facts(torch), expecting(*arguments.split()), 0)
    assert finding.id == id
    assert all(value in finding.message for value in values.split())


def test_both_reasons_for_no_gpu_are_one_finding() -> None:
    without = {"cuda_available": False, "devices": []}
    required = expecting("--require-gpu", "--expect-cuda", "12.1")
    absent = facts(without, device_nodes=[])
    assert ids(expectation.differences(absent, required)) == ["gpu-missing"]
    assert ids(expectation.differences(facts(without), required)) == ["gpu-lost"]
    unlike = expecting("--require-gpu", "--expect-cuda", "11.8")
    assert ids(expectation.differences(absent, unlike)) == ["environment-unlike", "gpu-missing"]
    cpu = facts({**without, "cuda": None})
    assert ids(expectation.differences(cpu, required)) == ["cpu-build"]


def test_deliberately_hidden_gpu_is_not_lost() -> None:
    hidden = facts({"cuda_available": False}, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert ids(expectation.differences(hidden, expecting())) == []


def test_rehearsal_is_labelled() -> None:
    without, cpu = facts({"cuda_available": False}), facts({"cuda": None, "cuda_available": False})
    assert expectation.is_rehearsal(without["torch"], expecting().cuda)
    assert expectation.is_rehearsal(cpu["torch"], expecting("--expect-cuda", "12.1").cuda)
    assert not expectation.is_rehearsal(cpu["torch"], expecting("--expect-cuda", "none").cuda)
    assert not expectation.is_rehearsal(facts()["torch"], expecting().cuda)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "own Python"),
        ("ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister", "LD_LIBRARY_PATH"),
        ("ImportError: libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent", "mkl<2024.1"),
        ("ImportError: libstdc++.so.6: version `GLIBCXX_3.4.30' not found", "libstdc++"),
        ("OSError: libcudart.so.12: cannot open shared object file: No such file", "locked"),
        ("ZeroDivisionError: division by zero", ""),
    ],
)
def test_reason_for_broken_torch_gives_advice(error: str, advice: str) -> None:
    finding = expectation.broken(f"torch cannot be used: {error}")
    assert finding.id == "torch-broken"
    assert advice in finding.advice
    assert bool(finding.advice) is bool(advice)


# architectures


@pytest.mark.parametrize(
    ("gpu", "built", "runs"),
    [
        ("sm_90", ["sm_80", "sm_90"], True),
        ("sm_86", ["sm_70", "sm_80"], True),  # a later 8.x runs kernels for 8.0
        ("sm_80", ["sm_70", "sm_86"], False),
        ("sm_90", ["sm_80", "sm_86"], False),
        ("sm_90", ["sm_80", "compute_86"], True),  # from PTX
        ("sm_80", ["sm_70", "compute_86"], False),
        ("sm_90", ["sm_90a"], True),
        ("sm_100", ["sm_90a", "compute_90a"], False),
        ("sm_103", ["sm_100f"], True),
        ("sm_120", ["sm_90", "compute_90"], True),
        ("sm_120", ["sm_100"], False),
        ("sm_120", [], None),
        ("sm_90", ["gfx90a"], None),
        ("gfx90a", ["sm_90"], None),
    ],
)
def test_gpus_a_build_runs_on(gpu: str, built: list[str], runs: bool | None) -> None:
    assert expectation.runs_on(gpu, built) is runs


architectures = st.tuples(st.integers(3, 12), st.integers(0, 9))


@given(gpu=architectures, code=architectures, other_code=st.lists(architectures))
def test_compatibility_rules(
    gpu: tuple[int, int], code: tuple[int, int], other_code: list[tuple[int, int]]
) -> None:
    name = "sm_{}{}".format(*gpu)
    kernel, ptx = "sm_{}{}".format(*code), "compute_{}{}".format(*code)
    rest = ["sm_{}{}".format(*item) for item in other_code]
    assert expectation.runs_on(name, [name, *rest]) is True
    assert expectation.runs_on(name, [ptx]) is (code <= gpu)
    assert expectation.runs_on(name, [kernel]) is (code[0] == gpu[0] and code[1] <= gpu[1])
    # What runs with a build runs with one that holds more.
    assert not expectation.runs_on(name, [kernel]) or expectation.runs_on(name, [*rest, kernel])


# surroundings

RANK_ENV = rank_env(local_world_size=2)


def pitfalls(
    facts: Any, env: RankEnv = RANK_ENV, environment: Mapping[str, str] | None = None
) -> list[Finding]:
    return surroundings.pitfalls(
        facts,
        environment or {},
        world_size=env.world_size,
        local_ranks=env.local_world_size or 1,
        is_launched=env.launched,
    )


def test_a_clean_host_has_no_findings() -> None:
    assert list(surroundings.contaminations(facts())) == []
    assert pitfalls(facts()) == []


def test_shadowed_nccl_is_named() -> None:
    path = "/x/lib/libnccl.so.2"
    facts_of_rank = facts(
        {"nccl": {"compiled": "2.20.5", "loaded": "2.20.5", "file": path}},
        libraries={"loaded": [path], "foreign": [path], "loadable": []},
    )
    (finding,) = surroundings.contaminations(facts_of_rank)
    assert (finding.id, finding.message) == (
        "nccl-shadowed",
        f"libnccl is loaded from {path} (NCCL 2.20.5), which is not this environment",
    )


def test_foreign_libraries_in_one_folder_are_one_finding() -> None:
    names = [f"/usr/local/cuda/lib64/{name}" for name in ("libcublas.so.12", "libcudart.so.12")]
    facts_of_rank = facts(
        libraries={"loaded": names, "foreign": names, "loadable": []},
    )
    (finding,) = surroundings.contaminations(facts_of_rank)
    assert finding == Finding(
        "foreign-library",
        "libcublas.so.12, libcudart.so.12 loaded from /usr/local/cuda/lib64, which is not this environment",
    )


def libraries(loaded: list[str], foreign: list[str], loadable: tuple[str, ...] = ()) -> Any:
    return {"loaded": loaded, "foreign": foreign, "loadable": list(loadable)}


def test_unused_nccl_is_foreign_not_shadowing() -> None:
    path = "/x/libnccl.so.2"
    facts_of_rank = facts(libraries=libraries([OWN, path], [path]))
    assert ids(surroundings.contaminations(facts_of_rank)) == ["foreign-library"]


def test_libraries_on_the_library_path_warn_with_cuda() -> None:
    loadable = libraries([], [], ("/x/libcudnn_ops.so.9", "/x/libnccl.so.2"))
    assert ids(surroundings.contaminations(facts(libraries=loadable))) == ["library-path"]
    assert list(surroundings.contaminations(facts({"cuda": None}, libraries=loadable))) == []


def test_contamination_is_reported_with_a_broken_torch() -> None:
    path = "/x/libnccl.so.2"
    result: Any = {**facts(libraries=libraries([path], [path])), "torch": None}
    assert ids(surroundings.contaminations(result)) == ["nccl-shadowed"]


@pytest.mark.parametrize(
    ("source", "id"),
    [
        (
            {"user_site": {"folder": "/h", "on_path": True, "packages": 3, "modules": ["numpy"]}},
            "user-site",
        ),
        (
            {"user_site": {"folder": "/h", "on_path": True, "packages": 3, "modules": []}},
            "user-site-on-path",
        ),
        ({"user_site": {"folder": "/h", "on_path": True, "packages": 0, "modules": []}}, None),
        ({"pythonpath": {"entries": ["/a", "/b"], "modules": ["yaml"]}}, "pythonpath"),
        ({"pythonpath": {"entries": ["/a", "/b"], "modules": []}}, "pythonpath-on-path"),
    ],
)
def test_foreign_modules_fail_and_their_possible_causes_warn(
    source: dict[str, Any], id: str | None
) -> None:
    assert ids(surroundings.contaminations(facts(**source))) == ([id] if id else [])


def test_costly_nccl_settings_are_named_with_source_and_effect() -> None:
    setting = {
        "name": "NCCL_P2P_DISABLE",
        "value": "1",
        "source": "/etc/nccl.conf",
        "effect": "slow",
        "is_costly": True,
    }
    harmless = {**setting, "name": "NCCL_IB_HCA", "is_costly": False}
    facts_of_rank = facts(nccl_settings=[setting, harmless])
    assert pitfalls(facts_of_rank) == [
        Finding("nccl-setting", "NCCL_P2P_DISABLE=1 (/etc/nccl.conf): slow")
    ]
    assert pitfalls(facts({"cuda": None}, nccl_settings=[setting])) == []


def limited(**more: Any) -> Any:
    return facts(limits={**facts()["limits"], **more})


@pytest.mark.parametrize(
    ("facts_of_rank", "id"),
    [
        (limited(cpus={"count": 64, "affinity": 64, "quota": 1.5, "allowed": 1.5}), "cpu-quota"),
        (limited(cpus={"count": 64, "affinity": 4, "quota": 4, "allowed": 4}), None),
        (limited(nofile=256), "nofile-small"),
        (limited(nofile=None), None),
        (limited(memlock=65536), None),
        (limited(memlock=65536, infiniband=[]), None),
        (
            limited(memlock=65536, infiniband=["uverbs0"]),
            "memlock-small",
        ),
        (limited(memlock=None, infiniband=["uverbs0"]), None),
        (facts(environment={"OMP_NUM_THREADS": "1"}), None),
        (facts(environment={"OMP_NUM_THREADS": "4,2"}), None),
        (facts(environment={"OMP_NUM_THREADS": "5"}), "omp-threads"),
        (facts(environment={"OMP_NUM_THREADS": "many"}), "omp-threads"),
    ],
)
def test_limits_and_threads(facts_of_rank: dict[str, Any], id: str | None) -> None:
    assert ids(pitfalls(facts_of_rank)) == ([id] if id else [])


@pytest.mark.parametrize(
    ("types", "id"),
    [
        (["DMA", "DMA-FQ"], "iommu-on"),
        (["identity", "identity"], None),
        ([None, None], None),
        (["DMA"], None),
    ],
)
def test_an_iommu_matters_between_gpus(types: list[str | None], id: str | None) -> None:
    gpus = [
        {"address": f"0000:{number:02x}:00.0", "iommu": type} for number, type in enumerate(types)
    ]
    assert ids(pitfalls(facts(pci_gpus=gpus))) == ([id] if id else [])


def test_more_open_files_are_needed_for_more_ranks() -> None:
    assert ids(pitfalls(facts(), dataclasses.replace(RANK_ENV, world_size=512))) == ["nofile-small"]


@pytest.mark.parametrize(
    ("launched", "environment", "id"),
    [
        (True, {}, None),
        (True, {"SLURM_STEP_NUM_TASKS": "1"}, None),
        (True, {"SLURM_STEP_NUM_TASKS": "2"}, "world-size"),  # two jobs of two ranks each
        (False, {"SLURM_STEP_NUM_TASKS": "2"}, None),
        (False, {"SLURM_STEP_NUM_TASKS": "8"}, "world-size"),
        (False, {"OMPI_COMM_WORLD_SIZE": "8"}, "world-size"),
        (False, {"PMI_SIZE": "many"}, None),
    ],
)
def test_isolated_tasks(launched: bool, environment: dict[str, str], id: str | None) -> None:
    this_rank = dataclasses.replace(RANK_ENV, ends_at=1.0 if launched else None)
    assert ids(pitfalls(facts(), this_rank, environment)) == ([id] if id else [])


# between ranks


def rank(number: int, **more: Any) -> facts_phase.RankFacts:
    usual: dict[str, Any] = dict.fromkeys(facts_phase.RankFacts.__dataclass_fields__, "same")
    usual.update(
        rank=number,
        host=f"node{number // 8}",
        gpu=f"GPU-{number}",
        backend="nccl",
        shm_bytes=GIB,
        shm_free_bytes=GIB,
        shm_device=1,
    )
    return facts_phase.RankFacts(**{**usual, **more})


def compared(*ranks: facts_phase.RankFacts) -> list[tuple[str, tuple[int, ...]]]:
    findings = facts_phase.differences_between_ranks(ranks)
    return [(finding.id, finding.ranks) for finding in findings]


def test_identical_ranks_have_no_findings() -> None:
    assert compared(*map(rank, range(16))) == []


def test_deviating_rank_is_named_even_rank_0() -> None:
    (finding,) = facts_phase.differences_between_ranks([rank(0, torch="2.4.0"), rank(1), rank(2)])
    message = "torch is 2.4.0 on rank 0, same on ranks 1, 2"
    assert finding == Finding("environment-drift", message, (0,))


def test_two_differing_ranks_are_both_named() -> None:
    (finding,) = facts_phase.differences_between_ranks([rank(0), rank(1, lock_hash=None)])
    message = "lock_hash is same on rank 0, absent on rank 1"
    assert finding == Finding("environment-drift", message, (0, 1))


def test_each_deviating_fact_is_a_finding() -> None:
    ranks = [rank(0), rank(1, nccl="b"), rank(2, nccl="c"), rank(3), rank(4, driver="5")]
    assert compared(*ranks) == [("environment-drift", (1, 2)), ("environment-drift", (4,))]


@given(st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=8))
def test_ranks_without_the_majority_value_are_named_or_all(values: list[str | None]) -> None:
    findings = compared(*(rank(number, torch=value) for number, value in enumerate(values)))
    named = set(itertools.chain(*(ranks for _, ranks in findings)))
    majority = [value for value in set(values) if values.count(value) * 2 > len(values)]
    assert named == {number for number, value in enumerate(values) if value not in majority}
    assert len(findings) == (len(set(values)) > 1)


def test_ranks_sharing_a_gpu_are_named_unless_gloo_was_requested() -> None:
    ranks = [rank(0), rank(1, gpu="GPU-0"), rank(2), rank(3, gpu="GPU-0")]
    assert compared(*ranks) == [("gpu-shared", (0, 1, 3))]
    assert compared(*(dataclasses.replace(each, backend="gloo") for each in ranks)) == []
    assert compared(*(rank(number, gpu=None, gpu_name=None) for number in range(4))) == []


def test_different_gpus_are_named() -> None:
    ranks = [rank(0), rank(1), rank(2, gpu_name="NVIDIA A100")]
    assert compared(*ranks) == [("gpu-mixed", (2,))]


@pytest.mark.parametrize(
    ("ranks", "mib", "free", "id"),
    [
        # Docker's default is enough for one rank, which shares it with nobody.
        (1, 63, 63, "shm-small"),
        (1, 64, 64, "shm-limited"),
        (1, 256, 256, None),
        (2, 64, 64, "shm-small"),
        (2, 255, 255, "shm-small"),
        (2, 256, 256, None),
        (8, 500, 500, "shm-small"),
        (64, 1024, 1024, None),  # what NVIDIA asks for is always enough
        (2, 4096, 10, "shm-full"),
    ],
)
def test_shared_memory_size(ranks: int, mib: int, free: int, id: str | None) -> None:
    mount = {"shm_bytes": mib * surroundings.MIB, "shm_free_bytes": free * surroundings.MIB}
    findings = compared(*(rank(number, host="one", **mount) for number in range(ranks)))
    assert findings == ([(id, tuple(range(ranks)))] if id else [])


def test_shared_memory_of_containers_is_judged_apart() -> None:
    small = 64 * surroundings.MIB
    ranks = [
        rank(0),
        rank(1, shm_bytes=small, shm_free_bytes=small, shm_device=2),
        rank(2, shm_bytes=None, shm_device=None),
    ]
    assert compared(*ranks) == [("shm-limited", (1,)), ("shm-small", (2,))]


# the phase's merge


def outcome_of(number: int, *findings: Finding, **more: Any) -> outcome.Outcome:
    row = dataclasses.asdict(rank(number, **more))
    return outcome.Outcome("fine", findings, {"ranks": [row]})


def test_phase_has_a_row_per_rank_and_the_slowest_collection() -> None:
    merged = phases.facts.merge([outcome_of(number) for number in range(3)])
    assert (merged.verdict, merged.message, merged.broken) == ("pass", "fine", False)
    assert [row["rank"] for row in merged.data["ranks"]] == [0, 1, 2]


def test_findings_of_ranks_and_between_ranks_are_merged() -> None:
    merged = phases.facts.merge(
        [outcome_of(0), outcome_of(1, Finding("user-site", "x")), outcome_of(2, torch="2.4.0")]
    )
    named = [(finding.id, finding.ranks) for finding in merged.findings]
    assert named == [("user-site", (1,)), ("environment-drift", (2,))]
    assert not merged.broken


def test_two_ranks_on_one_gpu_end_the_run() -> None:
    assert phases.facts.merge([outcome_of(0), outcome_of(1, gpu="GPU-0")]).broken


# backend and device


def chosen_on(count: int, local_rank: int, *arguments: str) -> tuple[str, str, bool]:
    """Backend, device and whether they can work, on a host where torch sees this many GPUs."""
    devices = [{"index": index} for index in range(count)]
    torch = {"cuda_available": count > 0, "device_count": count, "devices": devices}
    this_rank = dataclasses.replace(RANK_ENV, local_rank=local_rank)
    rank_context = context.RankContext(parsed(*arguments), this_rank, lambda: 60.0)
    rank_context.facts = facts({**torch, "distributed": True})
    phases.facts._choose_backend(rank_context)
    problems = phases.facts._backend_problems(rank_context)
    return rank_context.backend, rank_context.device, not problems


@pytest.mark.parametrize(
    ("count", "local_rank", "arguments", "expected"),
    [
        (8, 3, "", ("nccl", "cuda:3", True)),
        (0, 1, "", ("gloo", "cpu", True)),
        (1, 3, "", ("nccl", "cuda:0", True)),  # a launcher that shows each rank its own GPU alone
        (2, 3, "", ("nccl", "cuda:3", False)),
        (0, 0, "--backend nccl", ("nccl", "cuda:0", False)),
        (8, 3, "--backend gloo", ("gloo", "cpu", True)),
        (2, 3, "--backend gloo --device cuda", ("gloo", "cuda:1", True)),
        (0, 1, "--backend gloo --device cuda", ("gloo", "cuda:1", False)),
        (8, 3, "--device cpu", ("gloo", "cpu", True)),
        (8, 3, "--backend nccl --device cpu", ("nccl", "cpu", False)),
    ],
)
def test_backend_and_device_follow_the_options(
    count: int, local_rank: int, arguments: str, expected: tuple[str, str, bool]
) -> None:
    assert chosen_on(count, local_rank, *arguments.split()) == expected
