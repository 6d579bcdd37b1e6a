"""Keeps user code from harming the run, or other trajectories.

- `loop_block`: a blocked event loop: the line that blocks it, and a clock that stands still.
- `event_loop`: the event loop of a command, which user code does not end.
- `orphan_tasks`: asyncio tasks that user code started and left behind.
- `crash_suspects`: trajectories that may crash the process.
- `spending`: what a run has used, and the limits at which it stops.
- `processor_setup`: a processor's own setup and clean-up, outside of any trajectory.
"""
