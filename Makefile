# Everything runs in .venv, which each target makes when there is none.
#   make demo    train on Shakespeare, export, verify, run, restart
#   make test    all tests of every change; make soak: those that take too long for that
#   make web     what the page in web/ needs of npm's packages, into web/vendor (docs/web.md)
#   make evidence      the paper's claims -> docs/evidence.md; hours, resumable (QUICK=1: minutes, at a tiny size)
#   make portability   the tests of chain and verification under other instruction sets, threads and onnxruntimes,
#                      and the runtime and exports on an emulated aarch64; prints a table (QUICK=1: CI's two rows)
#   make lint    ruff, and which package may import which; make types: mypy, strict
#   make docs    the site of docs/, with the API from the docstrings, in site/; a broken link fails
#   make release       wheel and source archive in dist/, and a smoke test of the wheel in an empty environment
#   make runtime-test  the runtime's tests without PyTorch, in .venv-runtime, for another PYTHON
#   make node-test     the node's tests with the ROS 2 that is installed and sourced

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test web soak evidence portability lint types docs release runtime-test node-test clean

PIP := $(BIN)/pip install --quiet --constraint constraints.txt

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[cpu,train,export,ros]'
	touch $@

# Two packages are wanted for the data they ship, not for what they depend on.
$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) --editable '.[cpu,train,export,ros,bags,examples,dev]'
	$(PIP) --no-deps silero-vad==6.2.3 seglearn==1.2.5
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

soak: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m soak

web:
	web/vendor.sh

# TEXT: a copy of tiny Shakespeare, where its public address can't be reached.
evidence: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/claims.py $(if $(QUICK),--quick) $(if $(TEXT),--text '$(TEXT)')

portability: $(VENV)/installed-dev
	$(BIN)/python benchmarks/portability.py $(if $(QUICK),--quick)

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYTHONPATH=ros_nodes/ocean_ros $(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/installed-dev
	$(BIN)/mypy

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(VENV)/installed-docs: $(VENV)/installed-dev
	$(PIP) --editable '.[docs]'
	touch $@

release: $(VENV)/installed-dev
	rm -rf dist .venv-release
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet "$$(ls dist/*.whl)[cpu]"
	printf 'ROMEO' | .venv-release/bin/ocean-run tests/fixtures/tiny.onnx
	.venv-release/bin/ocean-run tests/fixtures/tiny.onnx --info
	rm -rf .venv-release

runtime-test:
	$(PYTHON) -m venv .venv-runtime
	.venv-runtime/bin/pip install --quiet '.[cpu,bags]' onnx pytest hypothesis
	.venv-runtime/bin/python -m pytest tests/runtime

# ROS brings rclpy and the messages; the rest comes into an environment that sees them.
node-test:
	$(PYTHON) -m venv --system-site-packages .venv-node
	.venv-node/bin/pip install --quiet '.[cpu,bags]' onnx pytest hypothesis
	.venv-node/bin/python -m pytest tests/ros

clean:
	rm -rf $(VENV) .venv-* demo dist runs
