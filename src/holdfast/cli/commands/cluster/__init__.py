"""Commands on a cluster.

- `checks`: Checks a run on a cluster before it begins.
- `worker`: A worker's process: one of many that work on a run.
- `driver`: `holdfast run --cluster`: opens the run, keeps its workers going, and reports.
- `training`: `holdfast train --cluster`: rollouts on a cluster, with a trainer in this process.
- `gateways`: `holdfast gateway --cluster`: one gateway on each node.
"""
