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
# What changes seldom comes first, so that a change of code does not install everything again.
COPY requirements-build.lock requirements.lock ./
RUN pip install --require-hashes -r requirements-build.lock \
    && pip install --require-hashes --no-build-isolation -r requirements.lock

COPY pyproject.toml README.md ./
COPY coordinator coordinator
COPY peer peer
COPY queues queues
COPY sentinel sentinel
COPY spark_tasks spark_tasks
COPY sardonyx sardonyx
RUN pip install --no-deps --no-build-isolation .

RUN useradd --create-home sardonyx
USER sardonyx
WORKDIR /home/sardonyx
CMD ["sardonyx", "--help"]
