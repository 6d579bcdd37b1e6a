# The whole vocabulary of the project. Each target sets up what it needs by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for processes that they started: one more than there are cores.
WORKERS ?= $(shell expr $$(nproc) + 1)

.PHONY: demo test check crash bench docs bench-peers vllm agents interop clean

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

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

bench: $(VENV)/installed
	$(BIN)/python benchmarks

# The documentation with the API reference, as a site in .site/; any broken link fails it.
docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Other gateways and evaluation libraries on the same traffic; installed into .peers/.
bench-peers: $(VENV)/installed
	$(BIN)/python benchmarks peers evaluation_peers

# The conformance suite of engines against a real vLLM on the CPU, which is installed into .vllm/.
vllm: $(VENV)/installed
	PYTHON=$(PYTHON) PYTEST_PYTHON=$(BIN)/python scripts/vllm.sh

# Agents from npm and PyPI behind the gateway (Claude Code, Codex, Qwen Code, opencode,
# mini-swe-agent, smolagents, the Vercel AI SDK); installed into .agents/.
agents: $(VENV)/installed
	PYTHON=$(PYTHON) PYTEST_PYTHON=$(BIN)/python scripts/agents.sh

# eval-protocol's own examples with nothing changed but their imports; it is installed into .interop/.
interop:
	PYTHON=$(PYTHON) scripts/interop.sh

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,train,parquet,renderers,gym,mcp,openenv,evaluation]'
	touch $@

clean:
	rm -rf $(VENV) .site .mypy_cache .ruff_cache .pytest_cache .hypothesis
