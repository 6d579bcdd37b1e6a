"""Three ranks come to the numbers of one: losses, gradients, diagnostics, weights and moments."""

import pytest

pytest.importorskip("peft", reason="the extra `train`")

import torch
from msgspec import structs

from holdfast.embedded.model.files import TINY
from holdfast.records.errors import UsageError
from holdfast.training.objective.objective import PRESETS, TIS, Kl, Objective
from holdfast.training.run import weights
from holdfast.training.run.loop import TrainingState
from holdfast.training.settings import Lora, OptimizerSettings, TrainerSettings, TrainingSettings
from holdfast.training.trainer import Trainer
from support.embedded import tiny_models
from support.ranks import joined
from support.training_groups import groups_of

RATE = OptimizerSettings(learning_rate=1e-3)
ALL = Objective(
    kl=Kl(0.1, weighted=True), correction=TIS, recompute_old=True, entropy=0.05, stale_mask=0.5
)
PENALIZED = Objective(kl=Kl(0.1, "k1", "reward"))
OBJECTIVES = {**PRESETS, "all of it": ALL, "penalized": PENALIZED}

WAYS = {
    "full": {},
    "lora": {"lora": Lora(4, 8)},
    "checkpointed": {"gradient_checkpointing": True},
    "lora, checkpointed": {"lora": Lora(4, 8), "gradient_checkpointing": True},
}


def some(names, *always):
    """A part of them by default."""
    marks = {True: (), False: (pytest.mark.exhaustive,)}
    return [pytest.param(name, marks=marks[name in always]) for name in names]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    with joined(3, tmp_path_factory.mktemp("ranks")) as group:
        yield group


def settings_for(objective, **changes):
    return TrainerSettings(objective, RATE, row_tokens=40, **changes)


def assert_same_step(result, expected):
    assert result.loss == pytest.approx(expected.loss, abs=2e-5, rel=2e-4)
    assert result.numbers.keys() == expected.numbers.keys()
    for name, number in expected.numbers.items():
        assert result.numbers[name] == pytest.approx(number, abs=1e-4, rel=2e-3), name
    assert (result.tokens, result.skipped_updates) == (expected.tokens, expected.skipped_updates)


def assert_same_tensors(result, expected, *, within=2e-3):
    """AdamW makes steps of a whole learning rate out of gradients that are almost nothing."""
    assert result.keys() == expected.keys()
    for name, tensor in expected.items():
        assert result[name].shape == tensor.shape
        assert float((result[name] - tensor).abs().mean()) <= within, name


def compare(ranks, settings, *, model=TINY, seeds=(3, 4), **options):
    """One rank and three, step by step; both trainers."""
    first, three = (Trainer(model, settings, ranks=r, **options) for r in (None, ranks))
    for seed in seeds:
        groups = groups_of(seed)
        assert_same_step(three.step(groups), first.step(groups))
    assert_same_tensors(three.weights(), first.weights(), within=1e-4)
    assert_same_tensors(three.optimizer_state(), first.optimizer_state())
    return first, three


def published(trainer, folder):
    """The bytes of all that is written of its weights, by file."""
    path = weights.write_folder(folder, "w", trainer.network)
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", some(OBJECTIVES, "dapo", "gspo", "all of it", "penalized"))
def test_an_objective_comes_to_the_same(ranks, name):
    objective = OBJECTIVES[name]
    if name == "gspo":
        # Its clip is so narrow that rounding would decide on which side a sequence lies.
        objective = structs.replace(objective, clip=structs.replace(objective.clip, high=0.5))
    updates = 2 if name == "all of it" else 1
    compare(ranks, settings_for(objective, updates=updates))


@pytest.mark.parametrize("way", some(WAYS, "full", "lora, checkpointed"))
def test_each_way_to_train_comes_to_the_same(ranks, way, tmp_path):
    first, three = compare(ranks, settings_for(ALL), **WAYS[way])
    paths = [
        weights.write_folder(tmp_path / n, "w", t.network) for n, t in (("1", first), ("3", three))
    ]
    names = [sorted(p.relative_to(path) for p in path.rglob("*")) for path in paths]
    assert names[0] == names[1]
    assert three.best_logprobs([5, 6, 7, 8], [2, 4]) == pytest.approx(
        first.best_logprobs([5, 6, 7, 8], [2, 4]), abs=1e-3
    )
    assert three.network.exact_logprobs([5, 6, 7, 8], [2, 4]) == pytest.approx(
        first.network.exact_logprobs([5, 6, 7, 8], [2, 4]), abs=1e-3
    )


@pytest.mark.parametrize("make", [tiny_models.llama, tiny_models.gemma2])
def test_tied_weights_packed_or_one_sequence_at_a_time(ranks, make, tmp_path):
    model = make(tmp_path / "model")
    first, three = (Trainer(model, settings_for(PRESETS["grpo"]), ranks=r) for r in (None, ranks))
    assert bool(three.network.why_sequential) == (make is tiny_models.gemma2)
    groups = [_folded(group) for group in groups_of(3)]
    assert_same_step(three.step(groups), first.step(groups))
    assert_same_tensors(three.weights(), first.weights(), within=1e-4)
    assert "lm_head.weight" not in three.weights()
    paths = [
        weights.write_folder(tmp_path / n, "w", t.network) for n, t in (("1", first), ("3", three))
    ]
    assert len({tuple(sorted(p.name for p in path.iterdir())) for path in paths}) == 1


def _folded(group):
    """With tokens that the small models know."""
    size = tiny_models.VOCABULARY
    return structs.replace(group, trajectories=tuple(
        structs.replace(t, samples=tuple(
            structs.replace(s, token_ids=[number % size for number in s.token_ids])
            for s in t.samples
        ))
        for t in group.trajectories
    ))  # fmt: skip


def test_gradients_that_are_not_finite_are_skipped_by_all_ranks_alike(ranks):
    trainer = Trainer(TINY, settings_for(PRESETS["grpo"]), ranks=ranks)
    before = trainer.weights()
    (group, *_) = groups_of(3)
    first, *others = group.trajectories
    (sample, *_) = first.samples
    # So cold that its logits are infinite: of the row that it is in alone, on one of the ranks.
    frozen = [structs.replace(turn, temperature=1e-44) for turn in sample.turns]
    spoiled = structs.replace(first, samples=(structs.replace(sample, turns=frozen),))
    result = trainer.step([structs.replace(group, trajectories=(spoiled, *others))])
    assert result.skipped_updates == 1
    assert all(torch.equal(t, before[name]) for name, t in trainer.weights().items())
    assert trainer.step(groups_of(4)).skipped_updates == 0


def test_nothing_to_train_is_no_step_for_any_rank(ranks):
    trainer = Trainer(TINY, settings_for(PRESETS["grpo"]), ranks=ranks)
    before = trainer.weights()
    assert trainer.step([]).loss == 0.0
    assert all(torch.equal(t, before[name]) for name, t in trainer.weights().items())


@pytest.mark.parametrize("lora", [None, Lora(4, 8)], ids=["full", "lora"])
def test_any_number_of_ranks_goes_on_from_a_checkpoint(ranks, lora, tmp_path):
    settings = TrainingSettings(trainer=settings_for(PRESETS["dapo"]), lora=lora)

    def state(group):
        trainer = Trainer(TINY, settings.trainer, lora=lora, ranks=group)
        return TrainingState(trainer, settings, folder=tmp_path, run="first")

    def save(result):
        digest = weights.digest_of(result.trainer.weights())
        result.version = weights.WeightFolder("w", tmp_path, digest)
        result.save()
        return published(result.trainer, tmp_path / "weights")

    three = state(ranks)
    three.trainer.step(groups_of(3))
    files = save(three)
    expected = three.trainer.step(groups_of(4))
    after = three.trainer.weights()

    again = state(ranks)
    assert again.restore().step == 1
    assert again.trainer.step(groups_of(4)).loss == expected.loss
    assert all(torch.equal(t, after[name]) for name, t in again.trainer.weights().items())

    item = state(None)
    assert item.restore().step == 1
    assert weights.digest_of(item.trainer.weights()) == three.version.digest
    assert save(item) == files
    assert_same_step(item.trainer.step(groups_of(4)), expected)
    assert_same_tensors(item.trainer.weights(), after, within=1e-4)


def test_weights_that_do_not_fit_are_refused_before_any_rank_has_changed(ranks):
    trainer = Trainer(TINY, settings_for(PRESETS["grpo"]), ranks=ranks)
    saved, state = trainer.weights(), trainer.optimizer_state()
    name = next(iter(saved))
    with pytest.raises(UsageError, match="another shape"):
        trainer.restore({**saved, name: saved[name][:1]}, state)
    trainer.restore(saved, state)
    assert trainer.step(groups_of(3)).tokens
