#!/bin/sh
# Made by provision; remake with: provision image contract toy
set -eu
# Run this on each of 4 hosts: NODE_RANK=0 HEAD=HOST sh THIS_FILE, with another NODE_RANK on each.
: "${NODE_RANK:?the number of this host, from 0 to 3}" "${HEAD:?the name or address of host 0}"
# The hosts know each other by a key, the same on each, that no other user may know: openssl rand -hex 32
export PROVISION_JOB_KEY="${PROVISION_JOB_KEY:?a key of 32 characters or more, the same on each host}"
# The options that torch2.3-cuda12.1-py311 needs, and why:
#   --gpus 8: the environment is built for CUDA
#   --init: reaps DataLoader workers and passes signals on
#   --shm-size=8g: DataLoader and NCCL share memory there; the default is 64 MB
#   --ulimit stack=67108864: 64 MiB of stack for threads of compiled code
#   --ulimit memlock=-1: pinned memory for GPU and InfiniBand transfers
#   --device /dev/infiniband --cap-add IPC_LOCK: InfiniBand or RoCE: the adapters' device files, and memory that they may lock
#   --network host: ranks on several hosts reach each other at the hosts' own addresses
# provision_runtime compares the hosts, then starts one process for each GPU with torchrun.
exec docker run --rm --interactive --env PROVISION_JOB_KEY --gpus 8 --init --shm-size=8g --ulimit stack=67108864 --ulimit memlock=-1 --device /dev/infiniband --cap-add IPC_LOCK --network host \
    provision/torch2.3-cuda12.1-py311:abababababab /opt/env/bin/python -s -m provision_runtime job --nodes=4 --ranks=8 --gpus=8 --lock=cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd --id=toy --node="$NODE_RANK" --head="$HEAD" -- train.py --data '/d/a b' '$HOME' "$@"
