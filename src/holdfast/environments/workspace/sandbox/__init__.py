"""Runs a command to its end, with limits, and within bubblewrap if that works on this machine.

- `sandbox`: starts a command within bubblewrap, or without isolation.
- `mounts`: the files that a command in bubblewrap can see.
- `seccomp`: a system-call filter that forbids user namespaces.
- `command`: runs one command within its time, output and disk limits.
- `processes`: hides other processes from a command, and kills processes that a command left.
"""
