# Everything a user or a developer types. Each target sets itself up: .venv is made from the pinned constraints.
VENV ?= .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable
PYTEST = $(BIN)/python -m pytest
# Tests wait as much as they compute: two processes for each core keep it busy. JOBS= decides otherwise.
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2)

# PYTHON= names the interpreter; without it, the newest of these that runs and can make environments is taken.
pyenv = $(shell ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$(1).*/bin/python 2>/dev/null | sort -rV)
CANDIDATES = python3.13 $(call pyenv,3.13) python3.12 $(call pyenv,3.12) python3.11 $(call pyenv,3.11) python3
PROBE = import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
VERSION = import sys; print(*sys.version_info[:3], sep=".")

.PHONY: demo test test-all test-gpu smoke smoke-oldest setup-oldest fuzz lint lock docs bench setup platforms converters same-python clean

demo: $(VENV)/.ready   ## train on this machine with one ps and two workers
	@$(BIN)/python -m trainband.demo

test: $(VENV)/.ready-dev   ## run the test suite (docs/testing.md says what it proves)
	@$(PYTEST) -n $(JOBS)

test-all: $(VENV)/.ready-dev   ## run every test: each fault on each kind of task, each variant of a job (an hour)
	@$(PYTEST) -n $(JOBS) -m "slow or not slow"

smoke: $(VENV)/.ready-dev   ## train the demo's job and run one test of each folder
	@$(BIN)/trainband run --ps 1 --workers 2 examples/mnist.py -- --train_steps 500
	@$(PYTEST) -n $(JOBS) -m smoke

test-gpu: $(VENV)/.ready-dev   ## the checks that need an accelerator; without one they only show that they run
	@$(BIN)/python -m bench.gpu

oldest = for python in python3.11 $(call pyenv,3.11); do \
	   if "$$python" -c '$(PROBE)' 2>/dev/null; then \
	     $(MAKE) --no-print-directory VENV=.venv-3.11 PYTHON="$$python" $(1); exit; \
	   fi; \
	 done; \
	 echo "no Python 3.11 is here: the smoke tests cannot be run on it"

smoke-oldest:   ## the same on the oldest Python that is supported, if there is one here, in .venv-3.11
	@$(call oldest,smoke)

setup-oldest:
	@$(call oldest,setup)

MINUTES ?= 30
fuzz: $(VENV)/.ready-fuzz   ## try hostile inputs on everything that reads bytes, for MINUTES (30)
	@$(BIN)/python -m tests.fuzz $(MINUTES)

lint: $(VENV)/.ready-dev   ## check style, types and plain English
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m tests.language
	@$(BIN)/mypy

lock: $(VENV)/.ready-dev   ## renew constraints.txt: the newest versions that pyproject.toml allows, for every supported Python
	@( echo '# Exact versions that trainband is developed and tested with, for every supported Python; pyproject.toml has'; \
	   echo '# the bounds. Written by `make lock`, which resolves them with uv: do not edit it by hand.'; \
	   $(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --extra dev --extra docs --extra fuzz --strip-extras \
	     --no-annotate --no-header pyproject.toml ) > constraints.new
	@mv constraints.new constraints.txt

docs: $(VENV)/.ready-docs   ## build the documentation into docs/_build/index.html; a warning is an error
	@$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -b html docs docs/_build
	@echo "open docs/_build/index.html"

bench: $(VENV)/.ready-dev   ## measure beside TensorFlow, which is installed into an environment of its own (an hour and a half)
	@$(BIN)/python -m bench.ps_mnist --rule async
	@$(BIN)/python -m bench.ps_mnist --rule sync
	@$(BIN)/python -m bench.ps_mnist --rule bounded
	@$(BIN)/python -m bench.push_pull
	@$(BIN)/python -m bench.scaling
	@$(BIN)/python -m bench.many_workers
	@$(BIN)/python -m bench.stragglers
	@$(BIN)/python -m bench.checkpoint
	@$(BIN)/python -m bench.input_path
	@$(BIN)/python -m bench.standbys
	@$(BIN)/python -m bench.allreduce
	@$(BIN)/python -m bench.allreduce --model convnet
	@$(BIN)/python -m bench.allreduce --model resnet18
	@$(BIN)/python -m bench.allreduce --model gpt2
	@$(BIN)/python -m bench.tables
	@$(BIN)/python -m bench.tables --ids 10000 --ids 1000000 --ids 10000000 --ps 1
	@$(BIN)/python -m bench.keras_fit
	@$(BIN)/python -m bench.compat
	@$(BIN)/python -m bench.chaos

setup: $(VENV)/.ready-dev   ## only make the environment

PLATFORMS = slurmctld slurmd slurm-client munge openssh-client openssh-server prometheus chromium
platforms:   ## install Slurm, sshd, Prometheus and Chromium for the tests that need them: on Debian and Ubuntu, as root; elsewhere it only says so
	@if { PATH="$$PATH:/usr/sbin"; command -v slurmctld && command -v slurmd && command -v srun && command -v munged && \
	      command -v ssh && command -v sshd && command -v prometheus && command -v promtool && \
	      command -v chromium; } >/dev/null; then \
	   echo "Slurm, sshd, Prometheus and Chromium are here: $$(PATH="$$PATH:/usr/sbin" slurmctld -V)"; \
	 elif ! command -v apt-get >/dev/null; then \
	   echo "make platforms: there is no apt-get here; the tests that need Slurm, sshd, Prometheus or Chromium will be skipped"; \
	 elif [ "$$(id -u)" != 0 ]; then \
	   echo "make platforms: needs root to install $(PLATFORMS); the tests that need them will be skipped"; \
	 elif apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive \
	     apt-get install --quiet=2 --yes --no-install-recommends $(PLATFORMS) >/dev/null; then \
	   echo "installed $(PLATFORMS)"; \
	 else echo "make platforms: apt-get could not install $(PLATFORMS); the tests that need them will be skipped"; fi

CONVERTER = .bench/litert
converters: $(CONVERTER)/.ready   ## make an environment with the converter to LiteRT, for the tests of that format (once; 300 MB)
$(CONVERTER)/.ready: | $(VENV)/.made
	@echo "installing litert-converter into $(CONVERTER) (once)"
	@$(BIN)/python -m venv --clear $(CONVERTER) && $(CONVERTER)/bin/python -m pip install --quiet litert-converter==0.5.0 && touch $@ \
	 || echo "make converters: litert-converter could not be installed; the tests of exports to LiteRT will be skipped"

$(VENV)/.made:
	@for python in $(if $(PYTHON),"$(PYTHON)",$(CANDIDATES)); do \
	   if "$$python" -c '$(PROBE)' 2>/dev/null; then \
	     echo "making $(VENV) with Python $$("$$python" -c '$(VERSION)') ($$(command -v "$$python"))"; \
	     "$$python" -m venv --clear $(VENV) && touch $@; exit; \
	   fi; \
	 done; \
	 echo "trainband needs Python 3.11 or later with its venv module, and none of these is one:" \
	   $(or $(PYTHON),$(CANDIDATES)). "Install one, or name it: make PYTHON=/path/to/python" >&2; exit 1

same-python: | $(VENV)/.made
ifdef PYTHON
	@wanted=$$("$(PYTHON)" -c '$(VERSION)'); there=$$($(BIN)/python -c '$(VERSION)'); \
	 if [ "$$wanted" != "$$there" ]; then \
	   echo "$(VENV) has Python $$there, and PYTHON=$(PYTHON) is $$wanted: make clean first, or VENV=another" >&2; exit 1; \
	 fi
endif

$(VENV)/.ready: pyproject.toml constraints.txt | same-python
	@echo "installing trainband into $(VENV) (once; about a minute)"
	@$(INSTALL) '.[plot]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "installing the development tools into $(VENV) (once)"
	@$(INSTALL) '.[dev]'
	@touch $@

$(VENV)/.ready-fuzz: $(VENV)/.ready-dev
	@echo "installing the fuzzer into $(VENV) (once)"
	@$(INSTALL) '.[fuzz]'
	@touch $@

$(VENV)/.ready-docs: $(VENV)/.ready
	@echo "installing Sphinx into $(VENV) (once)"
	@$(INSTALL) '.[docs]'
	@touch $@

clean:
	rm -rf .venv .venv-* .bench runs build docs/_build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
