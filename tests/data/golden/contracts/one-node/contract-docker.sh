#!/bin/sh
# Made by provision; remake with: provision image contract toy
set -eu
# The options that torch2.3-cuda12.1-py311 needs, and why:
#   --gpus all: the environment is built for CUDA
#   --init: reaps DataLoader workers and passes signals on
#   --shm-size=16g: DataLoader and NCCL share memory there; the default is 64 MB
#   --ulimit stack=67108864: 64 MiB of stack for threads of compiled code
#   --ulimit memlock=-1: pinned memory for GPU and InfiniBand transfers
#   --device /dev/infiniband --cap-add IPC_LOCK: InfiniBand or RoCE: the adapters' device files, and memory that they may lock
#   --network host: ranks on several hosts reach each other at the hosts' own addresses
exec docker run --rm --interactive --gpus all --init --shm-size=16g --ulimit stack=67108864 --ulimit memlock=-1 --device /dev/infiniband --cap-add IPC_LOCK --network host --user 1234:100 --mount type=bind,source=/scratch/a_b,target=/data,readonly --mount type=volume,source=cache,target=/cache \
    provision/torch2.3-cuda12.1-py311:abababababab python -c 'print('"'"'a: b'"'"')' "$@"
