"""Why uv found no wheels: the conflicting requirements with their reasons, and uv's own sentence
about only these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from packaging.utils import canonicalize_name

from provision.adapters import uv
from provision.catalog import releases
from provision.core.errors import ProvisionError, Unsolvable
from provision.core.package_names import requirement_name
from provision.lockfile.diagnose.unsat_core import (
    Budget,
    OutOfTime,
    PinReasons,
    minimal,
    nearest_pythons,
    suggestions,
    undiagnosed,
)

# CPU seconds. One call of uv takes 0.3 to 1 s.
BUDGET_S = 20.0
DETAILS_ADVICE = "-v shows the solver's own output."


def explain(error: Unsolvable, request: uv.ResolveRequest, reasons: PinReasons) -> Unsolvable:
    """The same failure, with its cause if the budget suffices to find it."""
    try:
        return _WheelConflict(error, request, reasons, Budget(BUDGET_S)).diagnose()
    except (OutOfTime, ProvisionError) as reason:
        return undiagnosed(error, reason)


class _WheelConflict:
    """One request to uv that has no answer."""

    def __init__(
        self, error: Unsolvable, request: uv.ResolveRequest, reasons: PinReasons, budget: Budget
    ) -> None:
        # Preferred versions cannot cause a conflict.
        self.request = replace(request, prefer={}, new_requirements=None)
        self.error, self.reasons, self.budget = error, reasons, budget

    def diagnose(self) -> Unsolvable:
        request = self.request
        if self._failure(request.requirements, request.provided) is None:
            return self.error  # the versions exist, but a file does not: the error says which
        by_weight = sorted(request.requirements, key=self.reasons.weight)
        core = minimal(by_weight, lambda some: self._failure(some, request.provided) is None)
        provided = self._conflicting_provided(core)
        last_failure = self._failure(core, provided) or self.error
        cause = self._hiding_fact(core, provided) or _uv_sentence(last_failure)
        from_conda = ""
        if provided:
            versions = ", ".join(f"{name} {version}" for name, version in provided.items())
            from_conda = f" together with conda's {versions}"
        target = f"{request.platform}, Python {request.python}"
        return Unsolvable(
            f"No wheels for {target} satisfy {self.reasons.describe(core)}{from_conda}: {cause}",
            advice=f"{self._alternatives(core)}{self._index_advice(core)}{DETAILS_ADVICE}",
            details=self.error.details,
        )

    def _failure(
        self, requirements: Sequence[str], provided: Mapping[str, str]
    ) -> Unsolvable | None:
        """The error for these requirements, or None if they can be solved."""
        self.budget.check()
        try:
            uv.resolve_versions(
                replace(self.request, requirements=tuple(requirements), provided=provided)
            )
        except Unsolvable as error:
            return error
        return None

    def _conflicting_provided(self, core: Sequence[str]) -> dict[str, str]:
        """The versions of conda's packages with which the requirements conflict."""
        provided = self.request.provided
        if not provided or self._failure(core, {}) is not None:
            return {}

        def is_solvable(names: Sequence[str]) -> bool:
            return self._failure(core, {name: provided[name] for name in names}) is None

        return {name: provided[name] for name in minimal(sorted(provided), is_solvable)}

    def _hiding_fact(self, core: Sequence[str], provided: Mapping[str, str]) -> str | None:
        """The assumed glibc or the date, if wheels exist without that limit."""
        request = replace(self.request, requirements=tuple(core), provided=provided)
        newest_glibc = replace(request, glibc=uv.UV_GLIBC[-1])
        attempts = [(f"they need a newer glibc than {request.glibc} (--glibc).", newest_glibc)]
        if request.as_of:
            today = replace(request, as_of=None)
            attempts.append((f"they were published after {request.as_of} (`as_of`).", today))
        for fact, attempt in attempts:
            self.budget.check()
            try:
                uv.resolve_versions(attempt)
            except Unsolvable:
                continue
            return fact
        return None

    def _alternatives(self, core: Sequence[str]) -> str:
        """What else could be requested, or left out."""
        request = self.request
        changes = self._other_python() + suggestions(
            request.requirements,
            core,
            self.reasons,
            self._other_version,
            lambda rest: self._failure(rest, request.provided) is None,
        )
        return f"Without other changes, {', or '.join(changes)}. " if changes else ""

    def _other_version(self, text: str) -> str | None:
        """The package and version that solve the request in place of this requirement."""
        self.budget.check()
        name = requirement_name(text)
        requirements = tuple(
            name if other == text else other for other in self.request.requirements
        )
        if requirements == self.request.requirements:
            return None
        try:
            versions = uv.resolve_versions(replace(self.request, requirements=requirements))
        except Unsolvable:
            return None
        return f"{name} {versions[canonicalize_name(name)]}"

    def _other_python(self) -> list[str]:
        """The option for the nearest Python for which there are wheels. conda's packages are not
        part of it: those of the lock are for this Python.
        """
        pythons = {python for release in releases().values() for python in release.python}
        for other in nearest_pythons(self.request.python, pythons):
            request = replace(self.request, python=other, provided={})
            self.budget.check()
            try:
                uv.resolve_versions(request)
            except Unsolvable:
                continue
            return [f"--python {other} has wheels of everything"]
        return []

    def _index_advice(self, core: Sequence[str]) -> str:
        """Advice about the index that must be configured for builds with a local version."""
        build_path = self.request.build_path
        if build_path is None or not any("+" in text for text in core):
            return ""
        index = uv.torch_index_url(build_path) or "nothing, since it is not set"
        return (
            f"Builds with +{build_path} are on PyTorch's own wheel index: {uv.TORCH_INDEX} is its "
            f"address, without the folder {build_path} at its end, and leads to {index}. "
        )


def _uv_sentence(error: Unsolvable) -> str:
    """uv's sentence, without its conclusion and hint."""
    sentence = error.message.partition(": ")[2]
    sentence = re.sub(
        r",? (we can conclude that|it follows that) your requirements are unsatisfiable",
        "",
        sentence,
    )
    return sentence.partition(" hint: ")[0].rstrip(". ") + "."
