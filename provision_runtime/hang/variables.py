"""The environment variables with which ranks can be asked why they hang."""

from __future__ import annotations

import os
import re

from .folder import RECORD

FLIGHT_RECORDER_ENTRIES = "2000"
# torch's flight recorder of NCCL, since 2.2. Since 2.8 its variables are named for all backends
# (pytorch#152563). The pipe is created only if the old name of the buffer's size is set too
# (ProcessGroupNCCL.hpp, DumpPipe), and is read every second only with DUMP_ON_TIMEOUT
# (ProcessGroupNCCL.cpp, heartbeatMonitor).
FIRST_WITH_RECORDER, FIRST_WITH_NEW_NAMES = (2, 2), (2, 8)
OLD_BUFFER_SIZE, BUFFER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
OLD_DUMP_FILE, DUMP_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"
DUMP_PIPE, DUMP_ON_TIMEOUT = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"


def rank_variables(torch_version: str, folder: str, *, record: bool = False) -> dict[str, str]:
    """What the environment of every rank should have, unless the user has set it.

    Args:
        torch_version: as `torch.__version__`, or empty if it is unknown: then without the recorder.
        folder: where torch puts its pipes and dumps (`folder.ensure_folder()`).
        record: also the light record of collectives.
    """
    values = {RECORD: "1"} if record else {}
    match = re.match(r"(\d+)\.(\d+)", torch_version)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < FIRST_WITH_RECORDER:
        return values
    # With the number of the job's process, since two jobs of a node have a rank 0 each.
    prefix = f"{folder}/flight-recorder-{os.getpid()}-"
    values[OLD_BUFFER_SIZE] = FLIGHT_RECORDER_ENTRIES
    values[OLD_DUMP_FILE] = values[DUMP_PIPE] = prefix
    values[DUMP_ON_TIMEOUT] = "1"
    if version >= FIRST_WITH_NEW_NAMES:
        values[BUFFER_SIZE], values[DUMP_FILE] = FLIGHT_RECORDER_ENTRIES, prefix
    return values
