# hetagent with torch. From the top of the repository, for nodes with NVIDIA GPUs:
#   docker build -f deploy/docker/agent.Dockerfile --target agent -t hetrdzv-agent \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
# An image for a job of your own begins with FROM hetrdzv-agent and copies its script; the target `digits` is one.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt ./
# First what changes seldom and is large.
RUN python3 -m venv --without-pip /opt/hetrdzv \
 && PIP_CONSTRAINT=constraints.txt python3 -m pip --python /opt/hetrdzv/bin/python install --no-cache-dir \
      --extra-index-url "$TORCH_INDEX" torch numpy
COPY pyproject.toml README.md LICENSE ./
COPY rendezvous rendezvous
COPY agent agent
RUN PIP_CONSTRAINT=constraints.txt python3 -m pip --python /opt/hetrdzv/bin/python install --no-cache-dir '.[agent]'

FROM python:3.11-slim-bookworm AS agent
# tini is process 1: it takes away what grandchildren of workers leave behind, and passes signals on.
RUN apt-get update \
 && apt-get install -y --no-install-recommends 'tini=0.19.*' \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 10001 hetrdzv \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin hetrdzv \
 && install --directory --owner hetrdzv --group hetrdzv --mode 0700 /checkpoints /run/hetrdzv
COPY --from=build /opt/hetrdzv /opt/hetrdzv
COPY deploy/docker/healthcheck.py /opt/hetrdzv/healthcheck.py
# With PIP_PYTHON the system's pip installs beside torch: `USER 0:0`, then `RUN pip install --no-cache-dir ...`
ENV PATH=/opt/hetrdzv/bin:$PATH \
    PIP_PYTHON=/opt/hetrdzv/bin/python \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /job
USER 10001:10001
# Tells whether the server hears this node; needs HET_SERVER, HET_GROUP and HET_TOKEN_FILE in the environment.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-I", "/opt/hetrdzv/healthcheck.py", "agent"]
ENTRYPOINT ["tini", "--", "hetagent"]

FROM agent AS digits
USER 0:0
COPY constraints.txt /tmp/constraints.txt
RUN PIP_CONSTRAINT=/tmp/constraints.txt pip install --no-cache-dir 'scikit-learn>=1.9,<2' \
 && rm /tmp/constraints.txt
COPY examples/digits/train.py /job/train.py
USER 10001:10001
