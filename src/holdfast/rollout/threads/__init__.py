"""User code in threads, and how it is kept from ending what it does not own.

- `pool`: Running blocking user code without blocking the loop, and without ever waiting for it at
  exit.
- `dedicated`: A thread that belongs to one environment: all of its blocking calls run there, one by
  one.
- `contain`: Keeps user code from ending the process: `sys.exit()` in a rollout is one failure, no
  more.
- `blocking`: Runs a coroutine to its end from synchronous code, also inside a running loop.
- `mailbox`: Mailboxes: how threads report to an event loop. Work on the loop of another thread.
"""
