"""Metrics of an environment, for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from .results import METRICS
from .store_files import remove_file, write_text

if TYPE_CHECKING:
    from .store import Store

_TEXT = """\
# HELP provision_environment_active The environment that jobs of this name start in.
# TYPE provision_environment_active gauge
provision_environment_active{{name="{name}",key="{key}"}} 1
# HELP provision_environment_activated_seconds When it was last shipped or activated here, Unix time.
# TYPE provision_environment_activated_seconds gauge
provision_environment_activated_seconds{{name="{name}"}} {time:.0f}
"""


def write_metrics(store: Store, name: str, key: str) -> None:
    os.makedirs(store.join(METRICS), exist_ok=True)
    text = _TEXT.format(name=name, key=key, time=time.time())
    write_text(_path(store, name), store.join(METRICS, f".{name}.new"), text)


def remove_metrics(store: Store, name: str) -> None:
    remove_file(_path(store, name))
    remove_file(store.join(METRICS, f"{name}-health.prom"))


def _path(store: Store, name: str) -> str:
    return store.join(METRICS, f"{name}.prom")
