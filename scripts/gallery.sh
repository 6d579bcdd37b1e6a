#!/usr/bin/env bash
# Runs every example of the gallery, after installing the libraries that examples need into
# .gallery/, on top of .venv, if they are not there (about 1 GB, some minutes). Arguments go to
# pytest.
#
#   HOLDFAST_GALLERY_DIR   where they are installed (.gallery)
#   BASE                   the environment with Holdfast and what its tests need (.venv)
set -euo pipefail
cd "$(dirname "$0")/.."

NEEDS=(reasoning-gym textarena inspect-ai 'verifiers<0.2')
folder=${HOLDFAST_GALLERY_DIR:-.gallery}
base=$(realpath "${BASE:-.venv}")

packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

if [ ! -e "$folder/installed" ]; then
    echo "installing ${NEEDS[*]} into $folder …"
    "$base/bin/python" -m venv --clear "$folder"
    # What is in .venv is found here, too; what is installed here goes before.
    echo "import site; site.addsitedir('$(packages "$base")')" >"$(packages "$folder")/base.pth"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "${NEEDS[@]}"
    # Commands in a workspace see this environment alone, and one example runs pytest there.
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --ignore-installed \
        --no-deps pytest iniconfig pluggy packaging pygments
    touch "$folder/installed"
fi
exec "$folder/bin/python" -m pytest tests/examples "$@"
