"""Language models in GGUF files: texts, conversations, pieces as they come."""

from __future__ import annotations

import json
import math
import os
import weakref
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, TypedDict, Union

from neaptide import _neaptide
from neaptide.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile
from neaptide.options import BUDGET_VARIABLE, Budget, budget_text, choose, threads_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: A message as OpenAI's API has it: ``{"role": "user", "content": "…"}``.
Message = Mapping[str, Any]

#: What an answer goes on from: a text, tokens, or the messages of a conversation.
Prompt = Union[str, Sequence[int], Sequence[Message]]


class AnswerOptions(TypedDict, total=False):
    """How an answer comes about. The most likely one is given where nothing is said."""

    #: Most tokens of the answer; ``None``: what the context has room for.
    max_tokens: Optional[int]
    #: How far from the most likely tokens the choice may go; 0 takes the most likely one.
    temperature: float
    #: Only so many of the most likely tokens may be chosen; 0 is 4,096.
    top_k: int
    #: Of those, the most likely ones that have this probability together.
    top_p: float
    #: Of those, the ones that have this share of the best one's probability.
    min_p: float
    #: Makes tokens less likely that were among the last 64: a factor, 1 does nothing.
    repeat_penalty: float
    #: The same, subtracted for each time that the token was there.
    frequency_penalty: float
    #: The same, subtracted once.
    presence_penalty: float
    #: Seed of the choice.
    seed: int
    #: The answer ends before any of these texts.
    stop: Union[str, Sequence[str]]
    #: Functions that the model may call, as OpenAI's API has them; for messages only.
    tools: Sequence[Mapping[str, Any]]
    #: Whether the model thinks first, where its template lets one choose; for messages only.
    thinking: Optional[bool]


#: Numbers among the options: what holds where nothing is said, and the least and the most that they can be.
_NUMBERS = {
    "temperature": (0.0, 0.0, 100.0),
    "top_p": (1.0, 0.0, 1.0),
    "min_p": (0.0, 0.0, 1.0),
    "repeat_penalty": (1.0, 0.1, 10.0),
    "frequency_penalty": (0.0, -100.0, 100.0),
    "presence_penalty": (0.0, -100.0, 100.0),
}
_WHOLE = {"top_k": (40, 0, 2**32 - 1), "seed": (0, 0, 2**64 - 1)}


class Answer:
    """An answer that is over. ``str()`` of it is its text."""

    def __init__(self, text: str, reasoning: str, figures: Mapping[str, Any]) -> None:
        self.text = text
        #: What the model thought before, where it does.
        self.reasoning = reasoning
        #: ``"stop"``: the model ended it, or a stop text did; ``"length"``: ``max_tokens`` are reached.
        self.finish_reason: str = figures["finish_reason"]
        self.prompt_tokens: int = figures["prompt_tokens"]
        #: Of those: computed for an earlier answer.
        self.cached_tokens: int = figures["cached_tokens"]
        self.completion_tokens: int = figures["completion_tokens"]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Answer({self.text!r}, finish_reason={self.finish_reason!r})"


class Stream(Iterator[str]):
    """Pieces of an answer's text as they come. A stream that is closed, or that nobody has any more, ends its answer."""

    def __init__(self, native: "_neaptide.LanguageModel", request: str) -> None:
        self._native = native
        self._number = native.begin(request)
        self._text: List[str] = []
        self._reasoning: List[str] = []
        self._close = weakref.finalize(self, native.give_up, self._number)
        self._close.atexit = False
        #: The whole answer, once it is over.
        self.answer: Optional[Answer] = None

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> str:
        while True:
            happened = self._native.next(self._number)
            if happened is None:
                raise StopIteration
            kind, value = happened
            if kind == "text":
                self._text.append(value)
                return value
            if kind == "reasoning":
                self._reasoning.append(value)
            else:
                self.answer = Answer("".join(self._text), "".join(self._reasoning), value)

    def close(self) -> None:
        """Ends the answer where it is."""
        self._close()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class LLM:
    """A language model in a GGUF file, within a memory budget.

    ``memory_budget``
        Memory that the engine may take for this model: weights, the cache of keys and values, the tokenizer. ``"64MiB"``, a
        number of bytes, or ``"none"``. ``None`` asks the variable ``NEAPTIDE_MEMORY_BUDGET``.
    ``context``
        Tokens that prompts and answers may have together.
    ``kv``
        In which type keys and values are kept: ``"f32"``, ``"f16"`` or ``"int8"``.
    ``threads``
        Threads that compute; 0 means all processors.
    ``parallel``
        Answers at once, as of several streams.
    """

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]"],
        memory_budget: Budget = None,
        *,
        context: int = 2048,
        kv: str = "f16",
        threads: int = 0,
        parallel: int = 8,
    ) -> None:
        path = os.fspath(path)
        if not os.path.exists(path):
            raise NoSuchFile(f"Load model from {path} failed: File doesn't exist")
        self._path = path
        self._native = _neaptide.LanguageModel(
            path,
            memory_budget=budget_text(choose(memory_budget, None, BUDGET_VARIABLE)),
            context=_whole("context", context, 1, 1 << 20),
            kv=kv,
            threads=threads_of(threads),
            parallel=_whole("parallel", parallel, 1, 64),
        )
        #: Tokens that prompts and answers may have together; whole blocks of 64.
        self.context, self._has_template = self._native.about()

    def __repr__(self) -> str:
        return f"LLM({self._path!r}, context={self.context})"

    def generate(self, prompt: Union[str, Sequence[int]], **options: "Unpack[AnswerOptions]") -> Answer:
        """Goes on with a text, or with tokens."""
        return _whole_answer(self.stream(prompt, **options))

    def chat(self, messages: Sequence[Message], **options: "Unpack[AnswerOptions]") -> Answer:
        """Answers the last message of a conversation, in the form that the model's template gives it."""
        if isinstance(messages, (str, bytes)) or not all(isinstance(m, Mapping) for m in messages):
            raise InvalidArgument("messages: expected objects with 'role' and 'content'")
        return _whole_answer(self.stream(messages, **options))

    def stream(self, prompt: Prompt, **options: "Unpack[AnswerOptions]") -> Stream:
        """An answer piece by piece. Several streams may be read in turns: their answers are computed side by side."""
        return Stream(self._native, json.dumps(_request(prompt, options)))

    def tokens(self, text: str) -> List[int]:
        """The tokens of a text, as a prompt has them."""
        return self._native.tokens(text)

    def memory(self) -> Dict[str, int]:
        """Where the budget goes, in bytes by part. ``smallest_bytes`` is the least budget for this context."""
        return dict(self._native.ledger())


def _whole_answer(stream: Stream) -> Answer:
    with stream:
        for _ in stream:
            pass
    assert stream.answer is not None
    return stream.answer


def _request(prompt: Prompt, options: Mapping[str, Any]) -> Dict[str, Any]:
    unknown = options.keys() - AnswerOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no option '{min(unknown)}': there is {', '.join(AnswerOptions.__annotations__)}")
    said = _said(prompt)
    if "messages" not in said and (options.get("tools") or options.get("thinking") is not None):
        raise InvalidArgument("tools and thinking are for messages: a text has no place for them")
    stop = options.get("stop", ())
    most = options.get("max_tokens")
    request: Dict[str, Any] = {
        "prompt": said,
        "tools": [dict(tool) for tool in options.get("tools") or ()],
        "thinking": options.get("thinking"),
        "max_tokens": None if most is None else _whole("max_tokens", most, 1, 2**32 - 1),
        "stop": [stop] if isinstance(stop, str) else list(stop or ()),
    }
    for name, (default, least, largest) in _NUMBERS.items():
        request[name] = _number(name, options.get(name, default), least, largest)
    for name, (default, least, largest) in _WHOLE.items():
        request[name] = _whole(name, options.get(name, default), least, largest)
    return request


def _said(prompt: Prompt) -> Dict[str, Any]:
    if isinstance(prompt, str):
        return {"text": prompt}
    parts: List[Any] = list(prompt)
    if parts and all(isinstance(part, Mapping) for part in parts):
        return {"messages": [dict(part) for part in parts]}
    return {"tokens": [_whole("a token", part, 0, 2**32 - 1) for part in parts]}


def _whole(name: str, value: Any, least: int, most: int) -> int:
    try:
        number = value.__index__()
    except AttributeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        raise InvalidArgument(f"{name}: expected a whole number from {least} to {most}, got {value!r}")
    return int(number)


def _number(name: str, value: Any, least: float, most: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= most:
        raise InvalidArgument(f"{name}: expected a number from {least:g} to {most:g}, got {value!r}")
    return number
