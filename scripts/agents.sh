#!/usr/bin/env bash
# Runs coding agents from npm behind the gateway, after installing them into .agents/ if they are
# not there (about 1 GB, a minute). Arguments go to pytest.
#
#   HOLDFAST_AGENTS_DIR   where they are installed (.agents)
#   PYTEST_PYTHON         the Python of the tests (.venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."

AGENTS=(@anthropic-ai/claude-code @openai/codex @qwen-code/qwen-code opencode-ai)
export HOLDFAST_AGENTS_DIR=${HOLDFAST_AGENTS_DIR:-$PWD/.agents}

if [ ! -e "$HOLDFAST_AGENTS_DIR/installed" ]; then
    echo "installing ${AGENTS[*]} into $HOLDFAST_AGENTS_DIR …"
    mkdir -p "$HOLDFAST_AGENTS_DIR"
    npm install --silent --no-fund --no-audit --prefix "$HOLDFAST_AGENTS_DIR" "${AGENTS[@]}"
    touch "$HOLDFAST_AGENTS_DIR/installed"
fi
"${PYTEST_PYTHON:-.venv/bin/python}" -m pytest tests/gateway/test_coding_agents.py "$@"
