"""The environment variables with which ranks can be asked why they hang."""

from __future__ import annotations

import os

# The light record of collectives (`record.py`): set by `--record`.
RECORD = "PROVISION_RECORD"
FLIGHT_RECORDER_ENTRIES = "2000"
# torch's names, of ProcessGroupNCCL.hpp and FlightRecorder.hpp in these versions. torch warns of an
# old name where it knows the new one.
BUFFER_SIZE, OLD_BUFFER_SIZE = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
DUMP_FILE, OLD_DUMP_FILE = "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
DUMP_PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
