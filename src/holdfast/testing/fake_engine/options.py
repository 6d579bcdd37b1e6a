"""The options of a fake engine, and its counters. Importing them needs no server."""

from typing import Literal, get_args

from msgspec import Struct

from holdfast.testing.fake_engine.faults import Fault

Dialect = Literal["vllm", "vllm-scale-out", "sglang", "fireworks", "chat"]
DIALECTS: tuple[str, ...] = get_args(Dialect)
Seeds = Literal["position", "request"]
Counts = Literal["tokens", "details", "nothing"]
LogprobsMode = Literal["processed", "tempered", "raw"]
DEFAULT_VERSION = "default"
"""The name of an engine's first weights, as vLLM and SGLang call them."""


class FakeOptions(Struct, frozen=True):
    """How a fake engine is started."""

    model: str = "fake"
    mean_length: float = 24
    """Tokens until END, on average; 0: never."""
    replies: tuple[str, ...] = ()
    """Templates to answer with instead of random letters; see `tokens.Sampler`."""
    delay: float = 0.0
    """Seconds that every request takes before its first token."""
    max_model_len: int = 1_000_000
    faults: tuple[Fault, ...] = ()
    dialect: Dialect = "vllm"
    """Which engine it is taken for: what it serves, and in which shape."""
    token_delay: float = 0.0
    """Seconds that every token takes."""
    tokens_per_chunk: int = 1
    incremental_stream: bool = False
    """SGLang's `--incremental-streaming-output`: events hold what is new, not all so far."""
    describes: bool = True
    """Whether `/v1/models` has what no real engine has: that a seed holds by position, so that a
    resumed generation goes on identically, and the renderer of its tokens."""
    version: str = DEFAULT_VERSION
    """The weights it starts with. Other weights sample other tokens."""
    seeds: Seeds = "position"
    """"request": as in vLLM, a seed's noise begins anew with each request, so that what goes on
    from its tokens differs from what was never interrupted."""
    logprobs_mode: LogprobsMode = "processed"
    """Of which distribution its logprobs are: vLLM's are raw by default, SGLang's
    tempered. At temperature 1, uncut, it makes no difference."""
    images: bool = False
    """Whether its chat wire takes images. It cannot see: another image is another prompt, no more.
    Without it they are refused, as by an engine whose model reads text."""
    thinking_budgets: bool = False
    """Whether it takes `thinking_token_budget`, as vLLM does where it was told how its model
    reasons; its replies are not cut by it."""
    experts: tuple[int, ...] = ()
    """With `--enable-return-routed-experts`: how many layers have experts, how many a token is
    routed to in each, and how many there are; (): without it."""
    counts: Counts = "tokens"
    """What vLLM's wires and the chat say of their usage: "details", that half of each prompt was
    cached, and half of each reply is reasoning; "nothing", as some servers do, of chats."""
    base: str = "/v1"
    """The path of a chat API: Gemini's is `/v1beta/openai`."""
    reasoning_model: bool = False
    """Whether its chat refuses `max_tokens` and names `max_completion_tokens`, as OpenAI's
    reasoning models do."""


class FakeStats(Struct):
    """Counted since the start or the last reset."""

    requests: int = 0
    """Calls to sample that arrived at any endpoint, faulty ones included."""
    completions: int = 0
    """Generations that ran to their end, whether or not their answer arrived."""
    tokens: int = 0
    """Every token that was sampled, whether or not it was delivered."""
    in_flight: int = 0
    held: int = 0
    """Generations that a `hold` holds now."""
    faults: dict[str, int] = {}
    endpoints: dict[str, int] = {}
    """Calls to sample, by path."""
    streams: int = 0
    """Answers that were begun as a stream."""
    streams_cut: int = 0
    """Streams that did not reach their end: by a fault, an abort, or because the client left."""


class SeenCall(Struct, frozen=True):
    """A call to sample that could be read; those that could not be are only in `requests`."""

    id: str
    path: str
    prompt_tokens: int
    max_tokens: int
    seed: int | None
    stream: bool
    schema: dict[str, object] | None = None
    """The schema that the reply must fit, as JSON."""
    effort: str | None = None
    """Where the wire has a parameter for it: `reasoning_effort`."""
    images: tuple[str, ...] = ()
    """The URLs of the images in its messages."""
    thinking_token_budget: int | None = None
    parameters: dict[str, object] = {}
    """All members of the request but its prompt, as they were sent."""
