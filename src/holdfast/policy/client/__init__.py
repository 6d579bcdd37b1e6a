"""Asking an engine: replicas, retries, outages, and the validation of what it answers.

- `replicas`: The replicas of one model, as one policy.
- `call`: One sample, try after try, until it is whole.
- `endpoint`: One replica of an inference engine, over HTTP.
- `circuit_breaker`: The gate of an endpoint: open while it works, shut while it is down.
- `completion_builder`: What has been sampled of one completion so far, over all tries and replicas.
- `stop_strings`: Stop strings across a seam.
- `discovery`: Discovery: what an inference engine is, and what it can do.
- `probe`: A trial: whether an endpoint that answers can sample, too.
- `http_errors`: Denied: an engine will not answer, however often it is asked; the status says why.
- `capability_check`: Inspection: what an endpoint can do, and what is missing for training; it
  samples some tokens.
- `caveats`: Caveats: what a run must not expect of its engine, said before anything is sampled.
- `logprobs_probe`: Measures of which distribution an engine's logprobs are: no engine says it.
- `possible`: Possible: what an endpoint cannot do, said before it is asked.
- `repeatability`: Repeatability: what a seed is worth, tried and not taken on trust.
- `served_model`: A served model: what `/v1/models` says of it, and what an engine makes of its
  seeds.
"""
