"""Sends the spans of a run to the user's OpenTelemetry collector.

Spans are a view of the journal's records. A separate process reads new records from the journal and
sends their spans. So a slow or dead collector does not slow down the run, and no span is dropped.
What was sent while a run worked can be sent again from the journal, with the same ids and times.

- `spans`: Turns the records of a trajectory, a run and a training step into spans.
- `messages`: Writes messages in the form of the `gen_ai` conventions.
- `collector`: Sends spans by OTLP over HTTP.
- `sending`: Sends runs, once or while they work.
"""
