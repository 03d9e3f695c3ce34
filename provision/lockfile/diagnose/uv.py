"""Why uv found no wheels: the conflicting requirements with their reasons, and uv's own sentence
about only these.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from provision.adapters import uv
from provision.catalog import releases
from provision.core.errors import ProvisionError, Unsolvable
from provision.lockfile.diagnose.unsat_core import (
    DETAILS_ADVICE,
    WITH,
    Budget,
    OutOfTime,
    PinReasons,
    minimal,
    solutions,
    undiagnosed,
)

# CPU seconds. One call of uv takes 0.3 to 1 s.
BUDGET_S = 20.0


def explain(error: Unsolvable, request: uv.ResolveRequest, reasons: PinReasons) -> Unsolvable:
    """The same failure, with its cause if the budget suffices to find it."""
    if (
        uv.NO_SOLUTION not in error.details
    ):  # a source archive that cannot be built: the error says so
        return error
    try:
        return _explained(error, request, reasons)
    except (OutOfTime, ProvisionError) as reason:
        return undiagnosed(error, reason)


def _explained(error: Unsolvable, request: uv.ResolveRequest, reasons: PinReasons) -> Unsolvable:
    budget = Budget(BUDGET_S)
    # Preferred versions cannot cause a conflict.
    request = replace(request, prefer={}, new_requirements=None)
    of_conda = {f"{name} {version}": name for name, version in request.provided.items()}

    def failure(elements: Collection[str], python: str = request.python) -> Unsolvable | None:
        """uv's error for some requirements and packages of conda; None if it has an answer."""
        budget.check()
        requirements = tuple(text for text in request.requirements if text in elements)
        names = [name for text, name in of_conda.items() if text in elements]
        provided = {name: request.provided[name] for name in names}
        try:
            uv.resolve_versions(
                replace(request, requirements=requirements, provided=provided, python=python)
            )
        except Unsolvable as error:
            return error
        return None

    everything = [*sorted(request.requirements, key=reasons.weight), *sorted(of_conda)]
    if failure(everything) is None:
        return error  # the versions exist, but a file does not: the error says which
    elements = minimal(everything, lambda some: failure(some) is None)
    core = [text for text in elements if text not in of_conda]
    from_conda = [text for text in elements if text in of_conda]
    together = f" together with conda's {', '.join(from_conda)}" if from_conda else ""

    def solves(option: str) -> bool:
        if option.startswith("--python "):
            # conda's packages are those of the lock's Python.
            return failure(request.requirements, option.removeprefix("--python ")) is None
        out = option.split(WITH)
        return failure([text for text in everything if reasons.option(text) not in out]) is None

    pythons = {python for release in releases().values() for python in release.python}
    advice = solutions(core, reasons, solves, request.python, pythons)
    sentence = _uv_sentence(failure(elements) or error)
    if "matching platform tag" in sentence:
        advice += f"The machine is assumed to have glibc {request.glibc} (--glibc). "
    return Unsolvable(
        f"No wheels for {request.platform}, Python {request.python} satisfy "
        f"{reasons.describe(core)}{together}: {sentence}",
        advice=f"{advice}{_index_advice(request, core)}{DETAILS_ADVICE}",
        details=error.details,
    )


def _index_advice(request: uv.ResolveRequest, core: Sequence[str]) -> str:
    """Advice about the index that must be configured for builds with a local version."""
    if request.build_path is None or not any("+" in text for text in core):
        return ""
    index = uv.torch_index_url(request.build_path) or "nothing, since it is not set"
    return (
        f"Builds with +{request.build_path} are on PyTorch's own wheel index: {uv.TORCH_INDEX} is its "
        f"address, without the folder {request.build_path} at its end, and leads to {index}. "
    )


def _uv_sentence(error: Unsolvable) -> str:
    """uv's sentence and hint, without its conclusion and options that are uv's own."""
    sentence = error.message.partition(": ")[2].partition(" Consider using ")[0]
    conclusion = r",? (we can conclude that|it follows that) your requirements are unsatisfiable"
    sentence = re.sub(conclusion, "", sentence).replace("`exclude-newer`", "`as_of`")
    return sentence.rstrip(". ") + "."
