#!/usr/bin/env bash
# Makes a Debian base image in the Docker engine, without a registry. Usage: make_base.sh NAME
set -euo pipefail
scratch=$(mktemp -d /tmp/provision-base-XXXXXX) # debootstrap takes no path with a space
# In memory: dpkg syncs every file that it writes.
mount -t tmpfs tmpfs "$scratch"
trap 'umount "$scratch"; rmdir "$scratch"' EXIT
debootstrap --variant=minbase bookworm "$scratch/root" >"$scratch/log" || { tail -n 20 "$scratch/log"; exit 1; }
tar -C "$scratch/root" -c . | docker import - "$1"
