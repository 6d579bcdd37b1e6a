"""What one would write by hand: a semaphore, a session, the answers parsed, nothing kept."""

import asyncio
import json

import aiohttp
import msgspec
import traffic

OPEN, END = 256, 257
CALL = "<tool_call>"
_NUMBER = {"type": "integer"}
_SCHEMA = {
    "type": "object", "properties": {"a": _NUMBER, "b": _NUMBER}, "required": ["a", "b"],
}  # fmt: skip
_ADD = {"name": "add", "description": "Adds two numbers.", "parameters": _SCHEMA}
TOOLS = {"tools": [{"type": "function", "function": _ADD}]} if traffic.SHAPE == "agent" else {}


async def main() -> None:
    slots = asyncio.Semaphore(traffic.CONCURRENCY)
    connector = aiohttp.TCPConnector(limit=traffic.CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def chat(number: int, question: str) -> float:
            body = {
                "model": "fake", "messages": [{"role": "user", "content": question}],
                "max_tokens": traffic.TOKENS, "temperature": 1.0, "seed": number, **TOOLS,
            }  # fmt: skip
            messages = body["messages"]
            async with slots:
                while True:
                    async with session.post(f"{traffic.URL}/v1/chat/completions", json=body) as got:
                        reply = msgspec.json.decode(await got.read())["choices"][0]["message"]
                    if not reply.get("tool_calls"):
                        return float(traffic.EXPECTED in reply["content"])
                    messages.append(reply)
                    for call in reply["tool_calls"]:
                        given = json.loads(call["function"]["arguments"])
                        result = str(given["a"] + given["b"])
                        messages.append(
                            {"role": "tool", "tool_call_id": call["id"], "content": result}
                        )

        async def ask(ids: list[int], seed: int) -> dict[str, object]:
            body = {
                "model": "fake", "prompt": ids, "max_tokens": traffic.TOKENS, "temperature": 1.0,
                "logprobs": 0, "return_token_ids": True, "seed": seed,
            }  # fmt: skip
            async with session.post(f"{traffic.URL}/v1/completions", json=body) as response:
                choice = msgspec.json.decode(await response.read())["choices"][0]
            assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
            return choice

        async def row(number: int, question: str) -> float:
            async with slots:
                ids = [OPEN, *f"user\n{question}".encode(), END, OPEN, *b"assistant\n"]
                reply = await ask(ids, number)
                while CALL in reply["text"]:
                    call = reply["text"].partition(CALL)[2].partition("</")[0]
                    given = json.loads(call)["arguments"]
                    result = str(given["a"] + given["b"])
                    ids = [*ids, *reply["token_ids"], OPEN, *f"tool\n{result}".encode(), END]
                    ids += [OPEN, *b"assistant\n"]
                    reply = await ask(ids, number)
            return float(traffic.EXPECTED in reply["text"])

        questions = [one["messages"][0]["content"] for one in traffic.rows()]
        work = chat if traffic.CHAT else row
        await asyncio.gather(*(work(number, one) for number, one in enumerate(questions)))


asyncio.run(main())
