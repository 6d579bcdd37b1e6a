"""What keeps user code from harming the run, or its neighbours.

- `loop_block`: Standstills: times in which one piece of code kept the event loop from turning.
- `orphan_tasks`: Orphans: asyncio tasks that user code started and left behind, and whose they are.
- `gc`: Fewer looks for cyclic garbage while a run works.
- `event_loop`: The event loop of a command, which no user code ends.
- `crash_suspects`: Suspects: trajectories in whose calls the process died again and again.
- `processor_setup`: Upkeep: a processor's own setup and clean-up, which is user code outside of any
  trajectory.
"""
