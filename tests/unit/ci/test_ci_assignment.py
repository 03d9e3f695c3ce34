"""Runner assignment: an assigned runner meets every condition, and a GPU runner that does gets the
job."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from provision import catalog, resolver, sources
from provision.catalog import Build, mismatches
from provision.ci import CiTarget, Job, Runner, assign
from provision.core.errors import NoSuchBuild
from provision.core.platforms import Platform
from provision.core.spec_fields import Spec
from provision.core.types import Resolution

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402


@functools.cache
def builds() -> list[tuple[Resolution, Build]]:
    """One resolution of every build of the table, from every source."""
    result = []
    for release in catalog.releases().values():
        for source in sources.names():
            for build in sources.by_name(source).builds(release):
                try:
                    spec = Spec(
                        name="x",
                        torch=release.version,
                        cuda=build.cuda,
                        source=source,
                        platforms=("linux-64",),
                    )
                    result.append((resolver.resolve(spec), build))
                except NoSuchBuild:
                    continue
    return result


def resolution(torch: str, cuda: str | None) -> Resolution:
    return resolver.resolve(Spec(name="lab", torch=torch, cuda=cuda))


def runner(
    name: str = "r", gpu: str | None = "A100", driver: str | None = "550.54.14", **more: object
) -> Runner:
    result = catalog.find_gpu(gpu) if gpu else None
    fields = {"gpus": 1, **more} if gpu else more
    return Runner(name=name, labels=(name,), gpu=result, driver=driver if gpu else None, **fields)  # type: ignore[arg-type]


def job(
    *runners: Runner,
    torch: str = "2.3.1",
    cuda: str | None = "12.1",
    platform: Platform = "linux-64",
    gpus: int | None = 1,
) -> Job:
    target = CiTarget(resolution=resolution(torch, cuda), platform=platform)
    (only_job,) = assign(target, runners, gpus=gpus)
    return only_job


def place(assigned: Job) -> tuple[str | None, bool]:
    return (assigned.runner.name if assigned.runner else None), assigned.on_gpu


def test_first_fitting_runner_in_file_order() -> None:
    assert place(job(runner("cheap"), runner("dear", gpus=8))) == ("cheap", True)
    assert place(job(runner("cheap"), runner("dear", gpus=8), gpus=4)) == ("dear", True)
    assert job(runner("dear", gpus=8), gpus=4).ranks == 4


@pytest.mark.parametrize(
    "unfit,message",
    [
        (
            runner(gpu="K80"),
            "this build holds code for sm_50, sm_60, sm_70, sm_75, sm_80, sm_86, sm_90, and K80 is sm_37",
        ),
        (
            runner(driver="470.57.02"),
            "CUDA 12.1 needs driver 525.60.13 or later, and the driver is 470.57.02",
        ),
        (runner(gpu="sm_120"), "sm_90, and the GPU is sm_120"),
        (runner(platform="linux-aarch64"), "linux-aarch64, and this is for linux-64"),
        (runner(glibc="2.17"), "glibc 2.17; 2.28 is needed"),
        (runner(glibc="2.9"), "glibc 2.9; 2.28 is needed"),
    ],
)
def test_reasons_a_runner_does_not_fit(unfit: Runner, message: str) -> None:
    result = job(unfit)
    assert place(result) == (None, False)
    assert result.ranks == 2
    assert result.notes[0] == "a rehearsal on the CPU, because no GPU runner fits"
    assert message in result.notes[1]


def test_ranks_are_the_gpus_of_the_runner_up_to_eight() -> None:
    ranks = {gpus: job(runner(gpus=gpus), gpus=None).ranks for gpus in (1, 4, 8, 16)}
    assert ranks == {1: 1, 4: 4, 8: 8, 16: 8}
    assert job(runner(gpus=8, cpus=6), gpus=None).ranks == 6
    assert job(gpus=None).ranks == 2  # on a CPU


def across_gpus(
    *runners: Runner, torch: str = "2.3.1", cuda: str | None = "12.1"
) -> tuple[Job, ...]:
    target = CiTarget(resolution=resolution(torch, cuda), platform="linux-64")
    return assign(target, runners, gpus=None, across="gpu")


def test_one_job_for_each_architecture() -> None:
    result = across_gpus(
        runner("v100", gpu="V100", gpus=4),
        runner("a100"),
        runner("a100-too", gpus=8),
        runner("h100", gpu="H100", gpus=16),
        runner("b200", gpu="B200", driver="580.65.06"),
        runner("cpu", gpu=None),
    )
    assert [place(each) for each in result] == [
        ("v100", True),
        ("a100", True),
        ("h100", True),
    ]
    assert [each.ranks for each in result] == [4, 1, 8]


def test_across_gpus_without_a_fitting_one_is_one_rehearsal() -> None:
    result = across_gpus(runner("k80", gpu="K80"))
    assert [place(each) for each in result] == [(None, False)]
    without_cuda = across_gpus(runner(), torch="2.13.0", cuda=None)
    assert [place(each) for each in without_cuda] == [(None, False)]


def test_certain_runner_of_an_architecture_is_preferred() -> None:
    result = across_gpus(runner("vague", driver="525"), runner("sure"))
    assert [place(each) for each in result] == [("sure", True)]


def test_too_few_gpus_or_cpus() -> None:
    assert "1 GPU; 2 are requested" in job(runner(), gpus=2).notes[1]
    assert "2 CPUs; 4 ranks are requested" in job(runner(gpus=8, cpus=2), gpus=4).notes[1]


def test_rehearsal_goes_to_a_fitting_cpu_runner() -> None:
    unfit, small, cpu = (
        runner(gpu="K80"),
        runner("small", gpu=None, cpus=1),
        runner("cpu", gpu=None),
    )
    assert place(job(unfit, small, cpu)) == ("cpu", False)
    assert place(job(small)) == (None, False)
    assert job(small).notes == ("a rehearsal on the CPU, because there is no GPU runner",)


def test_cpu_build_needs_no_gpu_and_is_no_rehearsal() -> None:
    result = job(runner(), runner("cpu", gpu=None), torch="2.13.0", cuda=None)
    assert place(result) == ("cpu", False)
    assert result.notes == ("a build without CUDA, which needs only a CPU runner",)


def test_uncertain_runner_comes_after_certain_ones() -> None:
    vague = runner("vague", driver="525")  # a driver of the branch that the floor is in
    assert place(job(vague, runner("sure"))) == ("sure", True)
    result = job(vague)
    assert place(result) == ("vague", True)
    assert result.notes == (
        "vague: CUDA 12.1 needs driver 525.60.13 or later, and whether 525 is that is not known",
    )


def test_ptx_needs_the_driver_of_its_toolkit() -> None:
    """No build of the table has PTX that a GPU of the table would need, so one is made up: 2.9.1's
    without its newest code."""
    build = next(build for build in catalog.releases()["2.9.1"].wheels if build.ptx)
    assert build.architectures
    build = dataclasses.replace(
        build, architectures=build.architectures[: build.architectures.index("sm_90") + 1]
    )
    newer, toolkit = catalog.find_gpu("sm_120"), catalog.toolkits()[build.cuda]
    assert toolkit.toolkit_driver
    (mismatch,) = mismatches.code_mismatches(build, newer, toolkit.toolkit_driver)
    assert not mismatch.rules_out
    assert (
        mismatch.fact
        == "this build holds no code for sm_120, which compiles its PTX when a program starts; NCCL has none"
    )
    build = dataclasses.replace(build, cuda="12.8")
    (mismatch,) = mismatches.code_mismatches(build, newer, catalog.toolkits()["12.8"].driver_floor)
    assert mismatch.rules_out
    assert (
        mismatch.fact
        == "this build holds code for sm_75, sm_80, sm_86, sm_90 and PTX, which needs driver 570.26 to be compiled, and the GPU is sm_120"
    )


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def capability(architecture: str) -> tuple[int, int]:
    digits = architecture.removeprefix("sm_")
    return int(digits[:-1]), int(digits[-1])


def satisfied(resolution: Resolution, build: Build, offered: Runner, gpus: int) -> bool | None:
    """All conditions, said once more and otherwise than in the code under test; None where a fact
    is not known."""
    assert offered.gpu and offered.driver and resolution.cuda
    if (
        offered.platform != "linux-64"
        or offered.gpus < gpus
        or (offered.cpus is not None and offered.cpus < gpus)
    ):
        return False
    if offered.glibc and numbers(offered.glibc) < numbers(resolution.glibc):
        return False
    if numbers(offered.driver) < numbers(catalog.toolkits()[resolution.cuda].driver_floor):
        return False
    runner_capability = capability(offered.gpu.architecture)
    if build.architectures is None:
        return (
            False
            if runner_capability < numbers(catalog.toolkits()[build.cuda].capability_min)
            else None
        )
    have = [capability(name) for name in build.architectures]
    if any(
        major == runner_capability[0] and minor <= runner_capability[1] for major, minor in have
    ):
        return True
    if build.ptx is None:
        return None
    compiled = (
        build.ptx
        and runner_capability > max(have)
        and numbers(offered.driver) >= numbers(catalog.toolkits()[build.cuda].toolkit_driver or "")
    )
    return None if compiled else False


GPUS = [
    "sm_37",
    "K80",
    "P100",
    "V100",
    "T4",
    "A100",
    "sm_86",
    "L4",
    "H100",
    "sm_100",
    "sm_103",
    "sm_120",
    "sm_121",
]
DRIVERS = [
    "440.33.01",
    "450.80.02",
    "470.57.02",
    "525.60.13",
    "535.129.03",
    "550.54.14",
    "570.26.00",
    "580.65.06",
    "595.45.04",
    "610.43.02",
]
RUNNERS = st.lists(
    st.builds(
        runner,
        name=st.sampled_from("abcdefgh"),
        gpu=st.sampled_from(GPUS) | st.none(),
        driver=st.sampled_from(DRIVERS),
        gpus=st.sampled_from([1, 2, 4, 8]),
        platform=st.sampled_from(["linux-64", "linux-64", "linux-64", "linux-aarch64"]),
        glibc=st.sampled_from([None, "2.17", "2.31", "2.39"]),
        cpus=st.sampled_from([None, 1, 8, 128]),
    ),
    max_size=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data(), RUNNERS, st.sampled_from([1, 2, 8]))
def test_random_runners(data: st.DataObject, runners: list[Runner], gpus: int) -> None:
    resolved, build = data.draw(st.sampled_from(builds()))
    target = CiTarget(resolution=resolved, platform="linux-64")
    (result,) = assign(target, runners, gpus=gpus)
    answers = [
        (runner_, satisfied(resolved, build, runner_, gpus)) for runner_ in runners if runner_.gpu
    ]
    sure = [runner_ for runner_, answer in answers if answer]
    possible = [runner_ for runner_, answer in answers if answer is not False]
    assert result.on_gpu == bool(possible)
    if sure:
        assert result.runner is sure[0] and not result.notes
    elif possible:
        assert result.runner is possible[0] and result.notes
    else:
        assert len(result.notes) == 1 + len(answers)  # why each GPU runner does not fit
        assert result.runner is None or (
            result.runner.gpu is None and result.runner.platform == "linux-64"
        )
        assert result.ranks == max(2, gpus)


def test_every_build_is_assigned_or_refused() -> None:
    assert len(builds()) > 100
    machines = [runner(gpu=gpu, driver=driver, gpus=8) for gpu in GPUS for driver in DRIVERS[::3]]
    for resolved, _ in builds():
        for machine in machines:
            assign(CiTarget(resolution=resolved, platform="linux-64"), [machine], gpus=1)
