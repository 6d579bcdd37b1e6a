"""Output to the terminal, and the signals that the terminal sends.

- `text`: JSON for scripts, and text that cannot do harm.
- `colours`: colours for statuses.
- `progress`: a live line on a terminal, a plain one now and then elsewhere.
- `signals`: SIGINT and SIGTERM: the first stops with care, the second at once.
- `force_exit`: ends the process although user code does not end.
- `gateway_log`: the gateway's log: a line for each request, with its trajectory and no secret.
"""
