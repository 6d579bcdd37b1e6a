"""Replicas whose weights are recorded, as a trainer of this process would have done it."""

from holdfast.policy.client.replicas import EnginePolicy
from holdfast.policy.client.weight_gate import WeightGate
from holdfast.records.samples.replica_weights import (
    ReplicaWeights,
    WeightState,
    newest_by_replica,
)
from holdfast.weights.records import MemoryRecords


async def record_weights(policy: EnginePolicy, version: str) -> None:
    """From now on, all replicas have this version, checked."""
    if policy.gate is None:
        policy.gate_by(WeightGate(MemoryRecords(), patience=policy.patience, is_sender=True))
    assert policy.gate is not None
    for endpoint in policy.endpoints:
        await endpoint.ask_incarnation()
        last = newest_by_replica(await policy.gate.records.read()).get(endpoint.url)
        number = 1 if last is None else last.number + 1
        record = ReplicaWeights(
            endpoint.url,
            WeightState.CHECKED,
            endpoint.incarnation,
            version,
            endpoint.model,
            number=number,
        )
        await policy.gate.records.note(record)
        endpoint.weights = version


async def newest_record(policy: EnginePolicy, url: str) -> ReplicaWeights:
    assert policy.gate is not None
    return newest_by_replica(await policy.gate.records.read())[url]
