# clear_mlflow in a container: `docker build -t clear_mlflow .` for CPUs, and for NVIDIA's GPUs
#   docker build -t clear_mlflow --build-arg BASE=nvidia/cuda:12.8.1-base-ubuntu24.04 .
# The wheels of torch bring CUDA's libraries; of the GPU base only what the driver needs is used.
# docs/distributed.md explains how to run it.
ARG BASE=python:3.11-slim-bookworm
FROM ${BASE}

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# git: MLflow keeps the commit of a project in the run. A base without Python gets the distribution's.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git \
    && if ! command -v python3; then apt-get install --yes --no-install-recommends python3 python3-venv; fi \
    && rm -rf /var/lib/apt/lists/*

RUN python3 -m venv /opt/clear_mlflow
ENV PATH=/opt/clear_mlflow/bin:$PATH \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# What we depend on comes first: the layer with torch stays when only our own code changes.
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY clear_mlflow/core/version.py clear_mlflow/core/version.py
RUN touch clear_mlflow/__init__.py && pip install -c constraints.txt .
COPY clear_mlflow clear_mlflow
# Nobody is root while training. The data, the cache and a local store are folders of the one who runs it.
RUN pip install --no-deps --force-reinstall . && useradd --create-home --uid 10001 clear

USER 10001
WORKDIR /home/clear
# No ENTRYPOINT: `mlflow run` hands the container a whole command.
CMD ["clear-mlflow", "--help"]
