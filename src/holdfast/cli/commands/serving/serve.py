"""`holdfast serve`: runs the embedded engine, or a vLLM, in the foreground."""

import argparse

from holdfast.embedded import arguments


def serve(args: argparse.Namespace) -> int:
    settings = arguments.settings(args)
    if settings.vllm is not None:
        from holdfast.vllm_server import serving as vllm

        return vllm.serve(settings)
    from holdfast.embedded import serving

    return serving.serve(settings)
