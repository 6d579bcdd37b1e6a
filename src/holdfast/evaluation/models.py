"""The models under the name of eval-protocol's module, for ported test files with `from
holdfast.evaluation.models import EvaluationRow`."""

from holdfast.evaluation.rows.names import *  # noqa: F403
from holdfast.evaluation.rows.result import *  # noqa: F403
from holdfast.evaluation.rows.row import *  # noqa: F403
from holdfast.evaluation.rows.status import *  # noqa: F403
