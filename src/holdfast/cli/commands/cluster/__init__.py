"""Commands on a cluster.

- `checks`: Checks a run on a cluster before it begins.
- `worker`: The process of one worker. Many workers can work on one run.
- `driver`: `holdfast run --cluster`, which opens the run, keeps its workers going, and reports.
- `training`: `holdfast train --cluster`, with rollouts on a cluster and a trainer in this process.
- `gateways`: `holdfast gateway --cluster`, which runs one gateway on each node.
"""
