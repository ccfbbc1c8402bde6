# The verbs of this repository. Each sets up what it needs; a second call only does what is left to do.
# Needs Python >= 3.11 with venv, git, make and a package index that pip is configured for.

PYTHON ?= python3
VENV := .venv
DEV := .venv-dev
BENCH := .venv-bench
OLD_RAY := .venv-ray240
PYTEST_ARGS ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo test check lab bench soak docs site lock docker-image clean

unexport PYTHONPATH
unexport VIRTUAL_ENV
# Bytecode that is not kept is compiled again by each of the thousand processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo 'make demo   the tour: train on two replicas, kill one, watch it come back (under a minute, no torch)'
	@echo 'make test   every test: unit and simulation on two cores, then system tests, three at once'
	@echo 'make check  format, lint, types, layers, Python 3.9 syntax in the job, docs, lines per file'
	@echo 'make lab    install the Debian packages that system tests need (as root): hosts, ssh, Slurm; starts no service'
	@echo 'make bench  windlass beside plain subprocess, torchrun, submitit, TorchX, and plain Slurm, as ratios'
	@echo 'make soak   the long version of the system tests'
	@echo 'make docs   error codes, links, every executable console block, and the site in build/site'
	@echo 'make site   the site alone, with the references of Python and the commands: build/site/index.html'
	@echo 'make lock   resolve requirements/*.txt again'
	@echo 'make docker-image   an image with windlass in it: IMAGE=name:tag, DOCKER_ARGS="--build-arg EXTRAS=ray"'
	@echo 'make clean  remove what make made'
	@echo 'PYTHON=/path/to/python3.12 chooses the interpreter; PYTEST_ARGS="-k name" narrows the tests.'

# ------------------------------------------------------------------------------------------ virtual environments
# Everything but torch is checked against the hashes in requirements/. The build tool stands beside the
# environment (PYTHONPATH of one command), so that the environment holds what a user's would and no more.

PIP := -m pip -qq --disable-pip-version-check --no-input
HASHED := install --require-hashes --no-deps

define NEW_VENV
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "windlass needs Python >= 3.11; $(PYTHON) is %d.%d: call make PYTHON=/path/to/python3.11" % v[:2])'
	@echo 'making $(1)'
	@rm -rf $(1)
	@$(PYTHON) -m venv $(1)
	@$(1)/bin/python $(PIP) $(HASHED) -r $(2)
	@$(1)/bin/python $(PIP) $(HASHED) -r requirements/build.txt --target $(1)/build
	@PYTHONPATH=$(1)/build $(1)/bin/python $(PIP) install --no-deps --no-build-isolation --editable .
	@touch $(1)/.made
endef

$(VENV)/.made: requirements/base.txt requirements/build.txt pyproject.toml
	$(call NEW_VENV,$(VENV),requirements/base.txt)

$(DEV)/.made: requirements/dev.txt requirements/build.txt pyproject.toml
	$(call NEW_VENV,$(DEV),requirements/dev.txt)

# Two pips never write into one environment at once: docs before torch.
$(DEV)/.torch: $(DEV)/.made requirements/torch.txt | $(DEV)/.docs
	@echo 'installing torch (the CPU build where pip is configured with one)'
	@$(DEV)/bin/python $(PIP) install -r requirements/torch.txt
	@touch $@

$(DEV)/.docs: $(DEV)/.made requirements/docs.txt
	@echo 'installing what builds the site'
	@$(DEV)/bin/python $(PIP) $(HASHED) -r requirements/docs.txt
	@touch $@

$(BENCH)/.made: requirements/bench.txt requirements/build.txt requirements/torch.txt pyproject.toml
	$(call NEW_VENV,$(BENCH),requirements/bench.txt)
	@$(BENCH)/bin/python $(PIP) install -r requirements/torch.txt

# Ray alone, as a user's Python on a node has it: nothing of windlass is in it. Ray 2.40 is not built for Python 3.13.
$(OLD_RAY)/.made: requirements/ray-2.40.txt
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
	  echo 'no $(OLD_RAY): Ray 2.40 needs Python 3.11 or 3.12; tests with it are left out'; \
	else \
	  echo 'making $(OLD_RAY)'; rm -rf $(OLD_RAY); $(PYTHON) -m venv $(OLD_RAY); \
	  $(OLD_RAY)/bin/python $(PIP) $(HASHED) -r requirements/ray-2.40.txt; \
	  touch $@; \
	fi

# --------------------------------------------------------------------------------------------------------- verbs

# System tests wait about half of their time: three at once keep two cores busy. What stays together on a worker, and that
# long ones come first, is in tests/lab/order.py.
SYSTEM_AT_ONCE ?= 3

setup: $(VENV)/.made $(DEV)/.torch $(OLD_RAY)/.made

demo: $(VENV)/.made
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash examples/hello/demo.sh

test: $(DEV)/.torch $(OLD_RAY)/.made
	@mkdir -p build; code=0; \
	$(DEV)/bin/python -m pytest -n 2 -m 'not system and not soak' --junitxml=build/tests-unit.xml $(PYTEST_ARGS) || code=$$?; \
	$(DEV)/bin/python -m pytest -n $(SYSTEM_AT_ONCE) --dist loadfile --no-loadscope-reorder -m 'system and not soak' --junitxml=build/tests-system.xml $(PYTEST_ARGS) || code=$$?; \
	$(DEV)/bin/python -m scripts.count_tests build/tests-unit.xml build/tests-system.xml; \
	exit $$code

check: $(DEV)/.docs $(DEV)/.torch
	@PATH="$(CURDIR)/$(DEV)/bin:$$PATH" $(DEV)/bin/python -m scripts.check

lab:
	@bash tests/lab/install.sh

bench: $(BENCH)/.made $(DEV)/.made
	@export PATH="$(CURDIR)/$(BENCH)/bin:$$PATH"; code=0; \
	for bench in benches/bench_*.py; do echo "--- $$bench"; python "$$bench" || code=1; done; exit $$code

soak: $(DEV)/.torch
	@$(DEV)/bin/python -m pytest -m 'soak' $(PYTEST_ARGS)

docs: $(VENV)/.made $(DEV)/.torch site
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(VENV)/bin/python -m scripts.check_docs --execute

site: $(DEV)/.docs
	@$(DEV)/bin/python -m scripts.website

# No machine's configuration may reach a lock: no config file, no index, no links, no paths.
RESOLVE = env -u UV_FIND_LINKS -u UV_INDEX -u UV_DEFAULT_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_CONFIG_FILE \
	$(DEV)/bin/uv pip compile --quiet --no-config --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --excludes requirements/elsewhere.in --custom-compile-command 'make lock'

lock: $(DEV)/.made
	@$(RESOLVE) pyproject.toml -o requirements/base.txt
	@$(RESOLVE) requirements/build.in -o requirements/build.txt
	@$(RESOLVE) pyproject.toml --group dev -c requirements/base.txt -o requirements/dev.txt
	@$(RESOLVE) requirements/ray-2.40.in -o requirements/ray-2.40.txt
	@$(RESOLVE) --group docs -c requirements/dev.txt -o requirements/docs.txt
	@$(RESOLVE) pyproject.toml --group bench -o requirements/bench.txt
	@$(DEV)/bin/python -m scripts.check_committed

IMAGE ?= windlass:$(shell git rev-parse --short=12 HEAD 2>/dev/null || echo dev)
DOCKER ?= docker
DOCKER_ARGS ?=

docker-image:
	@DOCKER_BUILDKIT=1 $(DOCKER) build $(DOCKER_ARGS) --label org.opencontainers.image.revision=$$(git rev-parse HEAD) \
		--tag $(IMAGE) .

clean:
	@rm -rf $(VENV) $(DEV) $(BENCH) $(OLD_RAY) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
