"""Commands on a cluster.

- `checks`: What can be wrong about a cluster, before anything is begun.
- `worker`: A worker's process: one of many that work on a run.
- `driver`: `holdfast run --cluster`: opens the run, keeps its workers going, and reports.
- `training`: `holdfast train --cluster`: rollouts on a cluster, beside a trainer.
- `gateways`: `holdfast gateway --cluster`: one gateway on each node.
"""
