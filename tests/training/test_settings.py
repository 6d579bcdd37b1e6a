"""Settings of a training: what is given by hand is what was declared, or is named in one line."""

from pathlib import Path

import pytest

from holdfast.records.errors import UsageError
from holdfast.training.advantages import OverlongPenalty
from holdfast.training.objective.objective import PRESETS, Kl
from holdfast.training.settings import (
    Lora,
    OptimizerSettings,
    TrainerSettings,
    TrainingSettings,
    training_settings_from,
)


def test_settings_by_the_name_of_a_loss():
    made = TrainingSettings.of("dapo", steps=3, learning_rate=1e-4, groups=4, schedule="linear")
    assert made.dynamic
    assert made.groups == 4
    assert made.trainer.steps == 3
    assert made.trainer.optimizer.learning_rate == 1e-4
    assert made.trainer.optimizer.schedule == "linear"
    assert made.trainer.objective.clip.high == 0.28
    assert TrainingSettings.of() == TrainingSettings()
    with pytest.raises(UsageError, match="'learnin_rate'; is 'learning_rate' meant"):
        TrainingSettings.of(learnin_rate=1e-4)
    with pytest.raises(UsageError, match="no loss is called 'best'"):
        TrainingSettings.of("best")


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({"learning_rate": "1e-4"}, "learning_rate must be a number, not '1e-4'"),
        ({"learning_rate": None}, "learning_rate must be a number, not None"),
        ({"beta1": "0.9"}, "beta1 must be a number, not '0.9'"),
        ({"weight_decay": "0"}, "weight_decay must be a number, not '0'"),
        ({"weight_decay": float("nan")}, "weight_decay must be 0 or more"),
        ({"warmup_steps": "3"}, "warmup_steps must be a whole number, not '3'"),
        ({"max_norm": "1"}, "max_norm must be a number, not '1'"),
        ({"eval_deadline": "60"}, "eval_deadline must be a number, not '60'"),
        ({"seed": None}, "seed must be a whole number, not None"),
        ({"seed": 2**70}, "seed must fit in 64 bits"),
        ({"lora": 8}, "lora must be a Lora(…) or a dict of its fields, not 8"),
        ({"lora": {"rnk": 8}}, "lora has no 'rnk'; is 'rank' meant?"),
        ({"lora": {"rank": "8"}}, "LoRA rank must be a whole number, not '8'"),
        ({"lora": {"targets": "q_proj"}}, "LoRA targets must be a list, not 'q_proj'"),
        ({"overlong": 100}, "overlong must be an OverlongPenalty(…) or a dict of its fields"),
        ({"overlong": {"length": 100}}, "overlong needs margin"),
        (
            {"optimizer": "adam"},
            "optimizer must be an OptimizerSettings(…) or a dict",
        ),
        ({"objective": "best"}, "no loss is called 'best'; there are grpo"),
        ({"objective": 3}, "objective must be an Objective(…) or a dict of its fields, not 3"),
        ({"objective": {"kl": {"coefficient": "1"}}}, "kl coefficient must be a number, not '1'"),
        ({"objective": {"clip": 0.2}}, "clip must be a Clip(…), a Cap(…), a Gate(…) or an Unclip"),
        ({"loss": print}, "a function of your own goes to holdfast.train(loss=…)"),
        ({"weight_dir": 3}, "weight_dir must be a path, not 3"),
        ({"weight_dir": ""}, "weight_dir must be a path, not ''"),
        ({"share_prefixes": "no"}, "share_prefixes must be True or False, not 'no'"),
        ({"dynamic": "yes"}, "dynamic must be True or False, not 'yes'"),
        ({"device": 0}, "device must be a text, not 0"),
        ({"schedule": "lin"}, "schedule='lin' is none of constant, linear, cosine"),
        ({"truncation": []}, "truncation=[] is none of keep, mask"),
        ({"optimizer": {}, "learning_rate": 1e-4}, "learning_rate is part of optimizer"),
        ({"trainer": {}, "learning_rate": 1e-4}, "learning_rate is part of trainer"),
        ({"trainer": {}, "steps": 3}, "steps is part of trainer, which is given too"),
        ({"trainer": {}, "loss": "dapo"}, "has its objective: loss 'dapo' is too much"),
    ],
)
def test_what_is_no_setting_is_named(options, arguments):
    with pytest.raises(UsageError) as caught:
        TrainingSettings.of(**options)
    assert arguments in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_with_fields_may_be_dicts_and_an_objective_its_name():
    made = TrainingSettings.of(
        lora={"rank": 8, "targets": ["q_proj"]},
        overlong={"length": 100, "margin": 20},
        objective={"kl": {"coefficient": 0.1}},
        optimizer={"learning_rate": 1e-4},
        weight_dir="/dev/shm/weights",
    )
    assert made.lora == Lora(8, 32, ("q_proj",))
    assert made.trainer.overlong == OverlongPenalty(100, 20)
    assert made.trainer.objective.kl == Kl(0.1)
    assert made.trainer.optimizer == OptimizerSettings(1e-4)
    assert made.weight_dir == Path("/dev/shm/weights")
    assert TrainingSettings.of(objective="dapo") == TrainingSettings.of("dapo")
    assert TrainerSettings(objective="gspo").objective == PRESETS["gspo"]
    assert TrainingSettings.of(trainer={"steps": 3}).trainer == TrainerSettings(steps=3)
    assert training_settings_from({"loss": "dapo", "steps": 3}) == TrainingSettings.of(
        "dapo", steps=3
    )
    assert training_settings_from(None) == TrainingSettings()
