"""Language models: texts, streams, conversations, what is refused."""

import gc
import signal
import threading
import time

import pytest
import tiny_gguf

import neaptide
from neaptide import LLM, BudgetError
from neaptide.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, NoSuchFile, NotImplemented



@pytest.fixture
def path(tmp_path):
    tiny_gguf.write(tmp_path / "m.gguf")
    return str(tmp_path / "m.gguf")


@pytest.fixture
def llm(path):
    return LLM(path, context=1024, threads=1)


def test_a_text_goes_on_the_same_way_in_one_piece_and_in_many(path, llm):
    whole = llm.generate("hello", max_tokens=30)
    assert whole.prompt_tokens == 5 and 1 < whole.completion_tokens <= 30
    assert whole.finish_reason == ("length" if whole.completion_tokens == 30 else "stop")
    assert str(whole) == whole.text and whole.reasoning == ""
    stream = llm.stream("hello", max_tokens=30)
    assert iter(stream) is stream and stream.answer is None
    pieces = list(stream)
    assert len(pieces) > 1 and "".join(pieces) == whole.text == stream.answer.text
    assert stream.answer.cached_tokens == 4
    smallest = llm.memory()["smallest_bytes"]
    for options in ({"kv": "f16", "threads": 2}, {"memory_budget": smallest + (8 << 20)}):
        assert LLM(path, context=1024, **options).generate("hello", max_tokens=30).text == whole.text
    tokens = llm.tokens("hello")
    assert len(tokens) == 5 and llm.generate(tokens, max_tokens=30).text == whole.text


def test_how_tokens_are_chosen(llm):
    def of(**options):
        return llm.generate("once", max_tokens=40, **options).text

    plain = of()
    assert of(temperature=0) == plain and of(temperature=1.5, top_k=1) == plain
    warm = of(temperature=1.5, seed=1)
    assert warm == of(temperature=1.5, seed=1) != of(temperature=1.5, seed=2)
    stop = plain[3:5]
    answer = llm.generate("once", max_tokens=40, stop=stop)
    assert answer.finish_reason == "stop" and answer.text == plain[: plain.index(stop)]
    assert of(stop=[stop, "never"]) == answer.text


def test_a_conversation(llm):
    messages = [{"role": "user", "content": "hi"}]
    first = llm.chat(messages, max_tokens=8)
    assert first.prompt_tokens > 10
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and"}]
    second = llm.chat(messages, max_tokens=8)
    assert second.cached_tokens >= first.prompt_tokens
    assert "".join(llm.stream(messages, max_tokens=8)) == second.text
    thought = llm.chat(messages, max_tokens=8, thinking=True)
    assert thought.reasoning and not thought.text


def test_streams_in_turns_give_what_each_gives_alone(llm):
    def ask(seed):
        return llm.stream("once upon", max_tokens=20, temperature=1.0, seed=seed)

    alone = ["".join(ask(seed)) for seed in range(3)]
    together = [ask(seed) for seed in range(3)]
    texts = ["", "", ""]
    for _ in range(20):
        for at, stream in enumerate(together):
            texts[at] += next(stream, "")
    assert [text + "".join(stream) for text, stream in zip(texts, together)] == alone
    # The same from threads of their own.
    from_threads = {}
    threads = [threading.Thread(target=lambda s=s: from_threads.update({s: "".join(ask(s))})) for s in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [from_threads[s] for s in range(3)] == alone


def test_who_wants_no_more_gives_the_memory_back(path):
    llm = LLM(path, context=128, threads=1)
    kept = llm.stream("a" * 60, max_tokens=60)
    next(kept)
    with pytest.raises(neaptide.capi.onnxruntime_pybind11_state.RuntimeException, match="positions are needed"):
        llm.generate("b" * 60, max_tokens=60)
    kept.close()
    assert next(kept, None) is None
    dropped = llm.stream("c" * 60, max_tokens=60)
    next(dropped)
    del dropped
    gc.collect()
    with llm.stream("d" * 60, max_tokens=60) as stream:
        next(stream)
    assert llm.generate("b" * 60, max_tokens=60).completion_tokens > 0


def test_a_signal_ends_the_wait_and_the_model_goes_on(llm):
    whole = llm.generate("hello", max_tokens=900).text

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(KeyboardInterrupt):
            for seed in range(10**6):
                llm.generate("hello", max_tokens=900, seed=seed, temperature=0.5)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 30
    assert llm.generate("hello", max_tokens=900).text == whole


def test_what_is_wrong_is_named(path, llm, tmp_path):
    with pytest.raises(NoSuchFile):
        LLM(tmp_path / "none.gguf")
    with pytest.raises(BudgetError) as told:
        LLM(path, memory_budget="1MiB")
    assert told.value.budget_bytes == 1 << 20 < told.value.smallest_bytes
    tiny_gguf.write(tmp_path / "other.gguf", architecture="mamba")
    with pytest.raises(NotImplemented, match="'mamba'"):
        LLM(tmp_path / "other.gguf")
    (tmp_path / "no.gguf").write_bytes(b"no model at all")
    with pytest.raises(Fail):
        LLM(tmp_path / "no.gguf")
    for options, named in [
        ({"memory_budget": "25%"}, "takes a size"),
        ({"memory_budget": "much"}, "memory_budget"),
        ({"kv": "int3"}, "kv: 'int3'"),
        ({"context": 0}, "context"),
        ({"threads": -1}, "threads"),
    ]:
        with pytest.raises(InvalidArgument, match=named):
            LLM(path, **options)
    for options, named in [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5000}, "the context has 1024"),
        ({"stop": [1]}, "stop|string"),
        ({"thinking": True}, "messages"),
    ]:
        with pytest.raises(InvalidArgument, match=named):
            llm.generate("a", **options)
    with pytest.raises(TypeError, match="no option 'temp'"):
        llm.generate("a", temp=1)
    for prompt, named in [("", "empty"), ([], "empty"), ([300000], "vocabulary"), ([-1], "token"), ([{"a": 1}, 2], "token")]:
        with pytest.raises(InvalidArgument, match=named):
            llm.stream(prompt)
    with pytest.raises(InvalidArgument, match="messages"):
        llm.chat("hello")


def test_a_budget_of_the_environment_holds(path, monkeypatch):
    monkeypatch.setenv("NEAPTIDE_MEMORY_BUDGET", "1MiB")
    with pytest.raises(BudgetError):
        LLM(path)
