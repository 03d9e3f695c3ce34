"""The environment variables with which ranks can be asked why they hang."""

from __future__ import annotations

import os

from .folder import RECORD

FLIGHT_RECORDER_ENTRIES = "2000"
# torch's flight recorder of NCCL, since 2.2. Since 2.8 its variables are named for all backends
# (pytorch#152563). The pipe is created only if the old name of the buffer's size is set too
# (ProcessGroupNCCL.hpp, DumpPipe), and is read every second only with DUMP_ON_TIMEOUT
# (ProcessGroupNCCL.cpp, heartbeatMonitor). Each release ignores the names that it does not know.
OLD_BUFFER_SIZE, BUFFER_SIZE = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"
OLD_DUMP_FILE, DUMP_FILE = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"
DUMP_PIPE, DUMP_ON_TIMEOUT = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_NCCL_DUMP_ON_TIMEOUT"


def rank_variables(folder: str, *, record: bool = False) -> dict[str, str]:
    """What the environment of every rank should have, unless the user has set it.

    Args:
        folder: where torch puts its pipes and dumps (`folder.ensure_folder()`).
        record: also the light record of collectives.
    """
    values = {RECORD: "1"} if record else {}
    values.update(dict.fromkeys((OLD_BUFFER_SIZE, BUFFER_SIZE), FLIGHT_RECORDER_ENTRIES))
    # With the number of the job's process, since two jobs of a node have a rank 0 each.
    prefix = f"{folder}/flight-recorder-{os.getpid()}-"
    values.update(dict.fromkeys((OLD_DUMP_FILE, DUMP_FILE, DUMP_PIPE), prefix))
    return {**values, DUMP_ON_TIMEOUT: "1"}
