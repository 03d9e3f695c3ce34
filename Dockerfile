# syntax=docker.io/docker/dockerfile:1.27.0@sha256:bde3983e9c939224420ddaf6b784cc30e09b035a4dea01f581230c50809f372e
# Made by provision from spec.yml; remake with: provision render torch2.3-cuda12.1-py311-pytorch
# sha256 of what follows: 660dc8f60c650f0428c68737178ad89cad4d9b078f6deb7f0cb0741a4f472fe7
#
# In a checkout of provision that has this file and conda-lock.yml in its root, plain `docker build .` does it. Elsewhere the
# build context is conda-lock.yml from this folder and provision_runtime from an installed provision, as one stream:
#   tar -c --exclude=__pycache__ -C THIS_FOLDER Dockerfile conda-lock.yml -C "$(python -c 'import provision, provision_runtime; print(*provision_runtime.__path__)')/.." provision_runtime \
#     | docker build --tag provision/torch2.3-cuda12.1-py311-pytorch:dockerfile -
# It needs BuildKit (the default since Docker 23, else DOCKER_BUILDKIT=1), buildah or podman.

# Replace them with --build-arg. CHANNEL_ALIAS: the address of a mirror that has conda-forge and the lock's channels.
# Secrets never come as arguments. An address with a token: --secret id=channel_alias,src=FILE; logins:
# --secret id=netrc,src=$HOME/.netrc. Neither gets into the image.
ARG BUILDER=docker.io/mambaorg/micromamba:2.3.3@sha256:800e7ade3ffe29c9a9ac2026163131495f8197c3852e572c5835beb4e8a33cd6
ARG BASE=docker.io/library/debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716
ARG CHANNEL_ALIAS=
# The time of all files. BuildKit takes the same argument as the image's date.
ARG SOURCE_DATE_EPOCH=315532800

FROM ${BUILDER} AS environment
ARG CHANNEL_ALIAS
ARG SOURCE_DATE_EPOCH
# Root in this stage only: the image's user must not be able to change /opt/env.
# hadolint ignore=DL3002
USER 0
# NETRC: of micromamba and pip.
ENV CONDA_PKGS_DIRS=/cache/conda PIP_CACHE_DIR=/cache/pip NETRC=/run/secrets/netrc
RUN --mount=type=cache,id=provision-packages,target=/cache,sharing=locked \
    --mount=type=secret,id=channel_alias --mount=type=secret,id=netrc \
    if [ -f /run/secrets/channel_alias ]; then CHANNEL_ALIAS=$(cat /run/secrets/channel_alias); fi \
    && micromamba create --yes --prefix /opt/conda-lock --channel "${CHANNEL_ALIAS:+${CHANNEL_ALIAS}/}conda-forge" conda-lock=4.0.0 python=3.12 \
    && rm -rf /opt/conda-lock/conda-meta
COPY conda-lock.yml provision_runtime/node/image_layers.py /tmp/
# Records of installers have addresses, which lose their logins and tokens. Each folder of /layers becomes a layer.
RUN --mount=type=cache,id=provision-packages,target=/cache,sharing=locked \
    --mount=type=secret,id=channel_alias --mount=type=secret,id=netrc \
    if [ -f /run/secrets/channel_alias ]; then CHANNEL_ALIAS=$(cat /run/secrets/channel_alias); fi \
    && cp /tmp/conda-lock.yml /tmp/addressed-conda-lock.yml \
    && if [ -n "${CHANNEL_ALIAS}" ]; then \
        sed -E -i "s#(url: )https://[^/]+(/.+/(linux-64|linux-aarch64|noarch)/)#\\1${CHANNEL_ALIAS}\\2#" /tmp/addressed-conda-lock.yml; \
    fi \
    && /opt/conda-lock/bin/conda-lock install --micromamba --conda /bin/micromamba --copy --prefix /opt/env /tmp/addressed-conda-lock.yml \
    && rm /tmp/addressed-conda-lock.yml \
    && find /opt/env -depth -type d -name __pycache__ -exec rm -r {} + \
    && chmod -R u=rwX,go=rX /opt/env \
    && find /opt/env/conda-meta /opt/env/lib \( -path '*/conda-meta/*' -o -name direct_url.json \) -type f \
        -exec sed -E -i 's#://[^/@"]+@#://#g; s#/t/[^/"]+/#/#g' {} + \
    && /opt/env/bin/python -I -B /tmp/image_layers.py /opt/env /layers \
        '{"name": "cuda", "conda": ["cuda-*", "cudatoolkit", "cudnn", "cusparselt", "nccl", "libmagma*", "magma*", "libcublas*", "libcudnn*", "libcudss*", "libcufft*", "libcufile*", "libcurand*", "libcusolver*", "libcusparse*", "libnpp*", "libnvfatbin*", "libnvjitlink*", "libnvjpeg*", "libnvptxcompiler*", "libnvvm*"], "wheels": ["nvidia-*", "cuda-*"], "at_least": 0, "reason": "gigabytes, the same for each torch of one CUDA"}' \
        '{"name": "torch", "conda": ["pytorch", "pytorch-*", "libtorch", "triton", "torchtriton"], "wheels": ["torch", "triton"], "at_least": 0, "reason": "gigabytes, changes with torch only"}' \
    && find /layers -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +
COPY provision_runtime /layers/provision/opt/env/lib/python3.11/site-packages/provision_runtime
# Python reads .pth files at the top only.
RUN mv /layers/provision/opt/env/lib/python3.11/site-packages/provision_runtime/hang/provision_runtime.pth /layers/provision/opt/env/lib/python3.11/site-packages/ \
    && mkdir -p /layers/provision/usr/local/bin /layers/provision/workspace \
    && printf '%s\n' '#!/bin/sh' '# The smoke test of this environment: provision-smoke --out DIR' 'exec /opt/env/bin/python -I -m provision_runtime smoke "$@"' > /layers/provision/usr/local/bin/provision-smoke \
    && chmod -R u=rwX,go=rX /layers/provision \
    && chmod 0755 /layers/provision/usr/local/bin/provision-smoke \
    && chmod 1777 /layers/provision/workspace \
    && find /layers/provision -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

FROM ${BASE}
ARG BASE
COPY --from=environment /layers/cuda /opt/env
COPY --from=environment /layers/torch /opt/env
COPY --from=environment /layers/python /opt/env
COPY --from=environment /layers/provision /
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
    PROVISION_LOCK_HASH=e045d75cbc98f229d3a6b88c18cb0bbacd528ef5b18ef47d7fc06f1a0a575026 \
    PYTORCH_VERSION=2.3.1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA='cuda>=12.1 driver>=525.60.13'
LABEL \
    org.opencontainers.image.base.name="${BASE}" \
    org.opencontainers.image.description='PyTorch 2.3.1, CUDA 12.1, Python 3.11' \
    org.opencontainers.image.title=torch2.3-cuda12.1-py311-pytorch \
    org.opencontainers.image.version=e045d75cbc98 \
    org.provision.cuda=12.1 \
    org.provision.driver-floor=525.60.13 \
    org.provision.lock=e045d75cbc98f229d3a6b88c18cb0bbacd528ef5b18ef47d7fc06f1a0a575026 \
    org.provision.nccl=2.20.5 \
    org.provision.python=3.11 \
    org.provision.tool=0.2.0 \
    org.provision.torch=2.3.1
USER 1000:1000
WORKDIR /workspace
ENTRYPOINT []
CMD ["/opt/env/bin/python"]
