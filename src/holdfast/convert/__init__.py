"""Converts samples to the formats of other trainers, and back, with pure functions.

- `provenance`: Keeps the parts of a sample that a format has no field for, beside the data.
- `selection`: Groups samples by trajectory, and handles branches, placeholders, missing rewards.
- `checks`: Refuses data that a trainer would train wrongly.
- `experts`: Routed experts of samples, read from the journal.
- `versions`: Weight versions of a run, and the steps of the weights in a sample.
- `verl`: verl's `DataProto`, and the results of its agent loops.
- `slime`: slime's `Sample`, in groups, with placeholders in the shape of their siblings.
- `trl`: The columns that a `rollout_func` of TRL returns, and the rows of its asynchronous trainer.
- `nemo`: NeMo-RL's message logs.
- `tinker`: Tinker's `Datum`.
- `sft`: Messages, or prompts with completions, for supervised fine-tuning.
- `atif`: ATIF documents, for Harbor, NeMo-Gym and other viewers of trajectories.
- `inspect_log`: The log that `inspect view` and Inspect Scout open.
- `evaluation_rows`: Converts EvaluationRows to samples.
- `lines`: Writes a run in one of these formats, line by line, for files.
"""

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.convert.atif import to_atif as to_atif
    from holdfast.convert.evaluation_rows import from_rows as from_rows
    from holdfast.convert.experts import load_experts as load_experts
    from holdfast.convert.nemo import from_nemo as from_nemo
    from holdfast.convert.nemo import to_nemo as to_nemo
    from holdfast.convert.selection import Branches as Branches
    from holdfast.convert.selection import MissingReward as MissingReward
    from holdfast.convert.sft import to_sft as to_sft
    from holdfast.convert.slime import from_slime as from_slime
    from holdfast.convert.slime import to_slime as to_slime
    from holdfast.convert.tinker import from_tinker as from_tinker
    from holdfast.convert.tinker import to_tinker as to_tinker
    from holdfast.convert.trl import from_trl as from_trl
    from holdfast.convert.trl import to_trl as to_trl
    from holdfast.convert.trl import to_trl_async as to_trl_async
    from holdfast.convert.verl import from_verl as from_verl
    from holdfast.convert.verl import to_agent_loop_output as to_agent_loop_output
    from holdfast.convert.verl import to_verl as to_verl
    from holdfast.convert.versions import load_versions as load_versions

_MODULES = {
    "convert.atif": "to_atif",
    "convert.evaluation_rows": "from_rows",
    "convert.experts": "load_experts",
    "convert.nemo": "from_nemo to_nemo",
    "convert.selection": "Branches MissingReward",
    "convert.sft": "to_sft",
    "convert.slime": "from_slime to_slime",
    "convert.tinker": "from_tinker to_tinker",
    "convert.trl": "from_trl to_trl to_trl_async",
    "convert.verl": "from_verl to_agent_loop_output to_verl",
    "convert.versions": "load_versions",
}
__getattr__, __all__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
