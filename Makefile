# The whole vocabulary of the project. Each target sets up what it needs by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for processes that they started: one more than there are cores.
WORKERS ?= $(shell expr $$(nproc) + 1)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
EVERYTHING := '.[dev,train,parquet,renderers,gym,mcp,openenv,evaluation]'
# Tests start hundreds of processes: what one compiles, the next ones read.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo learn test check crash cluster bench docs package bench-peers vllm agents interop oracles gallery pins worlds clean

demo: $(VENV)/installed
	$(BIN)/python scripts/demo.py

# Two trainings, one of them killed at random, that end with the same bits. SEED: of the kills.
learn: $(VENV)/installed
	$(BIN)/python scripts/learn.py $(if $(SEED),--seed $(SEED))

test: $(VENV)/installed
	scripts/system.sh
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The heart: SIGKILL at every record boundary, every I/O failing, power loss, and the rest.
crash: $(VENV)/installed
	HOLDFAST_EXHAUSTIVE=1 $(BIN)/python -m pytest tests/crash tests/journal tests/simulation --timeout 7200

# A simulated cluster (several Ray nodes on this machine, and a PostgreSQL server), and what can be
# killed of it: workers, nodes, scorers, gateways, the command, the server; 20 times in one run.
cluster: $(VENV)/installed
	HOLDFAST_CLUSTER=1 HOLDFAST_EXHAUSTIVE=1 $(BIN)/python -m pytest tests/cluster --timeout 3600

bench: $(VENV)/installed
	$(BIN)/python benchmarks

# The documentation with the API reference, as a site in .site/; any broken link fails it.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Sdist and wheel; every command and public name in clean environments, with each extra alone.
package:
	PYTHON=$(PYTHON) scripts/package.sh

# Other gateways and evaluation libraries on the same traffic; installed into .peers/.
bench-peers: $(VENV)/installed
	$(BIN)/python benchmarks peers evaluation_peers

# The conformance suite of engines against a real vLLM on the CPU, which is installed into .vllm/.
vllm: $(VENV)/installed
	PYTHON=$(PYTHON) PYTEST_PYTHON=$(BIN)/python scripts/vllm.sh

# Worlds in containers of a real Docker engine, which is unpacked into .worlds/ and started there.
worlds: $(VENV)/installed
	PYTEST_PYTHON=$(BIN)/python scripts/worlds.sh

# Agents from npm and PyPI behind the gateway (Claude Code, Codex, Qwen Code, opencode,
# mini-swe-agent, smolagents, the Vercel AI SDK); installed into .agents/.
agents: $(VENV)/installed
	PYTHON=$(PYTHON) PYTEST_PYTHON=$(BIN)/python scripts/agents.sh

# Every example, with the libraries that examples need, which are installed into .gallery/.
gallery: $(VENV)/installed
	scripts/gallery.sh

# eval-protocol's own examples, here and with itself, row by row; it is installed into .interop/.
# Then TRL, verl and Tinker on our rollouts and samples; they are installed into .trainers/.
interop:
	PYTHON=$(PYTHON) scripts/interop.sh
	PYTHON=$(PYTHON) scripts/trainers.sh

# Our losses, gradients and advantages against verl's and TRL's, which are installed into .oracles/.
oracles:
	PYTHON=$(PYTHON) scripts/oracles.sh

# The newest of every package that the tests run with; then `make check test`, and a commit of its own.
pins:
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint constraints.txt --editable $(EVERYTHING)
	sed -i '/^[^#]/d' constraints-tests.txt
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch==' >> constraints-tests.txt

# Compiled on all cores, which pip cannot; templates that some packages bring are no Python and fail.
$(VENV)/installed: pyproject.toml constraints.txt constraints-tests.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint constraints.txt --constraint constraints-tests.txt --editable $(EVERYTHING)
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib >/dev/null || true
	touch $@

clean:
	rm -rf $(VENV) .site .mypy_cache .ruff_cache .pytest_cache .hypothesis
