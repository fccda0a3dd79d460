# `make demo` and `make test` need Python 3.11 or newer and nothing else: each makes .venv first, or uses the one there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test test-fast lint fmt bench docs clean environment

PYTHON := .venv/bin/python
CODE := $(wildcard core plugins adapters recipes tests benchmarks docs/examples)
ROOMS := build/rooms

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

environment:
	@sh bootstrap.sh

demo: environment ## plan a small GPT for 4 processes, train it, and compare with one device
	@.venv/bin/partita run gpt3-tiny --fix pp=2 --fix tp=2 --fix micro_batches=4 --compare

# Tests keep what they compile, whatever the shell says: compiling anew costs each worker five seconds.
test test-fast: export PYTHONDONTWRITEBYTECODE :=

# Two workers, each with ranks of its own; the tests of a file share what is made once for it.
WORKERS := -n 2 --dist loadfile
# Threads of two workers that share the cores wait for one another: half as much processor time again.
test test-fast: export OMP_NUM_THREADS ?= 1

test: lint ## everything that must hold: lint and all tests
	@$(PYTHON) -m pytest $(WORKERS) tests

test-fast: environment ## the tests that take about a minute together
	@$(PYTHON) -m pytest $(WORKERS) tests -m "not slow"

# core/ installs as `partita` and plugins/ as `partita.plugins`; tools that read files and do not import see that only
# in a tree laid out like the installed package. It is made of links, so what they report is the files themselves.
lint: environment ## ruff, the rules about imports, and mypy on core
	@$(PYTHON) -m ruff check $(CODE)
	@$(PYTHON) -m ruff format --check $(CODE)
	@rm -rf $(ROOMS) && mkdir -p $(ROOMS)/partita
	@ln -s $(addprefix ../../../,$(wildcard core/* plugins adapters recipes)) $(ROOMS)/partita/
	@PYTHONPATH=$(ROOMS) .venv/bin/lint-imports --no-cache --no-logo
	@set -o pipefail; MYPYPATH=$(ROOMS) $(PYTHON) -m mypy $(ROOMS)/partita | sed 's#^$(ROOMS)/partita/#core/#'

fmt: environment ## format, and mend what ruff can mend
	@$(PYTHON) -m ruff check --fix --exit-zero $(CODE)
	@$(PYTHON) -m ruff format $(CODE)

bench: environment ## run each file of benchmarks/
	@shopt -s nullglob; for file in benchmarks/*.py; do echo "== $$file"; $(PYTHON) "$$file"; done

# Not --quiet: strict mode counts the warnings that are shown.
docs: environment ## the documentation, in site/
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
	@echo "documentation: site/index.html"

clean: ## remove what was made, except .venv
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find core plugins adapters recipes tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} +
