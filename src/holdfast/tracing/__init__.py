"""OpenTelemetry: the spans of a run, sent to a collector of the user's.

Spans are a view of the journal's records. The journal is the queue: a process of its own reads what
is new and sends it, so a slow or dead collector costs the run nothing, and nothing is dropped. What
was sent while a run worked can be sent again from the journal, with the same ids and times.

- `spans`: Turns the records of a trajectory, a run and a training step into spans.
- `messages`: Writes messages in the form of the `gen_ai` conventions.
- `collector`: Sends spans by OTLP over HTTP.
- `sending`: Sends runs, once or while they work.
"""
