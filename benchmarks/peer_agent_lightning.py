"""Agent Lightning's proxy with its store in memory, as a process of its own. Runs in an environment
that has it, and knows nothing of Holdfast."""

import asyncio
import sys
from pathlib import Path

from agentlightning import (  # type: ignore[import-not-found]
    InMemoryLightningStore,
    LightningStoreThreaded,
    LLMProxy,
)

AGENTS = 16


async def main() -> None:
    port, engine, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    store = LightningStoreThreaded(InMemoryLightningStore())
    model = {"model": "hosted_vllm/fake", "api_base": f"{engine}/v1", "api_key": "none"}
    proxy = LLMProxy(
        port=port,
        host="127.0.0.1",
        model_list=[{"model_name": "fake", "litellm_params": model}],
        store=store,
        launch_mode="thread",
        callbacks=["return_token_ids", "opentelemetry"],
    )
    await proxy.start()
    begun = [await store.start_rollout(input={"task": number}) for number in range(AGENTS)]
    told = [f"/rollout/{one.rollout_id}/attempt/{one.attempt.attempt_id}" for one in begun]
    written = folder / "bases.new"
    written.write_text("\n".join(told))
    written.rename(folder / "bases")
    await asyncio.Event().wait()


asyncio.run(main())
