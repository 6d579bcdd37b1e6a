"""User code in threads, and how it is kept from ending the process or the loop.

- `pool`: Runs blocking user code without blocking the loop, and without waiting for it at exit.
- `dedicated`: A thread that belongs to one environment. All of its blocking calls run there, one by
  one.
- `contain`: Keeps user code from ending the process: `sys.exit()` in a rollout is only one failure.
- `blocking`: Runs a coroutine to its end from synchronous code, even inside a running loop.
- `mailbox`: Mailboxes: how threads report to an event loop. Work on the loop of another thread.
"""
