# Made by provision from spec.yml; remake with: provision render torch2.3-cuda12.1-py311-pytorch
# sha256 of what follows: bfbcfe68a12b3449e346945044c84f5e6752834194afe9ca044f850d8ee38e60
#
# In a checkout of provision that has this file and conda-lock.yml in its root, plain `docker build .` does it. Elsewhere the
# build context is conda-lock.yml from this folder and provision_runtime from an installed provision, as one stream:
#   tar -c --exclude=__pycache__ -C THIS_FOLDER Dockerfile conda-lock.yml -C "$(python -c 'import provision, provision_runtime; print(*provision_runtime.__path__)')/.." provision_runtime \
#     | docker build --tag provision/torch2.3-cuda12.1-py311-pytorch:dockerfile -

# Replace them with --build-arg. CHANNEL_ALIAS: the address of a mirror that has conda-forge and the lock's channels.
ARG BUILDER=docker.io/mambaorg/micromamba:2.3.3@sha256:800e7ade3ffe29c9a9ac2026163131495f8197c3852e572c5835beb4e8a33cd6
ARG BASE=docker.io/library/debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716
ARG CHANNEL_ALIAS=

FROM ${BUILDER} AS environment
ARG CHANNEL_ALIAS
# Root in this stage only: the image's user must not be able to change /opt/env.
# hadolint ignore=DL3002
USER 0
RUN micromamba create --yes --prefix /opt/conda-lock --channel "${CHANNEL_ALIAS:+${CHANNEL_ALIAS}/}conda-forge" conda-lock=4.0.0 python=3.12 \
    && micromamba clean --all --yes
COPY conda-lock.yml /tmp/conda-lock.yml
RUN if [ -n "${CHANNEL_ALIAS}" ]; then \
        sed -E -i "s#(url: )https://[^/]+(/.+/(linux-64|linux-aarch64|noarch)/)#\\1${CHANNEL_ALIAS}\\2#" /tmp/conda-lock.yml; \
    fi \
    && /opt/conda-lock/bin/conda-lock install --micromamba --conda /bin/micromamba --copy --prefix /opt/env /tmp/conda-lock.yml \
    && find /opt/env -depth -type d -name __pycache__ -exec rm -r {} + \
    && chmod -R u=rwX,go=rX /opt/env

FROM ${BASE}
ARG BASE
# The base's user may not be allowed to write here; the image's user is set below.
USER 0
COPY --from=environment /opt/env /opt/env
COPY provision_runtime /opt/env/lib/python3.11/site-packages/provision_runtime
# Python reads .pth files at the top only.
RUN mv /opt/env/lib/python3.11/site-packages/provision_runtime/hang/provision_runtime.pth /opt/env/lib/python3.11/site-packages/ \
    && printf '%s\n' '#!/bin/sh' '# The smoke test of this environment: provision-smoke --out DIR' 'exec /opt/env/bin/python -I -m provision_runtime smoke "$@"' > /usr/local/bin/provision-smoke \
    && chmod 0755 /usr/local/bin/provision-smoke \
    && mkdir -p /workspace \
    && chmod 1777 /workspace
# Variables of the base that would lead out of the environment cannot be removed here, only emptied; its PATH comes after ours.
ENV \
    LD_LIBRARY_PATH= \
    LD_PRELOAD= \
    PYTHONPATH= \
    PYTHONHOME= \
    PATH="/opt/env/bin:${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}" \
    CONDA_PREFIX=/opt/env \
    PYTHONNOUSERSITE=1 \
    HOME=/tmp \
    USER=provision \
    PROVISION_LOCK_HASH=446b61032f9abdc5879ea7038dba369623b51ce0e3549038789c2a765ce242fe \
    PYTORCH_VERSION=2.3.1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA='cuda>=12.1 driver>=525.60.13'
LABEL \
    org.opencontainers.image.base.name="${BASE}" \
    org.opencontainers.image.description='PyTorch 2.3.1, CUDA 12.1, Python 3.11' \
    org.opencontainers.image.title=torch2.3-cuda12.1-py311-pytorch \
    org.opencontainers.image.version=446b61032f9a \
    org.provision.cuda=12.1 \
    org.provision.driver-floor=525.60.13 \
    org.provision.lock=446b61032f9abdc5879ea7038dba369623b51ce0e3549038789c2a765ce242fe \
    org.provision.nccl=2.20.5 \
    org.provision.python=3.11 \
    org.provision.tool=0.2.0 \
    org.provision.torch=2.3.1
HEALTHCHECK --interval=60s --timeout=30s --retries=3 CMD ["/opt/env/bin/python", "-I", "-m", "provision_runtime.facts.health"]
USER 1000:1000
WORKDIR /workspace
ENTRYPOINT []
CMD ["/opt/env/bin/python"]
