#!/usr/bin/env bash
# Installs from Debian what the tests need beside Python, if it is missing: chromium and bubblewrap.
# Does nothing where they are there. Where it cannot install anything (not root, or no apt-get), it
# says what is missing: the tests that need it are then skipped, and say so.
set -euo pipefail

missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v bwrap >/dev/null || missing+=(bubblewrap)
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed: ${missing[*]} (needs root and apt-get); their tests are skipped" >&2
    exit 0
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
        "${missing[@]}" >>"$log" 2>&1
}

echo "installing ${missing[*]} from Debian …" >&2
# A new machine's lists are old, or not there at all.
install || { apt-get update --quiet >>"$log" 2>&1 && install; } || {
    tail -n 20 "$log" >&2
    echo "apt-get could not install ${missing[*]}" >&2
    exit 1
}
