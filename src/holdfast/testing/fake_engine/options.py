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
    """The mean number of tokens until END; 0 means that END never comes."""
    replies: tuple[str, ...] = ()
    """Templates of replies, instead of random letters; see `tokens.Sampler`."""
    delay: float = 0.0
    """Seconds that pass before the first token of every request."""
    max_model_len: int = 1_000_000
    faults: tuple[Fault, ...] = ()
    dialect: Dialect = "vllm"
    """The engine that it imitates: its endpoints and the shape of its answers."""
    token_delay: float = 0.0
    """Seconds that every token takes."""
    tokens_per_chunk: int = 1
    incremental_stream: bool = False
    """SGLang's `--incremental-streaming-output`: an event holds only the new tokens, not all tokens
    so far."""
    describes: bool = True
    """Whether `/v1/models` says what no real engine says: the renderer of the tokens, and that a
    seed's noise goes by position, so that a resumed generation continues identically."""
    version: str = DEFAULT_VERSION
    """The version of the weights at the start. Other weights sample other tokens."""
    seeds: Seeds = "position"
    """With "request", a seed's noise begins again with each request, as in vLLM. A resumed
    generation then differs from one that was never interrupted."""
    logprobs_mode: LogprobsMode = "processed"
    """The distribution of the logprobs. vLLM's are raw by default, SGLang's tempered. At
    temperature 1 and without cuts, all modes are the same."""
    images: bool = False
    """Whether the chat wire takes images. The fake engine cannot see: another image only makes
    another prompt. Without this option, images are refused, as by an engine whose model reads only
    text."""
    thinking_budgets: bool = False
    """Whether it takes `thinking_token_budget`, as vLLM does if it was told how its model reasons.
    The budget does not cut the replies."""
    experts: tuple[int, ...] = ()
    """Imitates `--enable-return-routed-experts`: the number of layers with experts, the number of
    experts for a token in each layer, and the number of experts. () is without it."""
    counts: Counts = "tokens"
    """How vLLM's wires and the chat report usage. With "details", half of each prompt was cached
    and half of each reply is reasoning. With "nothing", chats report no usage, as with some
    servers."""
    base: str = "/v1"
    """The path of the chat API. Gemini's is `/v1beta/openai`."""
    reasoning_model: bool = False
    """Whether the chat refuses `max_tokens` with an error that names `max_completion_tokens`, as
    OpenAI's reasoning models do."""


class FakeStats(Struct):
    """Counters since the start or the last reset."""

    requests: int = 0
    """Calls to sample that arrived at any endpoint, including faulty ones."""
    completions: int = 0
    """Generations that ran to their end, whether or not the answer arrived."""
    tokens: int = 0
    """Tokens that were sampled, whether or not they were delivered."""
    in_flight: int = 0
    held: int = 0
    """Generations that a `HOLD` fault holds now."""
    faults: dict[str, int] = {}
    endpoints: dict[str, int] = {}
    """Calls to sample, by path."""
    streams: int = 0
    """Answers that began as a stream."""
    streams_cut: int = 0
    """Streams that did not reach their end because of a fault, an abort, or a client that left."""


class SeenCall(Struct, frozen=True):
    """A call to sample that could be read. Calls that could not be read are only in `requests`."""

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
    """The URLs of the images in its messages."""
    thinking_token_budget: int | None = None
    parameters: dict[str, object] = {}
    """All members of the request except its prompt, as they were sent."""
