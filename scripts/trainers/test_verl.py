"""verl's own code on converted samples: a real `DataProto`, advantages and losses equal to ours."""

import random

import pytest
import torch
from made_samples import make
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

from holdfast.convert import from_verl, to_verl
from holdfast.records.samples.sample import Sample, placeholder
from holdfast.training.advantages import ESTIMATORS, estimate
from holdfast.training.batch import group_samples, sequences_of
from holdfast.training.objective.losses import TokenBatch, policy_loss
from holdfast.training.objective.objective import PRESETS, Mean


def batch(seed: int) -> list[Sample]:
    """Groups of four; in the second one, a member failed."""
    chance = random.Random(seed)
    found = []
    for task in ("a", "b", "c"):
        for number in range(4):
            if task == "b" and number == 2:
                found.append(placeholder(task=task, group=task, sample=number))
            else:
                found.append(make(task, number, chance.choice([0.0, 0.5, 1.0]), chance))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_real_data_proto_gives_the_samples_back(seed):
    samples = batch(seed)
    data = to_verl(samples).data_proto()
    assert isinstance(data, DataProto)
    assert len(data) == 11
    real = [sample for sample in samples if not sample.remove_sample]
    for found, expected in zip(from_verl(data), real, strict=True):
        assert (found.token_ids, found.loss_mask) == (expected.token_ids, expected.loss_mask)
        assert found.logprobs == pytest.approx(expected.logprobs, rel=1e-6)
        assert found.reward == pytest.approx(expected.reward)
    # verl cuts and joins batches.
    parts = data[:6], data[6:]
    assert from_verl(DataProto.concat(list(parts))) == from_verl(data)


@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_a_group_with_a_failed_member(seed):
    samples = batch(seed)
    data = to_verl(samples).data_proto()
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        token_level_rewards=data.batch["rm_scores"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
    )
    theirs = advantages.sum(-1) / data.batch["response_mask"].sum(-1)
    groups = group_samples(samples)
    ours = [v for group in estimate([g.rewards for g in groups], ESTIMATORS["grpo"]) for v in group]
    assert theirs.tolist() == pytest.approx(ours, abs=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_over_converted_samples(seed):
    samples = batch(seed)
    objective = PRESETS["grpo"]
    data = to_verl(samples).data_proto()
    mask = data.batch["response_mask"].double()
    old = data.batch["rollout_log_probs"].double()
    torch.manual_seed(seed)
    new = old + 0.3 * torch.randn(old.shape, dtype=torch.float64)
    sequences = sequences_of(group_samples(samples), objective)
    values = torch.zeros_like(old)
    for row, sequence in enumerate(sequences):
        values[row][mask[row].bool()] = torch.tensor(sequence.advantages, dtype=torch.float64)
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 1e9}
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **bounds)
    theirs, _ = core_algos.get_policy_loss_fn("vanilla")(
        old_log_prob=old,
        log_prob=new,
        advantages=values,
        response_mask=mask,
        loss_agg_mode="seq-mean-token-mean",
        config=config,
        rollout_is_weights=None,
    )
    chosen = mask.bool()
    rows = torch.arange(len(mask))[:, None].expand_as(chosen)[chosen]
    weights = torch.tensor([s.weight for s in sequences], dtype=torch.float64)
    ours, _ = policy_loss(
        TokenBatch(
            logprobs=new[chosen],
            engine_logprobs=old[chosen],
            old_logprobs=None,
            advantages=values[chosen],
            weights=weights[rows],
            sequences=rows,
            reference_logprobs=None,
        ),
        objective,
    )
    assert objective.mean is Mean.TRAJECTORIES
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)
