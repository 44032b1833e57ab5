# One command for each thing, the same locally and in CI.
#
#   make demo      explain a real trained network on embedded data (no download)
#   make test      the tests
#   make lint      ruff and mypy
#   make peers     agreement with zennit, zennit-crp, captum and Quantus, in an environment of its own
#   make bench     the benchmark table, and how cost grows
#   make bench-peers  the same beside captum, zennit and zennit-crp
#   make montage   the heat-map montage of the docs
#   make flows     the flow picture of the docs
#   make additive  joint against additive relevance, for the docs
#   make screenshots  the screenshots of the docs (needs Chromium)
#   make browser   Chromium for the tests of reports and the explorer, where apt-get can install it
#   make networks  heat maps of four trained networks (needs the real data), in out/networks.png
#   make format    let ruff rewrite the files
#   make clean     remove environments and caches
#
# Settings: PYTHON (3.11 or newer), JOBS (test processes), ARGS (passed on to pytest or the script).

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

VENV := .venv
PEERS := .venv-peers

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint format peers bench bench-peers montage flows additive screenshots browser networks clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.ready-demo
	$(VENV)/bin/python examples/digits.py $(ARGS)

test: $(VENV)/.ready-dev
	$(VENV)/bin/python -m pytest -n $(JOBS) --ignore=tests/peers $(ARGS)

lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

peers: $(PEERS)/.ready
	$(PEERS)/bin/python -m pytest tests/peers $(ARGS)

bench: $(VENV)/.ready-dev
	$(VENV)/bin/python benchmarks/run.py $(ARGS)
	$(VENV)/bin/python benchmarks/growth.py

bench-peers: $(PEERS)/.ready
	$(PEERS)/bin/python benchmarks/peers.py $(ARGS)

montage: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/montage.py $(ARGS)

flows: $(VENV)/.ready-demo
	$(VENV)/bin/python examples/digits.py --out out/digits.png
	cp out/digits-flows.png docs/images/flows.png

additive: $(VENV)/.ready-demo
	$(VENV)/bin/python docs/additive.py $(ARGS)

screenshots: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/screenshots.py $(ARGS)

browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no browser could be installed: its tests are skipped"

networks: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/networks.py $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

# --- environments: built once, again when their inputs change ---

# torch goes in first and pinned: whatever asks for "some torch" later finds it there.
%/.ready-torch: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "nrm needs Python 3.11 or newer, and '$(PYTHON)' is not: make ... PYTHON=python3.11"; exit 1; }
	test -x $*/bin/python || $(PYTHON) -m venv $*
	$*/bin/python $(PIP_INSTALL) "$$(grep '^torch==' constraints.txt)"
	@touch $@

.PRECIOUS: %/.ready-torch

$(VENV)/.ready-demo: $(VENV)/.ready-torch pyproject.toml
	$(VENV)/bin/python $(PIP_INSTALL) --editable '.[viz,cluster]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready-torch pyproject.toml
	$(VENV)/bin/python $(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.ready-demo

$(PEERS)/.ready: $(PEERS)/.ready-torch pyproject.toml tests/peers/requirements.txt tests/peers/requirements-crp.txt
	$(PEERS)/bin/python $(PIP_INSTALL) --editable . --requirement tests/peers/requirements.txt
	$(PEERS)/bin/python $(PIP_INSTALL) --no-deps --requirement tests/peers/requirements-crp.txt
	@touch $@
