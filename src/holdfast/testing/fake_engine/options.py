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
    """The options with which a fake engine is started."""

    model: str = "fake"
    mean_length: float = 24
    """The mean number of tokens before END; 0 means that END never comes."""
    replies: tuple[str, ...] = ()
    """Templates of replies, instead of random letters; see `tokens.Sampler`."""
    delay: float = 0.0
    """Seconds that pass before the first token of every request."""
    max_model_len: int = 1_000_000
    faults: tuple[Fault, ...] = ()
    dialect: Dialect = "vllm"
    """The kind of engine that the fake engine imitates: its endpoints and the shape of its
    answers."""
    token_delay: float = 0.0
    """Seconds that every token takes."""
    tokens_per_chunk: int = 1
    incremental_stream: bool = False
    """Imitates SGLang's `--incremental-streaming-output`: an event holds only the new tokens
    instead of all tokens so far."""
    describes: bool = True
    """Whether `/v1/models` reports two properties that no real engine reports: the renderer of the
    tokens, and that the random numbers of a seed depend on the position, so that a resumed
    generation continues identically."""
    version: str = DEFAULT_VERSION
    """The version of the weights at the start. Other weights sample other tokens."""
    seeds: Seeds = "position"
    """What the random numbers of a seed depend on. With "position", a resumed generation continues
    identically. With "request", the random numbers begin again with each request, as in vLLM, so
    that a resumed generation differs from one that was never interrupted."""
    logprobs_mode: LogprobsMode = "processed"
    """The distribution to which the logprobs belong. By default, vLLM reports raw logprobs and
    SGLang tempered ones. At temperature 1 and without cuts, all modes are the same."""
    images: bool = False
    """Whether the chat wire accepts images. The fake engine does not look at an image: another
    image only makes another prompt. If False, images are refused, as by an engine whose model reads
    only text."""
    thinking_budgets: bool = False
    """Whether the engine accepts `thinking_token_budget`, as vLLM does if it knows how its model
    reasons. The budget does not shorten the replies."""
    experts: tuple[int, ...] = ()
    """Imitates `--enable-return-routed-experts` with three numbers: layers with experts, experts
    for a token in each layer, and experts in total. With (), the engine returns no experts."""
    counts: Counts = "tokens"
    """How vLLM's wires and the chat report usage. With "details", half of each prompt counts as
    cached and half of each reply as reasoning. With "nothing", chats report no usage, as some
    servers do."""
    base: str = "/v1"
    """The path of the chat API. Gemini's is `/v1beta/openai`."""
    reasoning_model: bool = False
    """Whether the chat refuses `max_tokens` with an error that names `max_completion_tokens`, as
    OpenAI's reasoning models do."""


class FakeStats(Struct):
    """Counters since the start or the last reset."""

    requests: int = 0
    """Requests for samples that arrived at any endpoint, including faulty ones."""
    completions: int = 0
    """Generations that ran to their end, whether or not the answer arrived."""
    tokens: int = 0
    """Tokens that were sampled, whether or not they were delivered."""
    in_flight: int = 0
    held: int = 0
    """Generations that a `HOLD` fault stops at present."""
    faults: dict[str, int] = {}
    endpoints: dict[str, int] = {}
    """Requests for samples, by path."""
    streams: int = 0
    """Answers that began as a stream."""
    streams_cut: int = 0
    """Streams that did not reach their end because of a fault, an abort, or a disconnected
    client."""


class SeenCall(Struct, frozen=True):
    """A request for a sample that could be read. A request that could not be read is listed only in
    `requests`."""

    id: str
    path: str
    prompt_tokens: int
    max_tokens: int
    seed: int | None
    stream: bool
    schema: dict[str, object] | None = None
    """The schema that the reply must fit, as JSON."""
    effort: str | None = None
    """The `reasoning_effort`, if the wire has this parameter."""
    images: tuple[str, ...] = ()
    """The URLs of the images in the request's messages."""
    thinking_token_budget: int | None = None
    parameters: dict[str, object] = {}
    """All fields of the request except its prompt, as they were sent."""
