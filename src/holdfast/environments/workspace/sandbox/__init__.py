"""Running a command: with limits, within bubblewrap where that works, and to its very end.

- `sandbox`: how a command is isolated: by bubblewrap, or not at all.
- `mounts`: the files that a command in bubblewrap can see.
- `seccomp`: a system-call filter that forbids user namespaces.
- `command`: runs one command within its time, output and disk limits.
- `processes`: other processes: hidden from a command; found and killed where a command left them.
"""
