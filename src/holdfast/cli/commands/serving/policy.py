"""`holdfast policy check`: shows what an endpoint can do, and what it lacks for training."""

import argparse

import msgspec

from holdfast.cli.setup.connect import api_key
from holdfast.cli.terminal.text import one_line, print_json, visible
from holdfast.engine.connect import check_engine
from holdfast.policy.client.capability_check import Inspection, inspect
from holdfast.policy.client.replicas import PAUSED, EnginePolicy, only_model
from holdfast.policy.retry import RetryPolicy
from holdfast.records.encoding.redaction import redact
from holdfast.records.errors import EndpointDown
from holdfast.records.exit_codes import Exit

ONE_TRY = RetryPolicy(tries=1, deadline=60.0, try_timeout=60.0, stall_timeout=60.0)


async def check(args: argparse.Namespace) -> int:
    found = await _inspected(args)
    if args.json:
        verdict = {
            "fit_for_training": found.is_fit_for_training,
            "fit_for_evaluation": found.is_fit_for_evaluation,
        }
        print_json(msgspec.to_builtins(found) | verdict)
    else:
        print(visible(redact("\n".join(_lines(found)))))
    return Exit.OK if found.is_fit_for_training else Exit.FAILURES


async def _inspected(args: argparse.Namespace) -> Inspection:
    key = api_key(args)
    model = args.model or await only_model(args.url, api_key=key)
    policy = EnginePolicy(
        args.url, model, dialect=args.dialect, api_key=key, retry=ONE_TRY, patience=0.0
    )
    try:
        if await policy.endpoints[0].is_paused():
            raise EndpointDown(f"{policy.endpoints[0].name} {PAUSED}")
        await check_engine(policy, dialect=args.dialect)
        return await inspect(policy)
    finally:
        await policy.aclose()


def _lines(found: Inspection) -> list[str]:
    longest = f"{found.max_model_len} tokens" if found.max_model_len else "length unknown"
    return [
        f"{found.url}: model {found.model!r} ({longest}), dialect {found.dialect}",
        *(_findings(found) if found.is_fit_for_evaluation else _reasons(found)),
        f"fit for training: {_verdict(found)}",
    ]


def _findings(found: Inspection) -> list[str]:
    width = max(len(finding.what) for finding in found.findings)
    return [
        f"  {'ok' if finding.fit else 'no':<3} {finding.what:<{width}}  {one_line(finding.detail)}"
        for finding in found.findings
    ]


def _reasons(found: Inspection) -> list[str]:
    """Returns the reasons why an engine gave no samples, each reason once."""
    reasons = dict.fromkeys(one_line(finding.detail) for finding in found.findings)
    return [f"  nothing could be sampled: {why.removeprefix('failed: ')}" for why in reasons]


def _verdict(found: Inspection) -> str:
    if found.is_fit_for_training:
        return "yes"
    if not found.is_fit_for_evaluation:
        return "no, nor for evaluation"
    fixable = [finding for finding in found.findings if finding.remedy]
    if not fixable:
        return "no, for evaluation only"
    return "no, " + "; ".join(
        f"because of its {finding.what}: {finding.remedy}" for finding in fixable
    )
