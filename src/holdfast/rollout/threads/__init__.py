"""User code in threads, and how it is kept from ending the process or the loop.

- `pool`: runs blocking user code without blocking the loop, and without waiting for it at exit.
- `dedicated`: a thread that belongs to one environment and runs its blocking calls one by one.
- `contain`: keeps user code from ending the process: `sys.exit()` only fails the rollout.
- `blocking`: runs a coroutine to its end from synchronous code, even inside a running loop.
- `mailbox`: lets threads post callbacks to an event loop, and runs work on another thread's loop.
"""
