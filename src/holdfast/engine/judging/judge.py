"""A Judge is a model that scores finished trajectories by a rubric.

The verdicts of a judge that is used as a scorer are recorded like any other score, so that recorded
trajectories are not judged again after a kill. An answer that cannot be read is asked for again, up
to `repairs` times. A judge that cannot judge gives no score (None), never a 0.

If the engine is down, the judge waits for it. If the engine cannot be used, the run stops and can
go on later, and no trajectory fails. Some problems raise an error before the run begins: the engine
does not answer or refuses the key, the cache cannot be written, or there are too many samples to
compare.
"""

import asyncio
import hashlib
import json
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from msgspec import structs

from holdfast.engine.arguments import is_policy, sampling_from
from holdfast.engine.connect import Connection, EngineAddress, connect_policy
from holdfast.engine.judging.arguments import (
    address_from,
    cache_from,
    check_key,
    check_names,
    check_open_policy,
    check_switch,
    rubric_from,
)
from holdfast.engine.judging.cache import VerdictCache, digest_of_question
from holdfast.engine.judging.connection import JudgeConnection
from holdfast.engine.judging.prompt import (
    SINGLE,
    Candidate,
    JudgeVerdict,
    NoVerdict,
    messages_for,
    messages_to_compare,
    read_verdict,
    repair,
)
from holdfast.engine.open_policy import connected
from holdfast.engine.options import PATIENCE
from holdfast.engine.scoring.engine_use import EngineUse, engine_use
from holdfast.engine.scoring.scorer import GROUP_MARK, Score, shown
from holdfast.policy.policy import Policy, Request
from holdfast.records.encoding.bounds import check_whole
from holdfast.records.encoding.redaction import redact
from holdfast.records.encoding.tokens import TYPE_IDS, unpack_ids
from holdfast.records.errors import (
    EndpointDown,
    HoldfastError,
    PolicyError,
    PolicyRefused,
    UsageError,
)
from holdfast.records.failure import shortened
from holdfast.records.message import Message, as_message, assistant
from holdfast.records.sampling import Sampling
from holdfast.records.usage import JUDGE, NOTHING, UNREAD, Usage
from holdfast.records.view import TrajectoryView

SAMPLING = Sampling(max_tokens=1024, temperature=0.0)
_WHOSE = "the judge: "
_KEY = (
    "it takes its key from Judge(…, api_key=…), else from HOLDFAST_API_KEY, or, for a provider's "
    "model, from the provider's own variable"
)
_LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Judge:
    """A scorer: `Judge("Is the answer correct and polite?", policy="openai/gpt-4o-mini")`.

    The reward is the score, scaled to 0 to 1. The metrics hold the score as the judge gave it, and
    the reasons hold the judge's explanation. With a dict of criteria, each criterion is a metric,
    and the reward is their mean. With `compare=True`, the judge is a group scorer: it sees all
    samples of a task together, and judges them against each other.
    """

    IS_ITS_IDENTITY = True
    """Says that `identity` alone identifies a judge: other changes in the file of its class do not
    make it another scorer."""

    def __new__(cls, *positional: object, **named: object) -> "Judge":
        # A subclass may have other arguments. A copy has none.
        if cls.__init__ is Judge.__init__ and (positional or named):
            check_names(cls.__init__, positional, named)
        return super().__new__(cls)

    def __init__(
        self,
        rubric: "str | Mapping[str, str]",
        *,
        policy: "Policy | str | Sequence[str]",
        model: str | None = None,
        api_key: str | None = None,
        scale: tuple[float, float] = (0, 10),
        compare: bool = False,
        target: bool = True,
        sampling: "Sampling | Mapping[str, object] | None" = None,
        repairs: int = 2,
        cache: "Path | str | None" = None,
    ):
        """Checks the arguments. No engine is asked yet.

        `policy`: an engine's address, a provider's model (`openai/…`), or an open policy.
        `api_key`: the key of the engine; None reads the provider's variable, or HOLDFAST_API_KEY.
        `target`: whether the judge sees the task's ground truth. `repairs`: how often the judge is
        asked again after an answer that cannot be read. `cache`: a file that keeps verdicts.
        """
        self.rubric = rubric_from(rubric, scale)
        check_key(api_key)
        check_open_policy(policy, model, api_key)
        check_switch("compare", compare)
        check_switch("target", target)
        self._policy, self._model, self._key = policy, model, _Key(api_key)
        self._address: EngineAddress | None = None
        if not is_policy(policy):
            # The key is needed only for the first request: importing the file must work without it.
            address = address_from(policy, model, api_key, needs_key=False)
            self._address = structs.replace(address, api_key=None)
        self._sampling = sampling_from(sampling) or SAMPLING
        check_whole("repairs", repairs, least=0)
        self._repairs = repairs
        self._target = target
        self._compares = compare
        self._cache = VerdictCache(cache_from(cache))
        self._shared: WeakKeyDictionary[asyncio.AbstractEventLoop, JudgeConnection] = (
            WeakKeyDictionary()
        )
        self._is_made_by_scorer = engine_use() is not None
        self.usage: Usage = NOTHING
        """The tokens of the judge's answers so far. Cached answers cost nothing."""
        if compare:
            setattr(self, GROUP_MARK, True)

    @property
    def _engine(self) -> str:
        """The engine's address, for messages."""
        if self._address is not None and self._address.urls:
            return redact(self._address.urls[0])
        return f"the engine of {self._policy.model!r}" if is_policy(self._policy) else "its engine"

    @property
    def identity(self) -> str:
        """The judge's part of a run's identity.

        A judge with another rubric, scale, sampling or model counts as another scorer. The engine's
        address does not matter. If only the engine knows the model's name, the run records that
        name once the engine is asked.
        """
        model: object = self._policy.model if is_policy(self._policy) else ()
        if self._address is not None:
            model = self._address.models
        settings = msgspec.json.encode((self.rubric, self._sampling, self._compares, self._target))
        return hashlib.sha256(settings + repr(model).encode()).hexdigest()[:16]

    async def __call__(self, judged: object) -> "Score | list[Score]":
        """Judges a trajectory, or a row of an evaluation. With `compare`, judges a list of them."""
        if self._compares:
            if not isinstance(judged, list | tuple) or not judged:
                what = "an empty one" if isinstance(judged, list | tuple) else type(judged).__name__
                raise UsageError(
                    "this judge compares, and takes a list of several trajectories or rows, not "
                    f"{what}; to judge one by itself, compare=False"
                )
            return await self._compare([self._candidate(each) for each in judged])
        if isinstance(judged, list | tuple):
            raise UsageError("this judge takes one at a time; to compare several, compare=True")
        return await self.judge(self._candidate(judged))

    async def judge(self, candidate: Candidate) -> Score:
        if not isinstance(candidate, Candidate):
            raise UsageError(f"judge() takes a Candidate, not {shown(candidate)}: call the judge")
        names = tuple(self.rubric.criteria)
        answer = await self._ask(messages_for(self.rubric, candidate), names)
        if answer.verdict is None:
            return answer.score(None)
        scores = answer.verdict.scores
        known = [score for score in scores.values() if score is not None]
        whole = len(known) == len(scores)
        reward = sum(map(self._scaled, known)) / len(known) if whole else None
        metrics = {name: score for name, score in scores.items() if score is not None}
        reasons = {name: why for name, why in answer.verdict.reasons.items() if why or not whole}
        return answer.score(reward, metrics, reasons)

    async def _compare(self, candidates: list[Candidate]) -> list[Score]:
        """Compares the candidates.

        Equal candidates are shown once and get the same score. Otherwise the judge's preference for
        a position could give them different scores.
        """
        _check_number(len(candidates))
        labels = dict(zip(_in_fair_order(candidates), _LABELS, strict=False))
        shown_once = {label: candidate for candidate, label in labels.items()}
        answer = await self._ask(messages_to_compare(self.rubric, shown_once), tuple(shown_once))
        whole = answer.usage
        scores = []
        for number, candidate in enumerate(candidates):
            answer.usage = whole.share(number, of=len(candidates))  # All candidates share the cost.
            scores.append(self._compared(answer, labels[candidate]))
        return scores

    def _compared(self, answer: "_Answer", label: str) -> Score:
        if answer.verdict is None or (score := answer.verdict.scores[label]) is None:
            why = answer.verdict.reasons[label] if answer.verdict else ""
            return answer.score(None, reasons={SINGLE: why})
        reasons = {SINGLE: answer.verdict.reasons[label]}
        return answer.score(self._scaled(score), {SINGLE: score}, reasons)

    def _scaled(self, score: float) -> float:
        return (score - self.rubric.low) / (self.rubric.high - self.rubric.low)

    def _candidate(self, judged: Any) -> Candidate:
        if isinstance(judged, Candidate):
            return judged
        messages = getattr(judged, "messages", None)
        if not isinstance(messages, list | tuple):
            raise UsageError(
                "a judge takes a finished trajectory, or a row: something with messages, not "
                f"{shown(judged)}"
            )
        task = judged.task if isinstance(judged, TrajectoryView) else judged
        target = getattr(task, "ground_truth", None) if self._target else None
        text = "\n\n".join(_as_text(message) for message in messages)
        return Candidate(text, None if target is None else _plain(target))

    async def check_before_run(self, *, samples: int = 1) -> str:
        """Checks the judge before anything is sampled, and returns the name of its model.

        Raises an error for a problem with its engine, its key, its cache, or the number of samples
        to compare.
        """
        if self._compares:
            _check_number(samples)
        await asyncio.to_thread(self._cache.check)
        try:
            async with self._open(PATIENCE.default) as connection:
                await _check_key(connection.policy)
                return connection.policy.model
        except (PolicyError, UsageError) as error:
            _name_judge(error)
            raise

    # --- asking

    async def _ask(self, messages: tuple[Message, ...], names: tuple[str, ...]) -> "_Answer":
        """Asks the engine, or returns the cached answer.

        Raises `EndpointDown` or `PolicyRefused` if the engine cannot be used. The judged
        trajectories are not to blame, so the run stops and can go on later.
        """
        use = engine_use()
        if use is not None:
            use.add_judge(self.identity, is_made=self._is_made_by_scorer)
        try:
            async with self._connected(use) as connection:
                return await self._ask_engine(connection, messages, names)
        except (EndpointDown, PolicyRefused) as error:
            _name_judge(error)
            if use is not None:
                use.unusable = error
            raise

    async def _ask_engine(
        self, connection: Connection, messages: tuple[Message, ...], names: tuple[str, ...]
    ) -> "_Answer":
        model = connection.policy.model
        digest = digest_of_question(model, self._sampling, messages)
        if (kept := await self._cache.get(digest)) is not None:
            return _Answer(model, read_verdict(kept, self.rubric, names), tries=0)
        answer = await self._ask_anew(connection, messages, names)
        if answer.verdict is not None:
            await self._cache.put(digest, answer.text)
        return answer

    async def _ask_anew(
        self, connection: Connection, messages: tuple[Message, ...], names: tuple[str, ...]
    ) -> "_Answer":
        answer = _Answer(connection.policy.model)
        for tries in range(1, self._repairs + 2):
            text, usage = await _sample(connection, messages, self._sampling)
            answer.tries, answer.text, answer.usage = tries, text, answer.usage + usage
            self.usage += usage
            if (use := engine_use()) is not None:
                use.add(answer.model, usage)
            try:
                answer.verdict = read_verdict(text, self.rubric, names)
            except NoVerdict as error:
                answer.wrong = str(error)
                messages = (*messages, assistant(text or "(nothing)"), repair(answer.wrong))
            else:
                return answer
        if (use := engine_use()) is not None:
            use.unread = True
        return answer

    @asynccontextmanager
    async def _connected(self, use: EngineUse | None) -> AsyncIterator[Connection]:
        """Yields the connection, which all open blocks and calls of the judge share.

        Raises `PolicyRefused` if the engine can never be used as the judge asks.
        """
        shared = self._enter()
        try:
            if use is not None:
                use.count(shared)
            patience = PATIENCE.default if use is None else use.patience
            try:
                connection = await shared.get(patience)
            except UsageError as error:  # As after a 401: the same request will never work.
                raise PolicyRefused(str(error)) from error
            yield connection
        finally:
            await self._leave(shared)

    @asynccontextmanager
    async def _open(self, patience: float) -> AsyncIterator[Connection]:
        if self._address is None:
            assert is_policy(self._policy), "it has no address"
            yield await connect_policy(self._policy)
            return
        address = address_from(self._policy, self._model, self._key.text)
        async with connected(structs.replace(address, patience=patience)) as connection:
            yield connection

    async def __aenter__(self) -> "Judge":
        """Keeps the judge's connection open until the last open block ends.

        An evaluation opens one block for each row. A run does this by itself.
        """
        self._enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        if (shared := self._shared.get(asyncio.get_running_loop())) is not None:
            await self._leave(shared)

    def _enter(self) -> JudgeConnection:
        made = JudgeConnection(self._engine, self._open)
        shared = self._shared.setdefault(asyncio.get_running_loop(), made)
        shared.users += 1
        return shared

    async def _leave(self, shared: JudgeConnection) -> None:
        shared.users -= 1
        if shared.users == 0 and self._shared.get(asyncio.get_running_loop()) is shared:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection of this event loop and the cache, even if they are in use."""
        shared = self._shared.pop(asyncio.get_running_loop(), None)
        await asyncio.to_thread(self._cache.close)
        if shared is not None:
            await shared.aclose()


class _Key:
    """Holds an API key so that the key does not become part of an identity.

    The identity of code covers only the type of such an object, and not its text. So the key is
    left out even if a user's own class inherits from `Judge`.
    """

    def __init__(self, text: str | None):
        self.text = text


class _Answer:
    """The judge's answer to a question: a verdict, or None if no answer could be read."""

    def __init__(self, model: str, verdict: JudgeVerdict | None = None, tries: int = 0):
        self.model = model
        self.verdict = verdict
        self.tries = tries
        self.text = ""
        self.wrong = ""
        self.usage = NOTHING

    def score(
        self,
        reward: float | None,
        metrics: Mapping[str, float] | None = None,
        reasons: Mapping[str, str] | None = None,
    ) -> Score:
        used = self.usage.as_fields()
        details: dict[str, object] = {"model": self.model, "tries": self.tries, "usage": used}
        why = dict(reasons or {})
        if self.verdict is None:
            details[UNREAD] = True
            said = " ".join(self.text.split())
            # Reports count trajectories by the first line.
            why = {
                "judge": f"no verdict after {self.tries} answers: {self.wrong}\n"
                f"the last answer: {shortened(said) or 'empty'}"
            }
        elif reward is None:
            why = {
                name: f"the judge gave no score{text and f': {text}'}" for name, text in why.items()
            }
        return Score(reward, metrics or {}, why, {JUDGE: details})


async def _sample(
    connection: Connection, messages: tuple[Message, ...], sampling: Sampling
) -> tuple[str, Usage]:
    renderer = connection.renderer
    ids: array[int] = array(TYPE_IDS, renderer.render(messages, ()))
    completion = await connection.policy.sample(
        Request(
            ids,
            sampling,
            None,
            "judge",
            stop_token_ids=renderer.stop_token_ids,
            decode=renderer.decode,
            messages=messages,
        )
    )
    message = completion.message
    if message is None:
        message = renderer.parse(unpack_ids(completion.ids), prompt=ids)
    return message.text, completion.usage or NOTHING


async def _check_key(policy: Policy) -> None:
    """Checks the key by sampling, because some engines list their models without a key."""
    # Imported late, so that bad input is reported fast.
    from holdfast.policy.client.discovery import check_dialect
    from holdfast.policy.client.replicas import EnginePolicy

    if isinstance(policy, EnginePolicy):
        await check_dialect([each for each in policy.endpoints if each.introduce is None])


def _name_judge(error: HoldfastError) -> None:
    """Puts "the judge" before the message of a policy's error. If the engine refused the key, the
    message also says how to give a key."""
    # Imported late, so that bad input is reported fast.
    from holdfast.policy.client.endpoint import Denied

    if str(error).startswith(_WHOSE):
        return
    text = str(error)
    if isinstance(error, Denied) and error.status in (401, 403):
        text = f"{error.answered}; {_KEY}"
    error.args = (f"{_WHOSE}{text}",)


def _check_number(candidates: int) -> None:
    if candidates > len(_LABELS):
        raise UsageError(
            f"a judge compares at most {len(_LABELS)} samples of a task, not {candidates}; take "
            "fewer, or judge each by itself (compare=False)"
        )


def _in_fair_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Returns the distinct candidates in an order that depends only on their texts.

    Judges prefer the candidate that they see first, so a sample's number must not decide its place.
    """

    def place(candidate: Candidate) -> tuple[bytes, str]:
        text = candidate.conversation.encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).digest(), candidate.target or ""

    return sorted(set(candidates), key=place)


def _as_text(message: Any) -> str:
    if isinstance(message, Mapping):
        message = as_message(message, where="a message that is judged")
    role, text = str(getattr(message, "role", "")), getattr(message, "readable", None)
    if text is None:
        content = getattr(message, "content", "")
        text = content if isinstance(content, str) else _plain(content)
    calls = [_call(call) for call in getattr(message, "tool_calls", None) or ()]
    return "\n".join([f"[{role}]", text, *calls]).rstrip()


def _call(call: Any) -> str:
    function = getattr(call, "function", call)
    return f"calls {function.name}({function.arguments})"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
