#!/usr/bin/env bash
# Compares our advantages, losses, gradients and corrections with those of verl (its core_algos) and
# TRL (a step of its GRPOTrainer on the small model), after installing both into .oracles/ if they
# are not there (about 2 GB, some minutes). Arguments go to pytest.
#
#   HOLDFAST_ORACLES_DIR   where they are installed (.oracles)
set -euo pipefail
cd "$(dirname "$0")/.."

VERL=0.9.1
TRL=1.16.0
# verl without what it declares: its pins would take other versions of torch and transformers than
# ours. The rest: what its modules of losses import.
NEEDS=("ray==2.60.0" tensordict hydra-core codetiming torchdata orjson pytest)
folder=${HOLDFAST_ORACLES_DIR:-.oracles}

install() {
    echo "installing verl $VERL and TRL $TRL into $folder …"
    "${PYTHON:-python3}" -m venv --clear "$folder/venv"
    pip=("$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check)
    "${pip[@]}" install --constraint constraints.txt "trl==$TRL" "${NEEDS[@]}" --editable '.[train]'
    "${pip[@]}" install --no-deps "verl==$VERL"
    echo "$VERL $TRL" >"$folder/installed"
}

mkdir -p "$folder"
[ "$(cat "$folder/installed" 2>/dev/null)" = "$VERL $TRL" ] || install
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1
PYTHONPATH=scripts/oracles exec "$folder/venv/bin/python" -m pytest scripts/oracles \
    --config-file scripts/oracles/pytest.ini "$@"
