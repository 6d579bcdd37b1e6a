"""`holdfast policy check`: what an endpoint can do, and what is missing for training."""

import argparse
import asyncio

import msgspec

from holdfast.cli.connecting import api_key
from holdfast.cli.exit import Exit
from holdfast.cli.printing import print_json, visible
from holdfast.policy.inspection import Inspection, inspect
from holdfast.policy.pool import EnginePolicy, only_model
from holdfast.policy.retry import RetryPolicy
from holdfast.records.redaction import redact

ONE_TRY = RetryPolicy(tries=1, deadline=60.0, try_timeout=60.0, stall_timeout=60.0)


def check(args: argparse.Namespace) -> int:
    found = asyncio.run(_inspected(args))
    if args.json:
        print_json(msgspec.to_builtins(found) | {"fit_for_training": found.is_fit_for_training})
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
        await policy.check()
        return await inspect(policy)
    finally:
        await policy.aclose()


def _lines(found: Inspection) -> list[str]:
    longest = f"{found.max_model_len} tokens" if found.max_model_len else "length unknown"
    width = max(len(finding.what) for finding in found.findings)
    return [
        f"{found.url}: model {found.model!r} ({longest}), dialect {found.dialect}",
        *(
            f"  {'ok' if finding.fit else 'no':<3} {finding.what:<{width}}  {finding.detail}"
            for finding in found.findings
        ),
        f"fit for training: {'yes' if found.is_fit_for_training else 'no, for evaluation only'}",
    ]
