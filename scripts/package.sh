#!/usr/bin/env bash
# Builds sdist and wheel, and installs the wheel into clean environments: the core, and each extra alone.
# There, every command and every public name works, or names the extra that it needs.
# Also: a wheel of the sdist has the same files, so that nothing of the tree is missing in it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$python" -m venv "$place/build"
"$place/build/bin/pip" install --quiet --disable-pip-version-check build uv
"$place/build/bin/python" -m build --outdir "$place/dist" . > "$place/build.log" 2>&1 || { tail -30 "$place/build.log"; exit 1; }
wheel=$(ls "$place"/dist/*.whl)
sdist=$(ls "$place"/dist/*.tar.gz)
echo "built $(basename "$wheel") and $(basename "$sdist")"

mkdir "$place/again" && tar -xzf "$sdist" -C "$place/again"
"$place/build/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$place/second" "$place"/again/*
[ "$(basename "$wheel")" = "$(basename "$place"/second/*.whl)" ] || { echo "the sdist has another version"; exit 1; }
list() { "$python" -m zipfile -l "$1" | awk 'NR > 1 {print $1}' | sort; }
diff <(list "$wheel") <(list "$place"/second/*.whl) || { echo "the sdist lacks files"; exit 1; }

# uv links what it has installed before, so that an environment takes a second. It does not read pip's
# settings, and the small build of torch may be found only by them.
links=${PIP_FIND_LINKS:-$("$python" -m pip config get global.find-links 2>/dev/null || true)}
export UV_FIND_LINKS=${UV_FIND_LINKS:-$links}
environment() {
  "$place/build/bin/uv" venv --quiet --python "$python" "$place/alone"
  "$place/build/bin/uv" pip install --quiet --python "$place/alone/bin/python" \
    --constraint constraints.txt --constraint constraints-tests.txt "$wheel[$1]"
}
check_version() {
  version=$("$place/alone/bin/holdfast" --version)
  case "$(basename "$wheel")" in
    holdfast_rollouts-"${version#holdfast }"-*) ;;
    *) echo "$version is not the version of $(basename "$wheel")"; exit 1 ;;
  esac
}
extras=$("$python" -c "
import sys, tomllib
print(*sorted(set(tomllib.load(sys.stdin.buffer)['project']['optional-dependencies']) - {'dev', 'docs'}))
" < pyproject.toml)
for extra in "" $extras; do
  environment "$extra"
  check_version
  "$place/alone/bin/python" scripts/package/walk.py "$extra"
  rm -rf "$place/alone"
done
