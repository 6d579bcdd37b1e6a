#!/usr/bin/env bash
# Other trainers on our rollouts and samples: TRL's GRPOTrainer, killed and resumed; verl's DataProto,
# advantages and losses; Tinker's Datum; TRL's SFTTrainer on an export. They are installed into
# .trainers/ if they are not there (about 2 GB, some minutes). Arguments go to pytest.
#
#   HOLDFAST_TRAINERS_DIR   where they are installed (.trainers)
#   HOLDFAST_EXHAUSTIVE=1   every phase at which a TRL training can be killed
set -euo pipefail
cd "$(dirname "$0")/.."

VERL=0.9.1
TRL=1.16.0
TINKER=0.36.0
# verl without what it declares: its pins would take other versions of torch and transformers than
# ours. The rest: what its modules import, declared or not.
NEEDS=("ray==2.60.0" tensordict hydra-core codetiming torchdata orjson cachetools fastapi pillow
    uvicorn pytest pytest-timeout)
folder=${HOLDFAST_TRAINERS_DIR:-.trainers}

install() {
    echo "installing TRL $TRL, verl $VERL and tinker $TINKER into $folder …"
    "${PYTHON:-python3}" -m venv --clear "$folder/venv"
    pip=("$folder/venv/bin/python" -m pip --quiet --disable-pip-version-check)
    "${pip[@]}" install --constraint constraints.txt "trl==$TRL" "tinker==$TINKER" "${NEEDS[@]}" \
        --editable '.[train,parquet]'
    "${pip[@]}" install --no-deps "verl==$VERL"
    echo "$VERL $TRL $TINKER" >"$folder/installed"
}

mkdir -p "$folder"
[ "$(cat "$folder/installed" 2>/dev/null)" = "$VERL $TRL $TINKER" ] || install
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" HF_HUB_OFFLINE=1 TRL_EXPERIMENTAL_SILENCE=1
PYTHONPATH=scripts/trainers exec "$folder/venv/bin/python" -m pytest scripts/trainers --config-file scripts/trainers/pytest.ini "$@"
