"""What a terminal is shown, and the signals that it sends.

- `text`: What reaches the terminal: JSON for scripts, and text that cannot do harm.
- `progress`: Showing progress: a live line on a terminal, a plain one now and then elsewhere.
- `exit_codes`: Exit codes.
- `signals`: SIGINT and SIGTERM: the first stops with care, the second at once.
- `force_exit`: Leaving although user code does not want to.
- `gateway_log`: Where the gateway's log goes: a line for each request, with its trajectory and no
  secret.
"""
