"""Statements of a project's files -> the keys of spec.yml, and an account of every statement.

Pure. torch, CUDA and Python are chosen from what all files state about them: a version, an index, a
build string, a companion's version. Of statements that contradict each other, the one of the file
that leads counts, and the other one is named; within one file neither does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from provision.core.statements import PipRequirement, Statement
from provision.project_files.cuda_choice import decide_cuda
from provision.project_files.decision import COMPANIONS, TORCH
from provision.project_files.decision import Choices as Choices
from provision.project_files.decision import Request as Request
from provision.project_files.packages import take_others
from provision.project_files.python_choice import decide_python, possible_pythons
from provision.project_files.torch_choice import decide_torch, end_torch, torch_pythons


def decide(
    statements: Iterable[Statement],
    choices: Choices | None = None,
    *,
    default_python: str,
    located: Callable[[PipRequirement], str] | None = None,
) -> Request:
    """The keys of spec.yml that statements come to, and what became of each statement.

    Markers are decided for the Python that is chosen: the default if it is allowed and torch has
    it, else the newest that is. located: the requirement of spec.yml for a folder or file of this
    machine; empty if the user must add it.
    """
    new_request = partial(
        Request,
        statements=list(dict.fromkeys(statements)),
        choices=choices or Choices(),
        located=located,
    )
    requests = []
    for python in possible_pythons(new_request(python=default_python), default_python):
        request = new_request(python=python)
        _decide(request)
        if python in torch_pythons(request):
            return request
        requests.append(request)
    # None of them is known: the resolver says so, and which are.
    return requests[0]


def _decide(request: Request) -> None:
    decide_python(request)
    torch = [package for package in request.packages if package.name in TORCH]
    companions = [package for package in request.packages if package.name in COMPANIONS]
    decide_torch(request, torch, companions)
    of_cuda = decide_cuda(request, torch + companions)
    end_torch(request, torch + companions, of_cuda)
    take_others(request)
