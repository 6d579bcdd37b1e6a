#!/usr/bin/env bash
# Runs agents from npm and PyPI behind the gateway, after installing them into .agents/ if they are
# not there (about 2 GB, some minutes). Arguments go to pytest.
#
#   HOLDFAST_AGENTS_DIR   where they are installed (.agents)
#   PYTHON                the Python of those from PyPI (python3)
#   PYTEST_PYTHON         the Python of the tests (.venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."

CODING=(@anthropic-ai/claude-code @openai/codex @qwen-code/qwen-code opencode-ai)
FRAMEWORKS=(ai @ai-sdk/openai zod)
# LiteLLM needs mcp, and does not say so.
PYPI=(mini-swe-agent 'smolagents[openai]' mcp)
export HOLDFAST_AGENTS_DIR=${HOLDFAST_AGENTS_DIR:-$PWD/.agents}

if [ ! -e "$HOLDFAST_AGENTS_DIR/installed" ]; then
    echo "installing ${CODING[*]} into $HOLDFAST_AGENTS_DIR …"
    mkdir -p "$HOLDFAST_AGENTS_DIR"
    npm install --silent --no-fund --no-audit --prefix "$HOLDFAST_AGENTS_DIR" "${CODING[@]}"
    touch "$HOLDFAST_AGENTS_DIR/installed"
fi
if [ ! -e "$HOLDFAST_AGENTS_DIR/frameworks" ]; then
    echo "installing ${FRAMEWORKS[*]} ${PYPI[*]} into $HOLDFAST_AGENTS_DIR …"
    npm install --silent --no-fund --no-audit --prefix "$HOLDFAST_AGENTS_DIR" "${FRAMEWORKS[@]}"
    "${PYTHON:-python3}" -m venv "$HOLDFAST_AGENTS_DIR/python"
    "$HOLDFAST_AGENTS_DIR/python/bin/python" -m pip install --quiet \
        --disable-pip-version-check "${PYPI[@]}"
    touch "$HOLDFAST_AGENTS_DIR/frameworks"
fi
"${PYTEST_PYTHON:-.venv/bin/python}" -m pytest tests/gateway/agents/test_coding_agents.py \
    tests/gateway/agents/test_published_agents.py "$@"
