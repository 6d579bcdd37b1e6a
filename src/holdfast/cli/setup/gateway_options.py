"""Reads the options of a gateway, for any address."""

import argparse
from typing import Any

from holdfast.gateway.calls.unsupported import IgnoredFields
from holdfast.gateway.limits import GatewayLimits

MIB = 1024 * 1024


def processor_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the options of the gateway's processor."""
    return {
        "silence": args.silence,
        "rejoin": args.rejoin,
        "limits": GatewayLimits(body=args.max_body * MIB, drain_seconds=args.drain),
        "ignore": ignored_fields(args),
        "on_refused": args.on_refused,
    }


def ignored_fields(args: argparse.Namespace) -> tuple[str, ...]:
    return IgnoredFields(name for listed in args.ignore or () for name in listed.split(",")).names
