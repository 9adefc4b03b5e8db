# Each target makes what it needs, once. You need Python 3.11 or newer, Java 17 or newer, and make.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo docs test test-all test-touched test-secured check quick core simulated simulate faults soak test-long test-upgrade test-browser pictures test-prometheus test-deploy bench bench-coordination bench-secured bench-web test-compose lock clean java compiled

VENV := .venv
BIN := $(VENV)/bin
# Two processes, each with services of its own, because the tests wait for real services more than they compute.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
# What runs for a minute or more, or needs what a machine may not have, has targets of its own.
QUICK := "not long and not prometheus and not browser"
AGAIN := $(MAKE) --no-print-directory
READY := $(VENV)/.ready
CLASSES := $(VENV)/spark-classes.jsa
export SARDONYX_TEST_CLUSTER := $(CLUSTER)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
UPGRADE := --upgrade
# A plain folder on the path, which mypy and editors find too; setuptools' default is a hook that they do not follow.
EDITABLE := --no-build-isolation --config-settings editable_mode=compat --editable
DOCS := .venv-docs
# The first Python that is new enough. To use another one: make PYTHON=/path/to/python
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(READY) java compiled ## run examples/flights on embedded ZooKeeper and Kafka, and show its result
	@$(BIN)/sardonyx run examples/flights/job.py --peers 4

# What each runs, in which order, and what the verdict is: tests/stages.py.
test: $(CLASSES) ## check, the core, 1,500 simulated histories, and a test on real services for each promise: 12 minutes on two cores
	@$(BIN)/python -m tests.stages test

test-all: $(CLASSES) ## all tests but those that need a browser, prometheus, or minutes each: 60 minutes on two cores
	@$(BIN)/python -m tests.stages test-all

test-touched: $(CLASSES) ## the core, and the tests on services for what changed since a commit: make test-touched BASE=main
	@$(BIN)/python -m tests.stages test-touched --base $(or $(BASE),HEAD)

test-secured: $(CLASSES) ## the tests on services on ZooKeeper and Kafka with TLS and a login, but those that speak plain; FILES=... for some
	@SECURED=1 $(PYTEST) -m $(QUICK) -rs $(or $(FILES),tests/services)

$(CLASSES): $(READY) | java compiled
	@$(BIN)/python -m tests.class_archive $@ >/dev/null || echo "no archive of Spark's classes: the tests start Spark without one" >&2

check: $(READY) ## lint, format, types, layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

quick: $(READY) ## the tests of the pure core and 200 simulated histories
	@$(AGAIN) core
	@$(AGAIN) simulate SEEDS=200

core: $(READY) ## the tests of the pure core: no services, and no package that talks to one
	@$(PYTEST) -p tests.without_services tests/core

simulated: $(READY) ## ten thousand histories of a simulated cluster, and the tests of the simulation
	@SARDONYX_ALL_HISTORIES=1 $(PYTEST) --dist worksteal tests/simulation

simulate: $(READY) ## any number of histories, from any first seed: make simulate SEEDS=5000 FIRST=700000
	@$(BIN)/python tests/simulation/simulate.py --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) --kind $(or $(KIND),cluster) \
	$(if $(WITHOUT),--without $(WITHOUT)) $(if $(PLAN),--plan $(PLAN))

faults: $(READY) java compiled ## jobs on real services under seeded faults: make faults SEED=7 FAULTS=40 SHAPE=all; the last line says how it ended
	@$(BIN)/python -m tests.faults.harness --faults $(or $(FAULTS),40) --shape $(or $(SHAPE),all) \
	$(if $(SEED),--seed $(SEED)) $(if $(RECORDS),--records $(RECORDS)) $(if $(STORE),--store $(STORE)) $(if $(PEERS),--peers $(PEERS)) \
	$(if $(COORDINATORS),--coordinators $(COORDINATORS)) $(if $(KINDS),--kinds $(KINDS)) $(if $(SPARK),--spark $(SPARK)) $(if $(LANES),--lanes $(LANES)) $(if $(CLUSTER),--cluster $(CLUSTER))

soak: $(READY) java compiled ## an unbounded job for an hour, a fault a minute: nothing lost, nothing grows; SECONDS=1800 RATE=0 (as fast as it goes)
	@$(PIP) $(EDITABLE) '.[bench]'
	@$(BIN)/python -m tests.faults.soak $(if $(SEED),--seed $(SEED)) --seconds $(or $(SECONDS),3600) $(if $(RATE),--rate $(RATE)) \
	$(if $(EVERY),--every $(EVERY)) $(if $(PEERS),--peers $(PEERS)) $(if $(COORDINATORS),--coordinators $(COORDINATORS)) $(if $(KINDS),--kinds $(KINDS)) \
	$(if $(SPARK),--spark $(SPARK)) $(if $(CLUSTER),--cluster $(CLUSTER)) $(if $(OUT),--out $(OUT))

test-browser: $(CLASSES) ## the pages of `sardonyx web` in Chromium (apt-get install chromium): SHOTS=DIR keeps pictures
	@$(PIP) --require-hashes -r requirements-browser.lock
	@SARDONYX_TEST_SHOTS=$(SHOTS) $(PYTEST) -m browser tests/browser $(addprefix tests/services/test_web,.py _rows.py _actions.py)

pictures: $(CLASSES) ## the pictures of the pages in docs/images/web, made anew by the tests that look at these pages; look at them too
	@$(PIP) --require-hashes -r requirements-browser.lock
	@SARDONYX_TEST_PICTURES=1 $(BIN)/pytest -m browser tests/browser/test_pages.py -k "whole and light and wide"

test-prometheus: $(READY) java compiled ## the alerts and the board on a real Prometheus (apt-get install prometheus) that reads a running deployment
	@command -v prometheus promtool >/dev/null || { echo "prometheus is missing; Debian and Ubuntu: sudo apt-get install prometheus" >&2; exit 1; }
	@$(BIN)/pytest tests/core/test_alerts.py tests/services/test_prometheus.py

test-deploy: $(READY) ## what systemd and the schemas of Kubernetes say of the files in deploy/; starts nothing
	@$(PIP) $(EDITABLE) '.[deploy]'
	@$(BIN)/pytest tests/core/test_deploy.py tests/deploy

test-long: $(CLASSES) ## the runs of a minute or more, one after the other: faults would slow down others
	@$(BIN)/pytest -m long

test-upgrade: $(READY) java compiled ## the release before beside this one, under kills; needs the history of this repository: SEED=7 for the same run again
	@SEED=$(SEED) $(BIN)/pytest -s -m upgrade tests/upgrade

bench: $(READY) java compiled ## Sardonyx beside Structured Streaming, Kafka Streams, Flink, Bytewax, Pathway, Quix Streams and a bare copy: hours; PART=topic for one part, RUNS=5
	@$(PIP) $(EDITABLE) '.[bench]'
	@$(BIN)/python bench/performance.py --runs $(or $(RUNS),5) $(if $(PART),--part $(PART)) $(if $(RECORDS),--records $(RECORDS))

bench-coordination: $(READY) java compiled ## the coordinator at scale: about 15 minutes, figures and plots in bench/results/coordination
	@$(PIP) $(EDITABLE) '.[bench]'
	@$(BIN)/python bench/coordination.py

bench-secured: $(READY) java compiled ## the coordinator on services with TLS, logins and ACLs beside open ones; PART=few for one part
	@$(PIP) $(EDITABLE) '.[bench]'
	@$(BIN)/python bench/coordination_secured.py $(if $(PART),--part $(PART))

bench-web: $(READY) java compiled ## the pages with 200 viewers, a long log and a job of 200 tasks: about 20 minutes; PART=paint for one part
	@$(PIP) --require-hashes -r requirements-browser.lock
	@$(BIN)/python bench/bench_web.py $(if $(PART),--part $(PART))

# First the cluster's own coordinators and peers run a job; then the suite starts its own daemons beside them.
test-compose: $(READY) java compiled ## a job on the cluster of docker-compose.yml, and the same suite on its services
	@mkdir -p "$${SARDONYX_SHARED:-/tmp/sardonyx-shared}" && chmod a+rwx "$${SARDONYX_SHARED:-/tmp/sardonyx-shared}"
	@docker compose up --build --detach --wait
	@status=0; \
	zookeeper=127.0.0.1:$${SARDONYX_ZOOKEEPER_PORT:-2181}; kafka=127.0.0.1:$${SARDONYX_KAFKA_PORT:-9092}; \
	SARDONYX__ZOOKEEPER__HOSTS=$$zookeeper SARDONYX__KAFKA__BOOTSTRAP_SERVERS=$$kafka \
	$(BIN)/python -m tests.services.cluster_job "$${SARDONYX_SHARED:-/tmp/sardonyx-shared}" || status=$$?; \
	SARDONYX_TEST_ZOOKEEPER=$$zookeeper SARDONYX_TEST_KAFKA=$$kafka \
	$(PYTEST) -m $(QUICK) tests/services || status=$$?; \
	docker compose down --volumes; exit $$status

docs: $(DOCS)/.ready ## the documentation as a site in build/docs; any warning fails
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@echo "build/docs/index.html"

# An environment of its own: the site is made from sources and text, and needs nothing that Sardonyx needs.
$(DOCS)/.ready: requirements-docs.lock
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements-docs.lock
	@touch $@

# The runtime lock is for daemons. It takes its versions from the development lock, so that what is tested is what runs.
lock: $(READY) ## pin dependencies with hashes: the newest that pyproject.toml allows, or only what is missing: make lock UPGRADE=
	@$(PIP) uv
	@COMPILE="$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate"; \
	$$COMPILE $(UPGRADE) --extra dev --group registry-client pyproject.toml -o requirements.lock; \
	$$COMPILE $(UPGRADE) --extra otel --extra rocksdb --extra sasl --extra signed --extra sql --extra web --group registry-client -c requirements.lock pyproject.toml -o requirements-runtime.lock; \
	$$COMPILE $(UPGRADE) --group build -o requirements-build.lock; \
	$$COMPILE $(UPGRADE) --group browser -c requirements.lock -o requirements-browser.lock; \
	$$COMPILE $(UPGRADE) --group docs -o requirements-docs.lock
	@! grep -n '://' requirements*.lock

clean: ## remove what was made here (the downloaded Kafka stays in your cache directory)
	@rm -rf $(VENV) $(DOCS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .sardonyx spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

java:
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || { \
	echo "Sardonyx needs Java 17 or newer; found: $$("$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | head -1)"; \
	echo "  Debian and Ubuntu: sudo apt-get install openjdk-17-jre-headless"; \
	echo "  macOS: brew install openjdk@17, then set JAVA_HOME to its libexec/openjdk.jdk/Contents/Home"; exit 1; } >&2

# Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE), each daemon and each command would compile all that it imports.
compiled: $(READY)
	@$(BIN)/python -m compileall -q coordinator peer queues sentinel spark_tasks sardonyx

# setuptools comes first, by its hash: PySpark is a source package, and this way nothing unpinned is downloaded to build it.
$(READY): pyproject.toml requirements.lock requirements-build.lock
	@[ -n "$(PYTHON)" ] || { \
	echo "Sardonyx needs Python 3.11 or newer; found: $$(python3 --version 2>&1)"; \
	echo "  Debian and Ubuntu: sudo apt-get install python3 python3-venv; macOS: brew install python"; \
	echo "  one that is not on the PATH: make PYTHON=/path/to/python"; exit 1; } >&2
	@echo "making $(VENV) with $$($(PYTHON) --version), about 1 GB, a minute or two at first"
	@$(PYTHON) -m venv $(VENV) || { \
	echo "this Python cannot make environments; Debian and Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) --require-hashes -r requirements-build.lock
	@$(PIP) --require-hashes --no-build-isolation -r requirements.lock
	@$(PIP) --no-deps $(EDITABLE) .
	@touch $@
