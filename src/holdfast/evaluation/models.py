"""The models under the name of eval-protocol's module: a ported test file has `from
holdfast.evaluation.models import EvaluationRow`."""

from holdfast.evaluation.rows.names import *  # noqa: F403
from holdfast.evaluation.rows.result import *  # noqa: F403
from holdfast.evaluation.rows.row import *  # noqa: F403
from holdfast.evaluation.rows.status import *  # noqa: F403
