"""The client of inference engines. It has replicas, retries, waits out outages and validates
answers.

- `replicas`: The replicas of one model, as one policy.
- `call`: Tries one sample until it is complete.
- `supported`: Which requests an engine supports.
- `weight_gate`: Which replicas have the weights of a training, and which tokens count.
- `endpoint`: One replica over HTTP, and its status codes as our errors.
- `connections`: How many connections one address gets.
- `http_sessions`: The HTTP client of an endpoint, one for each event loop.
- `interruptible`: A try that other code can end with an error.
- `circuit_breaker`: Stops calls to an endpoint that is down, and probes it until it is back.
- `completion_builder`: The tokens of one completion so far, from all tries and replicas.
- `discovery`: The kind of an engine, its models and its abilities.
- `probe`: Whether an endpoint that answers can also sample.
- `logprobs_probe`: The distribution of an engine's logprobs, and the model behind them.
- `capability_check`: The report of `holdfast policy check`: is the engine fit for training?
- `caveats`: Warnings about the engine before a run samples anything.
"""
