# Everything a user or a developer types. Each target sets itself up: .venv is made from the pinned constraints.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test test-faults test-gpu lint bench setup clean

demo: $(VENV)/.ready   ## train on this machine with one ps and two workers
	@$(BIN)/trainband run --ps 1 --workers 2 examples/mnist.py -- --train_steps 10000 --plot runs/demo/training_curve.png

test: $(VENV)/.ready-dev   ## run the whole test suite
	@$(BIN)/python -m pytest

test-faults: $(VENV)/.ready-dev   ## every fault on every kind of task, in every phase, under every update rule (twenty minutes)
	@TRAINBAND_FAULTS=$${TRAINBAND_FAULTS:-all} $(BIN)/python -m pytest tests/cluster_faults

test-gpu: $(VENV)/.ready-dev   ## the checks that need an accelerator; without one they only show that they run
	@$(BIN)/python -m bench.gpu

lint: $(VENV)/.ready-dev   ## check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/.ready-dev   ## measure beside TensorFlow, which is installed into an environment of its own (an hour and a quarter)
	@$(BIN)/python -m bench.ps_mnist --rule async
	@$(BIN)/python -m bench.ps_mnist --rule sync
	@$(BIN)/python -m bench.ps_mnist --rule bounded
	@$(BIN)/python -m bench.push_pull
	@$(BIN)/python -m bench.scaling
	@$(BIN)/python -m bench.stragglers
	@$(BIN)/python -m bench.checkpoint
	@$(BIN)/python -m bench.input_path
	@$(BIN)/python -m bench.replicas
	@$(BIN)/python -m bench.allreduce
	@$(BIN)/python -m bench.allreduce --model convnet
	@$(BIN)/python -m bench.keras_fit
	@$(BIN)/python -m bench.compat
	@$(BIN)/python -m bench.chaos

setup: $(VENV)/.ready-dev   ## only make the environment

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "trainband needs Python 3.11 or later, but $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.11")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "installing trainband into $(VENV) (once; about a minute)"
	@$(INSTALL) '.[plot]'
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "installing the development tools into $(VENV) (once)"
	@$(INSTALL) '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .bench runs build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
