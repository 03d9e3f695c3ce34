"""The actions of the node program, each with the type of its result: node-reply.schema.json checks
that a result has this type. Of an `object` it matters only that the action succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from provision_runtime.node.results import (
    Activation,
    Distributions,
    DriftFacts,
    FitnessFacts,
    History,
    HostJobs,
    HostLogs,
    Installation,
    JobRanks,
    Prepared,
    RanksResult,
    RemovedEnvironments,
    StoreContents,
    StoreLog,
    StoreStatus,
)

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Action(Generic[ResultT]):
    """name: as provision_runtime/node/program.py has it."""

    name: str


FACTS = Action[FitnessFacts]("facts")
DOCTOR = Action[dict[str, Any]]("doctor")
ENVIRONMENT_PYTHON = Action[object]("environment-python")
SMOKE_PREPARE = Action[Prepared]("smoke-prepare")
SMOKE_RUN = Action[RanksResult]("smoke-run")
# Sent by the shell script of provision/workflow/ship/probe.py.
PROBE = Action[dict[str, bool]]("probe")
STORE_STATUS = Action[StoreStatus]("store-status")
STORE_HISTORY = Action[History]("store-history")
STORE_RECEIVE = Action[object]("store-receive")
STORE_EXCHANGE = Action[object]("store-exchange")
STORE_INSTALL = Action[Installation]("store-install")
STORE_ATTACH = Action[Installation]("store-attach")
STORE_ACTIVATE = Action[Activation]("store-activate")
STORE_CONTENTS = Action[StoreContents]("store-contents")
STORE_LOG = Action[StoreLog]("store-log")
STORE_REMOVE = Action[RemovedEnvironments]("store-remove")
STORE_MODULE = Action[object]("store-module")
STORE_BOOT = Action[object]("store-boot")
STORE_RELEASE = Action[object]("store-release")
DRIFT_FACTS = Action[DriftFacts]("drift-facts")
DISTRIBUTIONS = Action[Distributions]("distributions")
JOB_LIST = Action[HostJobs]("job-list")
JOB_LOG = Action[HostLogs]("job-log")
JOB_RANKS = Action[JobRanks]("job-ranks")
JOB_CANCEL = Action[dict[str, list[str]]]("job-cancel")
