"""The gateway: black-box agents over HTTP, recorded token by token, resumed by replay.

An agent that speaks to an LLM over HTTP is pointed at the gateway. Each of its calls is a durable
step of its trajectory. Started again, it is given back its own past, answer for answer, and goes on
live from where it failed.
"""
