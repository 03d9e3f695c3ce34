# Made by provision from spec.yml; remake with: provision render torch2.3-cuda12.1-py311-pytorch
# sha256 of what follows: e58e8d0e6a1c07885826b25670094ee346a748cb9b07a01dc9e20ea973b6d4ed
#
# The build context is conda-lock.yml from this folder and provision_runtime from an installed provision, as one stream:
#   tar -c --exclude=__pycache__ -C THIS_FOLDER Dockerfile conda-lock.yml -C "$(python -c 'import provision_runtime; print(*provision_runtime.__path__)')/.." provision_runtime \
#     | docker build --tag provision/torch2.3-cuda12.1-py311-pytorch:dockerfile -

FROM docker.io/mambaorg/micromamba:2.3.3@sha256:800e7ade3ffe29c9a9ac2026163131495f8197c3852e572c5835beb4e8a33cd6 AS environment
# Root in this stage only: the image's user must not be able to change /opt/env.
# hadolint ignore=DL3002
USER 0
RUN micromamba create --yes --prefix /opt/conda-lock --channel conda-forge conda-lock=4.0.0 python=3.12 \
    && micromamba clean --all --yes
COPY conda-lock.yml /tmp/conda-lock.yml
RUN /opt/conda-lock/bin/conda-lock install --micromamba --conda /bin/micromamba --copy --prefix /opt/env /tmp/conda-lock.yml \
    && find /opt/env -depth -type d -name __pycache__ -exec rm -r {} + \
    && chmod -R u=rwX,go=rX /opt/env

FROM docker.io/library/debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716
# The base's user may not be allowed to write here; the image's user is set below.
USER 0
COPY --from=environment /opt/env /opt/env
COPY provision_runtime /opt/env/lib/python3.11/site-packages/provision_runtime
RUN printf '%s\n' '#!/bin/sh' '# The smoke test of this environment: provision-smoke --out DIR' 'exec /opt/env/bin/python -I -m provision_runtime smoke "$@"' > /usr/local/bin/provision-smoke \
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
    PROVISION_LOCK_HASH=91eab0011a6afdbc9e3c1b2e0ed86f45eaf07f015b928c95fc5a2e6fff8dedd5 \
    PYTORCH_VERSION=2.3.1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_REQUIRE_CUDA='cuda>=12.1 driver>=525.60.13'
LABEL \
    org.opencontainers.image.base.digest=sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716 \
    org.opencontainers.image.base.name=docker.io/library/debian:bookworm-slim@sha256:96e378d7e6531ac9a15ad505478fcc2e69f371b10f5cdf87857c4b8188404716 \
    org.opencontainers.image.description='PyTorch 2.3.1, CUDA 12.1, Python 3.11' \
    org.opencontainers.image.title=torch2.3-cuda12.1-py311-pytorch \
    org.opencontainers.image.version=91eab0011a6a \
    org.provision.cuda=12.1 \
    org.provision.driver-floor=525.60.13 \
    org.provision.lock=91eab0011a6afdbc9e3c1b2e0ed86f45eaf07f015b928c95fc5a2e6fff8dedd5 \
    org.provision.nccl=2.20.5 \
    org.provision.python=3.11 \
    org.provision.tool=0.1.0 \
    org.provision.torch=2.3.1
HEALTHCHECK --interval=60s --timeout=30s --retries=3 CMD ["/opt/env/bin/python", "-I", "-m", "provision_runtime.facts.health"]
USER 1000:1000
WORKDIR /workspace
ENTRYPOINT []
CMD ["/opt/env/bin/python"]
