"""Running a command: with limits, within bubblewrap where that works, and to its very end.

- `sandbox`: how a command is isolated: by bubblewrap, or not at all.
- `mounts`: the files that a command in bubblewrap can see.
- `seccomp`: a system-call filter that forbids user namespaces.
- `confinement`: hides other processes of the user from a command without bubblewrap.
- `command`: runs one command within its time, output and disk limits.
- `output`: the beginning and the end of what a command printed.
- `processes`: finds and kills processes that a command left behind.
"""
