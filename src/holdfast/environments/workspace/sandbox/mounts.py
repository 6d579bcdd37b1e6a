"""The files that a command within bubblewrap sees: the system, read-only, and its workspace."""

import functools
import os
import sys
from collections.abc import Iterator

from holdfast.records.errors import UsageError

WORKSPACE = "/workspace"
USER = 1000
"""The user id of a command in its sandbox."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
SETTINGS = (
    *("alternatives", "ca-certificates", "fonts", "java", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "magic", "mime.types", "nsswitch.conf", "pki", "profile"),
    *("protocols", "services", "ssl", "timezone"),
)
NETWORK_SETTINGS = ("resolv.conf", "hosts", "host.conf", "gai.conf")
TAKEN = ("/", "/tmp", "/proc", "/dev", "/etc", "/root", "/home", WORKSPACE)  # noqa: S108
ACCOUNTS = f"""\
root:x:0:0:root:/:/usr/sbin/nologin
agent:x:{USER}:{USER}:agent:{WORKSPACE}:/bin/sh
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
"""
GROUPS = f"root:x:0:\nagent:x:{USER}:\nnogroup:x:65534:\n"


def arguments(
    folder: str, *, network: bool, temporary: int, read_only: tuple[str, ...]
) -> list[str]:
    """Returns the mount options for bwrap. With `--remount-ro /` after them, a command can write
    only to `folder`, /tmp and /dev/shm."""
    return [
        *_system(),
        *_settings(network),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(temporary), "--perms", "1777", "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--remount-ro", "/dev"),
        *("--size", str(temporary), "--perms", "1777", "--tmpfs", "/tmp"),  # noqa: S108
        *(argument for path in read_only for argument in _extra(path)),
        *("--bind", folder, WORKSPACE, "--chdir", WORKSPACE),
    ]


@functools.cache
def _system() -> tuple[str, ...]:
    options: list[str] = []
    for path in SYSTEM:
        if os.path.islink(path):
            options += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            options += [*_parents(path), "--ro-bind", path, path]
    return tuple(options)


@functools.cache
def _settings(network: bool) -> tuple[str, ...]:
    options = ["--perms", "0755", "--dir", "/etc"]
    for name in (*SETTINGS, *(NETWORK_SETTINGS if network else ())):
        if os.path.exists(f"/etc/{name}"):
            options += ["--ro-bind-try", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    return tuple(options)


def _extra(path: str) -> list[str]:
    """Returns the options that mount a path. If the path is a link, they also mount its target,
    because interpreters need both."""
    options: list[str] = []
    for target in dict.fromkeys((os.path.realpath(path), path)):
        options += [*_parents(target), "--ro-bind", path, target]
    return options


def _parents(path: str) -> Iterator[str]:
    """Yields the options that create the parent folders of a path. If bwrap created them by itself,
    other users could not read them."""
    parts = os.path.dirname(path).strip("/").split("/")
    for depth in range(1, len(parts) + 1 if parts != [""] else 1):
        parent = "/" + "/".join(parts[:depth])
        yield from ("--perms", "0755", "--dir", parent)


def check_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the paths of the `read_only` option, without those that are mounted in any case.
    Raises `UsageError` for a path that cannot be mounted."""
    for path in paths:
        if not os.path.isabs(path) or not os.path.exists(path):
            raise UsageError(f"read_only: {path!r} is not an absolute path of something that is")
        if os.path.normpath(path) in TAKEN:
            raise UsageError(f"read_only: {path} cannot be shown to commands; name what is in it")
    return tuple(path for path in map(os.path.normpath, paths) if not _is_system(path))


def interpreter() -> tuple[str, ...]:
    """Returns the folders of this process's Python, which are mounted so that `python` and `pytest`
    in the sandbox are the user's."""
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix))
    return tuple(path for path in prefixes if not _is_system(path) and path not in TAKEN)


def _is_system(path: str) -> bool:
    return any(path == top or path.startswith(top + "/") for top in SYSTEM)
