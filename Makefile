# Everything runs in .venv, which each target makes when there is none.
#   make demo    train on Shakespeare, export, verify, run, restart
#   make test    all tests of every change; make soak: those that take too long for that
#   make lint    ruff; make types: mypy, strict

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test soak lint types clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[cpu,train,export,ros,bags,examples,dev]'
	$(BIN)/pip install --quiet --no-deps seglearn==1.2.5  # for its recordings alone
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

soak: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo runs
