"""Rollouts and training run at the same time, each at its own pace, with a bound on staleness.

In the order in which data passes through them:

- `settings`: how far apart the two sides may be, and how parts are restarted, as frozen values
- `pool`: the groups of a training, as a view of the journal: `DataPool`
- `rollouter`: the engine over a stream that another process fills: `Rollouter`
- `other_part`: how long a part waits for another part that nobody runs
- `batches`: admits tasks as fast as they can be trained in time, and returns them as batches, with
  the number of versions that their tokens are behind
- `status`: the status of each part; a running pipeline as a page and as Prometheus metrics
- `parts`: a rollouter or a trainer by itself; it notices commits of other processes at once
- `child`: a part as a child process: its session, its log, its pipes; when it may start again
- `engine`: the embedded engine of a supervisor, which serves the newest published weights
- `supervisor`: starts the parts, restarts those that crash, and ends them in order: `Supervisor`

The trainer of the pipeline is the one of `holdfast.training`, with the batches of this package.
"""

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.pipeline.parts import train_async as train_async
    from holdfast.pipeline.pool import DataPool as DataPool
    from holdfast.pipeline.pool import PoolChannel as PoolChannel
    from holdfast.pipeline.rollouter import Rollouter as Rollouter
    from holdfast.pipeline.settings import PipelineSettings as PipelineSettings
    from holdfast.pipeline.settings import RestartPolicy as RestartPolicy
    from holdfast.pipeline.supervisor import Supervisor as Supervisor

_MODULES = {
    "pipeline.parts": "train_async",
    "pipeline.pool": "PoolChannel DataPool",
    "pipeline.rollouter": "Rollouter",
    "pipeline.settings": "PipelineSettings RestartPolicy",
    "pipeline.supervisor": "Supervisor",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)
