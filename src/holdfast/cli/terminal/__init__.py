"""Output to the terminal, and the signals that the terminal sends.

- `text`: JSON for scripts, and text that cannot do harm.
- `colours`: colours for statuses.
- `progress`: a live line on a terminal, or else a plain line now and then.
- `signals`: SIGINT and SIGTERM: after the first signal, work in flight is finished; the second one
  ends the process at once.
- `force_exit`: ends the process even if user code hangs.
- `gateway_log`: the gateway's log: a line for each request, with its trajectory and no secret.
"""
