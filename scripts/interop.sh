#!/usr/bin/env bash
# Compares eval-protocol's own examples, with nothing changed but their imports, with eval-protocol
# itself, after installing its source distribution, and what its examples need, into .interop/ if
# they are not there (about 700 MB, some minutes). Nothing outside of this machine is asked while they run: engines, data and
# judges are stand-ins at 127.0.0.1 (scripts/interop/stand_ins.py). Arguments: the names of examples.
#
#   HOLDFAST_INTEROP_DIR       where it is installed (.interop)
set -euo pipefail
cd "$(dirname "$0")/.."

VERSION=0.3.33
# openai: what its litellm takes. The rest: what single examples import.
NEEDS=("openai<3" gymnasium pandas "flask[async]" langsmith "langfuse<4" trustme lxml pytest-timeout
    "pydantic-ai-slim[openai]" langgraph langchain-openai)
folder=${HOLDFAST_INTEROP_DIR:-.interop}

install() {
    echo "installing eval-protocol $VERSION into $folder …"
    "${PYTHON:-python3}" -m venv --clear "$folder/venv"
    pip=("$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check)
    "${pip[@]}" download --no-deps --no-binary eval-protocol --dest "$folder" \
        "eval-protocol==$VERSION"
    rm -rf "$folder/source" && mkdir "$folder/source"
    tar -xzf "$folder/eval_protocol-$VERSION.tar.gz" --strip-components 1 -C "$folder/source"
    # With its mcp 1: Holdfast works with that, too.
    "${pip[@]}" install "$folder/eval_protocol-$VERSION.tar.gz" "${NEEDS[@]}" \
        --editable '.[evaluation]'
    echo "$VERSION" >"$folder/installed"
}

mkdir -p "$folder"
[ "$(cat "$folder/installed" 2>/dev/null)" = "$VERSION" ] || install
export LITELLM_LOCAL_MODEL_COST_MAP=True
exec "$folder/venv/bin/python" scripts/interop/run.py "$folder" "$@"
