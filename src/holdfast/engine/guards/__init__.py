"""Keeps user code from harming the run, or other trajectories.

- `loop_block`: finds the line that blocks the event loop, and stops the loop's clock meanwhile.
- `event_loop`: the event loop of a command, which user code does not end.
- `orphan_tasks`: asyncio tasks that user code started and left behind.
- `crash_suspects`: trajectories that may crash the process.
- `spending`: adds up what a run has used, and stops the run at its limits.
- `processor_setup`: a processor's own setup and clean-up, outside of any trajectory.
"""
