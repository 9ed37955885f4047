# syntax=docker/dockerfile:1
# docker build --target cpu -t dreamlab:cpu .
# docker build --target cuda -t dreamlab:cuda .
# docker run --rm -v "$PWD/experiments:/home/lab/experiments" dreamlab:cpu train ppo_cartpole
# docker run --rm --gpus all -v "$PWD/experiments:/home/lab/experiments" dreamlab:cuda train dreamer_walker device=cuda
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS base
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    MUJOCO_GL=egl
WORKDIR /opt/dreamlab
# what the suites draw with; git for the commit in a run's manifest
RUN apt-get update \
 && apt-get install -y --no-install-recommends git libegl1 libegl-mesa0 libgl1-mesa-dri \
 && rm -rf /var/lib/apt/lists/*
COPY constraints.txt ./

FROM base AS cpu-torch
# PyPI's wheel for Linux brings CUDA with it: give the address of an index of CPU wheels to save gigabytes
ARG TORCH_INDEX=""
RUN pip install -c constraints.txt ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} \
    "torch==$(sed -n 's/^torch==//p' constraints.txt)"

FROM base AS cuda-torch
# the wheel brings CUDA's libraries, the host its driver; Triton compiles its launchers with a C compiler
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
RUN pip install -c constraints.txt "torch==$(sed -n 's/^torch==//p' constraints.txt)"
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,graphics

FROM cpu-torch AS cpu
ARG EXTRAS=mujoco,dmc,box2d,atari,minigrid,data,tensorboard,wandb,export,tune
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY configs ./configs
RUN pip install -c constraints.txt ".[${EXTRAS}]" && useradd --create-home --uid 1000 lab
USER 1000
WORKDIR /home/lab
ENTRYPOINT ["dreamlab"]
CMD ["--help"]

FROM cuda-torch AS cuda
ARG EXTRAS=mujoco,dmc,box2d,atari,minigrid,data,tensorboard,wandb,export,tune
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY configs ./configs
RUN pip install -c constraints.txt ".[${EXTRAS}]" && useradd --create-home --uid 1000 lab
USER 1000
WORKDIR /home/lab
ENTRYPOINT ["dreamlab"]
CMD ["--help"]
