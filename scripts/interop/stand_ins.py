"""Stand-ins for everything that eval-protocol's examples ask over a network, at 127.0.0.1.

- An engine: chat completions that answer with tool calls, JSON, a verdict or a sentence, by what
  they are asked for. Judges are the same engine under their own addresses.
- A proxy (HTTPS_PROXY) that connects every host to one server with a certificate of our own
  (SSL_CERT_FILE), which answers as that host would: data sets, tracing services.

Data is our own and small; only its shape is theirs. Run as a program, it writes where everything is
to the file that it is given, and serves until it is killed.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import trustme
from aiohttp import web

MODELS = [
    *(
        f"accounts/fireworks/models/{name}"
        for name in (
            *("gpt-oss-120b", "gpt-oss-20b", "kimi-k2p5", "glm-4p6", "deepseek-v3p1"),
            "qwen3-235b-a22b-instruct-2507",
        )
    ),
    *("gpt-4.1", "gpt-4o-mini", "gpt-4o", "dummy/local-model"),
]
HOSTS = [
    *("huggingface.co", "openaipublic.blob.core.windows.net", "raw.githubusercontent.com"),
    *("api.openai.com", "api.fireworks.ai", "api.smith.langchain.com", "api.braintrust.dev"),
    *("cloud.langfuse.com", "us.cloud.langfuse.com", "tracing.fireworks.ai"),
]
SVG = '```svg\n<svg xmlns="http://www.w3.org/2000/svg" width="8" height="8"></svg>\n```'
THOUGHT = "<think>Or is it B: \\boxed{42}?</think>"
"""As an engine without a parser of reasoning gives it: of a model of OpenAI's name, and of any that
is asked what `THINKS` says."""
THINKS = "What is 35 + 35?"
SHOPPER = "Domain: retail"
"""In the instructions of a simulated user. This one is content after two answers; those of the
other domain never are."""
ASKED = [{"role": "user", "content": "Which is the largest ocean?"}]
REPLY = {"role": "assistant", "content": "The Pacific."}


# --- the engine


async def models(_: web.Request) -> web.Response:
    listed = [{"id": name, "object": "model", "owned_by": "interop"} for name in MODELS]
    return web.json_response({"object": "list", "data": listed})


async def chat(request: web.Request) -> web.StreamResponse:
    asked = await request.json()
    message = _message(asked)
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    told = {
        "id": "chatcmpl-interop",
        "created": 0,
        "model": asked.get("model", ""),
        "usage": {"prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12},
    }
    if not asked.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return web.json_response({**told, "object": "chat.completion", "choices": [choice]})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    calls = [{**call, "index": at} for at, call in enumerate(message.get("tool_calls") or ())]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    for part, reason in ((delta, None), ({}, finish)):
        choice = {"index": 0, "delta": part, "finish_reason": reason}
        chunk = {**told, "object": "chat.completion.chunk", "choices": [choice]}
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


def _message(asked: dict[str, Any]) -> dict[str, Any]:
    said = asked.get("messages") or []
    tools, text = asked.get("tools"), json.dumps(said)
    if tools and asked.get("tool_choice") != "none" and _turns(said) < 3:
        return {"role": "assistant", "content": None, "tool_calls": [_call(tools, len(said))]}
    form = asked.get("response_format") or {}
    schema = form.get("schema") or (form.get("json_schema") or {}).get("schema")
    if schema or form.get("type") == "json_object":
        return {"role": "assistant", "content": json.dumps(_filled(schema or {}, "answer"))}
    if SHOPPER in text and len(said) > 5:  # Its rules, and two turns of either side.
        return {"role": "assistant", "content": "Thank you. ###STOP###"}
    if "[[A>>B]]" in text:
        return {"role": "assistant", "content": "My final verdict is tie: [[A=B]]"}
    if "SVG" in text or "svg" in text:
        return {"role": "assistant", "content": SVG}
    thinks = str(asked.get("model")).startswith("gpt-4") or THINKS in text
    thought = THOUGHT if thinks else ""
    return {"role": "assistant", "content": f"{thought}The answer is A: \\boxed{{70}}."}


def _turns(said: list[dict[str, Any]]) -> int:
    return sum(one.get("role") == "assistant" for one in said)


def _call(tools: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Of the tool that wants the fewest arguments: it is the least likely to refuse them."""
    functions = [tool["function"] for tool in tools]
    function = min(
        functions, key=lambda one: len((one.get("parameters") or {}).get("required") or ())
    )
    arguments = _filled(function.get("parameters") or {}, "answer")
    return {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": function["name"], "arguments": json.dumps(arguments)},
    }


def _filled(schema: dict[str, Any], name: str) -> Any:
    """A value that fits the schema."""
    if schema.get("enum"):
        return schema["enum"][0]
    match schema.get("type"):
        case "object" | None if schema.get("properties"):
            wanted = schema.get("required") or list(schema["properties"])
            return {one: _filled(schema["properties"][one], one) for one in wanted}
        case "object" | None:
            return {}
        case "array":
            return [_filled(schema.get("items") or {"type": "integer"}, name)] * schema.get(
                "minItems", 1
            )
        case "integer" | "number":
            return 1
        case "boolean":
            return True
    # At the left edge of a lake that is drawn by chance, nobody falls into a hole.
    return "LEFT" if name == "action" else name


# --- hosts


async def host(request: web.Request) -> web.StreamResponse:
    path = request.path
    for part, answer in ANSWERS.items():
        if part in f"{request.host}{path}":
            found = answer(request)
            return await found if asyncio.iscoroutine(found) else found
    return web.json_response({"error": f"no stand-in for {request.host}{path}"}, status=404)


def lines(*records: dict[str, Any]) -> Any:
    text = "\n".join(json.dumps(record) for record in records)
    return lambda _: web.Response(text=text, content_type="application/jsonl")


def body(value: Any) -> Any:
    return lambda _: web.json_response(value)


GPQA = (
    "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\n"
    "What is 6 × 7?,42,41,40,39\nWhich is a metal?,iron,helium,neon,argon\n"
)
RESPONSE = {
    "id": "resp_interop",
    "object": "response",
    "created_at": 0,
    "status": "completed",
    "model": "gpt-4o",
    "output": [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": REPLY["content"], "annotations": []}],
        }
    ],
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
}
ITEM = {
    "type": "message",
    "id": "msg_0",
    "role": "user",
    "status": "completed",
    "content": [{"type": "input_text", "text": ASKED[0]["content"]}],
}
RUN = {
    "id": "00000000-0000-0000-0000-000000000001",
    "trace_id": "00000000-0000-0000-0000-000000000001",
    "session_id": "00000000-0000-0000-0000-000000000002",
    "name": "run",
    "run_type": "chain",
    "start_time": "2025-01-01T00:00:00",
    "inputs": {"messages": ASKED},
    "outputs": {"messages": [*ASKED, REPLY]},
    "status": "success",
    "dotted_order": "20250101T000000000000Z00000000-0000-0000-0000-000000000001",
}
TRACE = {
    "id": "trace-1",
    "timestamp": "2025-01-01T00:00:00Z",
    "name": "trace",
    "input": {"messages": ASKED},
    "output": REPLY,
    "tags": [],
    "public": False,
    "environment": "default",
    "htmlPath": "/",
    "latency": 0.1,
    "totalCost": 0.0,
    "observations": [],
    "scores": [],
    "metadata": {},
}
META = {"page": 1, "limit": 100, "totalItems": 1, "totalPages": 1}
ANSWERS: dict[str, Any] = {
    "aime2025-II.jsonl": lines({"question": "What is 70?", "answer": "70"}),
    "aime2025-I.jsonl": lines({"question": THINKS, "answer": "70"}),
    "gpqa_diamond.csv": lambda _: web.Response(text=GPQA, content_type="text/csv"),
    "domains/airline/db.json": body({"flights": {}, "users": {}, "reservations": {}}),
    "domains/retail/db.json": body({"products": {}, "users": {}, "orders": {}}),
    "/input_items": body(
        {
            "object": "list",
            "data": [ITEM],
            "first_id": "msg_0",
            "last_id": "msg_0",
            "has_more": False,
        }
    ),
    "/v1/responses/": body(RESPONSE),
    "/v1/models": models,
    "/chat/completions": chat,
    "/runs/query": body({"runs": [RUN], "cursors": {"next": None}}),
    "/sessions": body(
        [
            {
                "id": RUN["session_id"],
                "name": "interop",
                "start_time": RUN["start_time"],
                "tenant_id": RUN["session_id"],
            }
        ]
    ),
    "smith.langchain.com/info": body({"version": "0"}),
    "api.braintrust.dev": body(
        {"data": [{"id": "b1", "input": ASKED, "output": [{"message": REPLY}], "metadata": {}}]}
    ),
    "/api/public/traces/": body(TRACE),
    "/api/public/traces": body({"data": [TRACE], "meta": META}),
}


# --- the proxy


def tunnel_to(port: int) -> Any:
    """`CONNECT host:443`, whatever the host, to our own server."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"CONNECT "):
                writer.write(b"HTTP/1.1 501 Not Implemented\r\ncontent-length: 0\r\n\r\n")
                return
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            inner, outer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pumped(reader, outer), _pumped(inner, writer))
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    return serve


async def _pumped(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


# --- all of it


async def listening(app: web.Application, tls: ssl.SSLContext | None = None) -> int:
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    return int(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]


async def main(ready: Path) -> None:
    authority = trustme.CA()
    certificate = ready.with_name("ca.pem")
    authority.cert_pem.write_to_path(str(certificate))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*HOSTS).configure_cert(tls)

    engine, hosts = web.Application(), web.Application()
    engine.router.add_get("/v1/models", models)
    engine.router.add_post("/v1/chat/completions", chat)
    hosts.router.add_route("*", "/{path:.*}", host)
    proxy = await asyncio.start_server(tunnel_to(await listening(hosts, tls)), "127.0.0.1", 0)
    places = {
        "engine": f"http://127.0.0.1:{await listening(engine)}",
        "proxy": f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}",
        "certificate": str(certificate.absolute()),
    }
    part = ready.with_suffix(".part")
    part.write_text(json.dumps(places))
    part.replace(ready)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
