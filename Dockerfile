# Coordinator and peer daemons; see docker-compose.yml. BASE may name the image by its digest; docs/deploy.md has the command.
ARG BASE=python:3.12.12-slim-bookworm

# What builds stays here: of this stage only what was installed gets into the image.
FROM ${BASE} AS build

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /src
# What changes seldom comes first, so that a change of the code does not install everything again.
COPY requirements-build.lock requirements-runtime.lock ./
RUN pip install --require-hashes -r requirements-build.lock \
    && pip install --require-hashes --no-build-isolation --ignore-installed --prefix=/installed -r requirements-runtime.lock

COPY pyproject.toml setup.py README.md LICENSE ./
COPY coordinator coordinator
COPY peer peer
COPY queues queues
COPY sentinel sentinel
COPY spark_tasks spark_tasks
COPY sardonyx sardonyx
RUN pip install --no-deps --no-build-isolation --prefix=/installed .

FROM ${BASE}

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
# procps: Spark's start scripts call ps.

ENV PYTHONUNBUFFERED=1

COPY --from=build /installed /usr/local

# A number, so that Kubernetes can see that it is not root (runAsNonRoot).
RUN groupadd --gid 10001 sardonyx && useradd --uid 10001 --gid 10001 --create-home sardonyx

# They change with each commit, so they come last.
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Sardonyx" \
      org.opencontainers.image.description="Exactly-once dataflow jobs on Spark between Kafka queues" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

USER 10001:10001
WORKDIR /home/sardonyx
CMD ["sardonyx", "--help"]
