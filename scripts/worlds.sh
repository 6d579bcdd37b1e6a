#!/usr/bin/env bash
# Starts a Docker engine from Debian's packages in a folder of its own, without touching the system,
# runs the tests of worlds against it, and stops it. It needs root, apt-get and overlayfs.
# Arguments go to pytest.
#
#   HOLDFAST_WORLDS      the address of an engine that runs already: nothing is started
#   HOLDFAST_WORLDS_DIR  where the engine lies (.worlds)
#   PYTEST_PYTHON        the Python of the tests (.venv/bin/python)
#
# The tests also read HOLDFAST_WORLDS_START, a command that starts the engine again, and
# HOLDFAST_WORLDS_PYTHON, an image with Python (python:3).
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(realpath -m "${HOLDFAST_WORLDS_DIR:-.worlds}")

install() {
    echo "unpacking a Docker engine into $folder …"
    rm -rf "$folder/debs" "$folder/root"
    mkdir -p "$folder/debs" "$folder/root"
    (cd "$folder/debs" && apt-get update -qq && apt-get download -qq \
        docker.io containerd runc libdevmapper1.02.1 busybox-static debootstrap)
    for package in "$folder"/debs/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
    touch "$folder/installed"
}

# A root file system of busybox alone.
make_image() {
    local image=$folder/image
    rm -rf "$image"
    mkdir -p "$image"/{bin,etc,proc,sys,dev,root,tmp}
    chmod 1777 "$image/tmp"
    cp "$(find "$folder/root" -type f -path "*/bin/busybox" | head -1)" "$image/bin/busybox"
    for name in $("$image/bin/busybox" --list); do
        [ "$name" = busybox ] || ln -sf busybox "$image/bin/$name"
    done
    echo 'root:x:0:0:root:/root:/bin/sh' >"$image/etc/passwd"
    tar -C "$image" -c . | docker import --change 'ENV PATH=/bin' - busybox >/dev/null
}

# A Debian with Python, some minutes.
make_python_image() {
    local image=$folder/debian
    rm -rf "$image"
    echo "making a Debian with Python in $image …"
    DEBOOTSTRAP_DIR=$folder/root/usr/share/debootstrap LD_LIBRARY_PATH='' debootstrap \
        --variant=minbase --include=python3,curl stable "$image" http://deb.debian.org/debian \
        >"$folder/debootstrap.log"
    rm -rf "$image"/var/cache/apt/archives/*.deb "$image"/var/lib/apt/lists/*
    tar -C "$image" -c . |
        docker import --change 'ENV PATH=/usr/bin:/bin:/usr/sbin:/sbin' - python:3 >/dev/null
    rm -rf "$image"
}

# The command that starts the engine, also after a test has killed it.
write_start() {
    cat >"$folder/start" <<END
#!/bin/sh
export PATH=$folder/root/usr/sbin:$folder/root/usr/bin:\$PATH
export LD_LIBRARY_PATH=$folder/root/usr/lib/$(uname -m)-linux-gnu
exec dockerd --data-root "$folder/run/data" --exec-root "$folder/run/exec" \\
    --pidfile "$folder/run/pid" -H "$DOCKER_HOST" --bridge=none --iptables=false \\
    --ip6tables=false --ip-forward=false --storage-driver=overlay2 >>"$folder/log" 2>&1
END
    chmod +x "$folder/start"
}

stop() {
    [ -f "$folder/run/pid" ] || return 0
    local pid
    pid=$(cat "$folder/run/pid")
    kill "$pid" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    find "$folder/run/exec" -depth -type d -exec mountpoint -q {} \; -exec umount -l {} \; || true
}

if [ -z "${HOLDFAST_WORLDS:-}" ]; then
    [ -f "$folder/installed" ] || install
    export PATH=$folder/root/usr/sbin:$folder/root/usr/bin:$PATH
    export LD_LIBRARY_PATH=$folder/root/usr/lib/$(uname -m)-linux-gnu
    export DOCKER_HOST=unix://$folder/run/socket
    mkdir -p "$folder/run"
    trap stop EXIT
    write_start
    "$folder/start" &
    for _ in $(seq 100); do docker version >/dev/null 2>&1 && break; sleep 0.2; done
    docker image inspect busybox >/dev/null 2>&1 || make_image
    docker image inspect python:3 >/dev/null 2>&1 || make_python_image
    unset LD_LIBRARY_PATH
    export HOLDFAST_WORLDS=$DOCKER_HOST HOLDFAST_WORLDS_START=$folder/start
fi

"${PYTEST_PYTHON:-.venv/bin/python}" -m pytest tests/worlds tests/crash/test_world_agents_crash.py \
    --timeout 1200 --durations 10 "$@"
