#!/usr/bin/env bash
# Builds sdist and wheel, installs the wheel alone into a clean environment, and runs a rollout there.
# Also: a wheel of the sdist has the same files, so that nothing of the tree is missing in it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"$python" -m venv "$place/build"
"$place/build/bin/pip" install --quiet --disable-pip-version-check build
"$place/build/bin/python" -m build --outdir "$place/dist" . > "$place/build.log" 2>&1 || { tail -30 "$place/build.log"; exit 1; }
wheel=$(ls "$place"/dist/*.whl)
sdist=$(ls "$place"/dist/*.tar.gz)
echo "built $(basename "$wheel") and $(basename "$sdist")"

mkdir "$place/again" && tar -xzf "$sdist" -C "$place/again"
"$place/build/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$place/second" "$place"/again/*
[ "$(basename "$wheel")" = "$(basename "$place"/second/*.whl)" ] || { echo "the sdist has another version"; exit 1; }
list() { "$python" -m zipfile -l "$1" | awk 'NR > 1 {print $1}' | sort; }
diff <(list "$wheel") <(list "$place"/second/*.whl) || { echo "the sdist lacks files"; exit 1; }

"$python" -m venv "$place/clean"
"$place/clean/bin/pip" install --quiet --disable-pip-version-check --constraint constraints-tests.txt "$wheel"
cd "$place"
version=$(clean/bin/holdfast --version)
case "$(basename "$wheel")" in
  holdfast_rollouts-"${version#holdfast }"-*) ;;
  *) echo "$version is not the version of $(basename "$wheel")"; exit 1 ;;
esac
cat > agent.py <<'PY'
async def solve(t):
    t.add(*t.task.messages)
    await t.generate(max_tokens=8)


def score(trajectory):
    return 1.0
PY
echo '{"prompt": "Hello"}' > tasks.jsonl
clean/bin/python - <<'PY'
import subprocess, sys
from holdfast.testing import FakeEngine

with FakeEngine() as engine:
    for words in (
        ["run", "agent.py", "--tasks", "tasks.jsonl", "--run", "first", "--policy", engine.url, "--quiet"],
        ["runs"],
        ["report", "first", "--out", "report.html"],
        ["journal", "check"],
    ):
        subprocess.run([sys.executable, "-m", "holdfast", *words], check=True, stdout=subprocess.DEVNULL)
PY
grep -q "<html" report.html
echo "$version: installed and run in a clean environment"
