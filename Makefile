# `make` lists the targets. Needs python3 (3.11 or later) and git; jobs and tests that run Spark need Java 17 or later.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
UV_VERSION := 0.13.8
BIN := .venv/bin

# uv reads its own settings; where only pip's are there, uv gets the same ones.
export UV_SYSTEM_CERTS ?= 1
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif
# A uv on PATH is used as it is; otherwise one of a pinned version goes to .cache/.
UV := $(shell command -v uv || echo .cache/uv/bin/uv)

PYTEST_ARGS ?=
SEEDS ?= 1000
FROM ?= 0
SUITE ?= runtime
SINK ?= file
KILLS ?= 60
ROWS ?= 0
SEED ?= 1
ROUNDS ?= 5
KINDS ?=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | while IFS=$$'\t' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

.cache/uv/bin/uv:
	@$(PYTHON) -m venv .cache/uv
	@.cache/uv/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

.venv/.ready: requirements/dev.txt pyproject.toml | python-version $(filter .cache/%,$(UV))
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

.PHONY: python-version
python-version:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed, and '$(PYTHON)' is not: $$($(PYTHON) --version 2>&1). Name another: make setup PYTHON=python3.12" >&2; exit 1; }

.PHONY: setup
setup: .venv/.ready ## make .venv with everything pinned in requirements/dev.txt (cheap when nothing changed)
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version >/dev/null 2>&1 || echo "Note: Java is missing. Jobs and the Spark tests need Java 17 or 21: apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-21-openjdk-headless (Fedora), brew install openjdk@21 (macOS)." >&2

.PHONY: run
run: setup ## run the example job on this machine
	@$(BIN)/python -m examples.flights

.PHONY: test
test: setup ## run all tests, print coverage
	@$(BIN)/python -m tests.servers.fetch
	@$(BIN)/python -m pytest --cov $(PYTEST_ARGS)

.PHONY: test-unit
test-unit: setup ## run the tests that need neither Spark nor servers
	@$(BIN)/python -m pytest tests/unit tests/protocol $(PYTEST_ARGS)

.PHONY: lint
lint: setup ## ruff, import contracts, layout rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --output-format concise .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q tests/unit/test_layout.py

.PHONY: type
type: setup ## mypy --strict
	@$(BIN)/mypy

.PHONY: sim
sim: setup ## simulate the protocol: make sim SEEDS=1000 FROM=0
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM)

.PHONY: bench
bench: setup ## run a benchmark suite: make bench SUITE=runtime, operator, tables or transactional
	@$(BIN)/python -m benchmarks $(SUITE)

.PHONY: crds
crds: setup ## write the CRDs from the models
	@$(BIN)/python -m sinkruntime.spec.crd
	@cp crds/*.yaml charts/sinkjob/files/

IMAGE_TAG ?= dev
BASE ?= debian:bookworm-slim
OPERATOR_MEGABYTES_MAX := 250
OPERATOR_ALL_MEGABYTES_MAX := 500
DRIVER_MEGABYTES_MAX := 1000
DRIVER_ALL_MEGABYTES_MAX := 1100

IMAGES := operator operator-all driver driver-all

.PHONY: images
images: ## build the images, print their sizes: make images IMAGE_TAG=dev BASE=debian:bookworm-slim
	@for target in $(IMAGES); do docker build --build-arg BASE=$(BASE) --target $$target -t sinkjob-$$target:$(IMAGE_TAG) .; done
	@$(MAKE) --no-print-directory image-sizes

.PHONY: image-sizes
image-sizes: ## print the unpacked sizes of the images, fail if one is too large
	@for pair in operator:$(OPERATOR_MEGABYTES_MAX) operator-all:$(OPERATOR_ALL_MEGABYTES_MAX) \
	  driver:$(DRIVER_MEGABYTES_MAX) driver-all:$(DRIVER_ALL_MEGABYTES_MAX); do \
	  name=sinkjob-$${pair%:*}:$(IMAGE_TAG); limit=$${pair#*:}; \
	  bytes=$$(docker image inspect --format '{{.Size}}' "$$name"); \
	  echo "$$name: $$((bytes / 1000000)) MB unpacked, at most $$limit"; \
	  [ "$$bytes" -le $$((limit * 1000000)) ]; done

.PHONY: e2e
e2e: setup ## install the chart on a kind cluster, run the example jobs there (needs docker, kind, kubectl, helm)
	@$(BIN)/python -m tests.servers.fetch
	@$(BIN)/python -m pytest tests/e2e -m "e2e and not exhaustive" $(PYTEST_ARGS)

.PHONY: helm-lint
helm-lint: ## check the chart and its values
	@helm lint --strict --quiet charts/sinkjob
	@helm lint --strict --quiet charts/sinkjob --set 'watchNamespaces={a,b}' --set networkPolicy.enabled=true --set metrics.podMonitor.enabled=true

.PHONY: kill-matrix
kill-matrix: setup ## kill processes at every step, then count rows: make kill-matrix SINK=file KILLS=60 SEED=1
	@$(BIN)/python -m tests.killmatrix --sink $(SINK) --kills $(KILLS) --seed $(SEED) --rows $(ROWS)

.PHONY: chaos
chaos: setup ## kill everything on a kind cluster, then count rows: make chaos ROUNDS=5 SEED=1
	@$(BIN)/python -m tests.servers.fetch
	@$(BIN)/python -m tests.chaos --rounds $(ROUNDS) --seed $(SEED) $(if $(KINDS),--kinds $(KINDS))

.PHONY: docs
docs: setup ## write the generated pages of docs/
	@$(BIN)/python -m sinkruntime.cli.generate_docs
	@$(BIN)/python -m sinkoperator.reference

COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

# Not `duckdb`: its file is on one machine, so its rows are written where `sinkjob run` is.
SINK_EXTRAS = $(addprefix --extra ,file iceberg delta hive hudi jdbc kafka paimon)

.PHONY: lock
lock: | $(filter .cache/%,$(UV)) ## pin all dependencies with hashes; LOCK_ARGS=--upgrade takes newer ones
	@$(COMPILE) pyproject.toml $(LOCK_ARGS) --all-extras --group dev -o requirements/dev.txt
	@$(COMPILE) pyproject.toml --constraint requirements/dev.txt --extra operator --extra kube --extra file -o requirements/operator.txt
	@$(COMPILE) pyproject.toml --constraint requirements/dev.txt --extra operator --extra kube $(SINK_EXTRAS) -o requirements/operator-all.txt
	@$(COMPILE) pyproject.toml --constraint requirements/dev.txt --extra spark --extra kube --extra file -o requirements/driver.txt
	@$(COMPILE) pyproject.toml --constraint requirements/dev.txt --extra spark --extra kube $(SINK_EXTRAS) -o requirements/driver-all.txt
	@$(COMPILE) --group build -o requirements/build.txt

.PHONY: clean
clean: ## remove .venv, caches and what local runs left here
	@rm -rf .venv .cache .coverage .coverage.* htmlcov build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .sinkjob spark-warehouse
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
