# Coordinator and peer daemons; see docker-compose.yml.
FROM python:3.12.12-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
# procps: Spark's start scripts call ps.

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1

WORKDIR /opt/sardonyx
# What changes seldom comes first, so that a change of the code does not install everything again.
COPY requirements-build.lock requirements-runtime.lock ./
RUN pip install --require-hashes -r requirements-build.lock \
    && pip install --require-hashes --no-build-isolation -r requirements-runtime.lock

COPY pyproject.toml setup.py README.md LICENSE ./
COPY coordinator coordinator
COPY peer peer
COPY queues queues
COPY sentinel sentinel
COPY spark_tasks spark_tasks
COPY sardonyx sardonyx
RUN pip install --no-deps --no-build-isolation .

# A number, so that Kubernetes can see that it is not root (runAsNonRoot).
RUN groupadd --gid 10001 sardonyx && useradd --uid 10001 --gid 10001 --create-home sardonyx
USER 10001:10001
WORKDIR /home/sardonyx
CMD ["sardonyx", "--help"]
