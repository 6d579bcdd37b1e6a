"""Output to the terminal, and the signals that the terminal sends.

- `text`: writes JSON for scripts, and text without control characters and credentials.
- `colours`: colours for statuses.
- `progress`: shows progress in a live line on a terminal, or else in a plain line now and then.
- `signals`: handles SIGINT and SIGTERM. After the first signal, work in flight is finished. The
  second signal ends the process at once.
- `force_exit`: ends the process even if user code hangs.
- `gateway_log`: writes the gateway's log, with a line for each request.
"""
