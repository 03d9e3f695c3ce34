"""Faults among the packages of an environment, seen in its files without starting it."""

from __future__ import annotations

from .rule import FAIL, WARN, Rule

PACKAGES = {
    "cuda-wheels-mixed": Rule(
        FAIL,
        "NVIDIA wheels of two CUDA versions have files of the same names",
        "remove the family that torch does not need, then install the environment again",
        breaks="importing torch fails (undefined symbol), or another version than locked is loaded",
        command="pip list | grep '^nvidia-'",
        source="https://github.com/pytorch/pytorch/issues/186591",
    ),
    "numpy-abi": Rule(
        FAIL,
        "this torch was built for NumPy 1, but NumPy 2 is installed",
        "install numpy below 2, or a newer torch",
        breaks="tensor.numpy() and torch.from_numpy() fail: Numpy is not available",
        command="pip install 'numpy<2'",
        source="https://github.com/pytorch/pytorch/issues/135013",
    ),
    "mkl-too-new": Rule(
        FAIL,
        "this torch from conda needs an older MKL",
        "install mkl below 2024.1",
        breaks="importing torch fails: undefined symbol iJIT_NotifyEvent",
        command="conda install 'mkl<2024.1'",
        source="https://github.com/pytorch/pytorch/issues/123097",
    ),
    "glibc-old": Rule(
        FAIL,
        "a wheel of the environment needs a newer glibc than this host has",
        "use a newer system or the image, or build the environment for this glibc",
        breaks="importing the package fails: GLIBC_... not found",
        command="ldd --version",
        source="https://github.com/ai4d-iasc/trixie/issues/97",
    ),
    "cuda-toolkit-other": Rule(
        WARN,
        "the CUDA compiler on this host is for another CUDA than torch",
        "install cuda-nvcc of torch's version into the environment, and point CUDA_HOME there",
        breaks="building extensions fails: the detected CUDA version mismatches",
        command="unset CUDA_HOME; which nvcc",
        source="https://github.com/prefix-dev/pixi/issues/2145",
    ),
    "torch-known-bad": Rule(
        WARN,
        "this torch release has a known fault in distributed training",
        "use a release without it, or keep to the workaround",
        breaks="init_process_group(device_id=...) can hang",
        command="provision matrix",
        source="https://github.com/pytorch/pytorch/issues/153960",
    ),
}
