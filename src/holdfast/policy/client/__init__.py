"""The client of inference engines: replicas, retries, outages, and validation of the answers.

- `replicas`: The replicas of one model, as one policy.
- `call`: One sample, try after try, until it is whole.
- `supported`: What an engine can be asked for.
- `weight_gate`: Which replicas have the weights of a training, and which tokens count.
- `endpoint`: One replica over HTTP, and its status codes as our errors.
- `http_sessions`: Its HTTP client, one for each event loop.
- `interruptible`: One try, which others may end.
- `circuit_breaker`: Stops calls to an endpoint that is down, and probes it until it is back.
- `completion_builder`: The tokens of one completion so far, from all tries and replicas.
- `discovery`: The kind of an engine, its models and its abilities.
- `probe`: Whether an endpoint that answers can also sample.
- `logprobs_probe`: What an engine's logprobs say of it: their distribution, and its model.
- `capability_check`: The report of `holdfast policy check`: is the engine fit for training?
- `caveats`: Warnings about the engine before a run samples anything.
"""
