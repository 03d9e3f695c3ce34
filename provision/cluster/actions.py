"""The actions of the node program, each with the type of its result: node-reply.schema.json checks
that a result has this type. Of an `object` it matters only that the action succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from provision_runtime.node import results

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Action(Generic[ResultT]):
    """name: as provision_runtime/node/program.py has it."""

    name: str


FACTS: Action[results.FitnessFacts] = Action("facts")
DOCTOR: Action[dict[str, Any]] = Action("doctor")
ENVIRONMENT_PYTHON: Action[object] = Action("environment-python")
SMOKE_PREPARE: Action[results.Prepared] = Action("smoke-prepare")
SMOKE_RUN: Action[results.RanksResult] = Action("smoke-run")
# Sent by the shell script of provision/workflow/ship/probe.py.
PROBE: Action[dict[str, bool]] = Action("probe")
STORE_STATUS: Action[results.StoreStatus] = Action("store-status")
STORE_HISTORY: Action[results.History] = Action("store-history")
STORE_RECEIVE: Action[object] = Action("store-receive")
STORE_EXCHANGE: Action[object] = Action("store-exchange")
STORE_INSTALL: Action[results.Installation] = Action("store-install")
STORE_ATTACH: Action[results.Installation] = Action("store-attach")
STORE_ACTIVATE: Action[results.Activation] = Action("store-activate")
STORE_CONTENTS: Action[results.StoreContents] = Action("store-contents")
STORE_LOG: Action[results.StoreLog] = Action("store-log")
STORE_REMOVE: Action[results.RemovedEnvironments] = Action("store-remove")
STORE_MODULE: Action[object] = Action("store-module")
STORE_BOOT: Action[object] = Action("store-boot")
STORE_RELEASE: Action[object] = Action("store-release")
DRIFT_FACTS: Action[results.DriftFacts] = Action("drift-facts")
DISTRIBUTIONS: Action[results.Distributions] = Action("distributions")
JOB_LIST: Action[results.HostJobs] = Action("job-list")
JOB_LOG: Action[results.HostLogs] = Action("job-log")
JOB_RANKS: Action[results.JobRanks] = Action("job-ranks")
JOB_CANCEL: Action[dict[str, list[str]]] = Action("job-cancel")
