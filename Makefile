# `make train` and `make test` do all set-up themselves, once, in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first Python that will do. Another: make PYTHON=/path/to/python3.12 train
FITS := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13; do \
  if $$python -c '$(FITS)' 2>/dev/null; then echo $$python; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin

CONFIG ?= configs/gpt2_nano.py
WORKDIR ?= runs/gpt2_nano

.PHONY: help train train-vision test bench-tpu format clean

help:  ## show this text
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' \
	  $(MAKEFILE_LIST)

train: $(VENV)/.installed  ## set up, then the main job (2 to 4 minutes)
	$(BIN)/python -m experiments.train --config=$(CONFIG) --workdir=$(WORKDIR)

train-vision: $(VENV)/.installed  ## the same for images (1 to 3 minutes)
	$(BIN)/python -m experiments.train --config=configs/vit_mnist.py \
	  --workdir=runs/vit_mnist

# Cheap failures first.
test: $(VENV)/.installed  ## set up, then every check there is
	@echo '[1/3] format and lint'
	@$(BIN)/ruff format --quiet --check . \
	  || { echo 'Not formatted: run `make format`.'; exit 1; }
	@$(BIN)/ruff check --quiet .
	@echo '[2/3] layering, units, battery, smoke train with resume'
	@$(BIN)/python -m pytest -q -n 2 tests
	@echo '[3/3] examples of the docstrings'
	@$(BIN)/python -m pytest -q --doctest-modules signmomentum
	@echo 'All checks passed.'

# libtpu wants an environment of its own: where it is, JAX looks for a TPU.
bench-tpu: $(VENV)-tpu/.installed  ## what TPUs would do, compiled without one
	$(VENV)-tpu/bin/python -m experiments.bench_tpu

format: $(VENV)/.installed  ## rewrite the code in the house style
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove the environment and all caches (runs/ stays)
	rm -rf $(VENV) $(VENV)-tpu *.egg-info build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Build tools are pinned too: pip reads one of the two variables, by its age.
$(VENV)/.installed: EXTRAS = experiments,test
$(VENV)-tpu/.installed: EXTRAS = tpu-aot
$(VENV)/.installed $(VENV)-tpu/.installed: setup.cfg pyproject.toml constraints.txt
	@'$(or $(PYTHON),false)' -c '$(FITS)' 2>/dev/null \
	  || { echo 'Python 3.11 or newer with its venv module is needed; this has' \
	       'not: $(or $(PYTHON),any python3 on the path).' \
	       'Install one (Debian, Ubuntu: apt install python3 python3-venv)' \
	       'or name one: make PYTHON=/path/to/python3.11 ...'; exit 1; }
	@echo 'Setting up $(@D) (the first time this takes a minute or two)'
	@'$(PYTHON)' -m venv --clear $(@D)
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	  PIP_DISABLE_PIP_VERSION_CHECK=1 \
	  $(@D)/bin/python -m pip install --quiet -e '.[$(EXTRAS)]'
	@touch $@
