"""Asks a running `neap serve` with the `openai` package as it comes from PyPI, and as clients do that mean no good.

    serve_openai.py NEAP FOLDER CACHE [MODEL.gguf]

A tiny model of seeded weights is served beside the ONNX models of FOLDER under one budget; with MODEL.gguf that one, too, which has
to answer with sense. Exits with 1 at the first difference.
"""

import http.client
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import openai
import tiny_gguf

BUDGET = "256MiB"
TURNS = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Say something."}]
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Server:
    """A server on a port of its own, until the block ends."""

    def __init__(self, command):
        self.command = [*command, "--http", "127.0.0.1:0"]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if found := re.search(r"on http://(\S+)", line):
                self.address = found.group(1)
                break
        else:
            sys.exit("the server ended: " + "".join(said))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        code = self.process.wait(timeout=60)
        assert code == 0, f"the server ended with {code}"

    def client(self, key="none"):
        return openai.OpenAI(base_url=f"http://{self.address}/v1", api_key=key, max_retries=0, timeout=120)

    def raw(self, path, body, headers=()):
        """A request as it is: status, and what came back."""
        connection = http.client.HTTPConnection(self.address, timeout=120)
        connection.request("POST", path, body, {"Content-Type": "application/json", **dict(headers)})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, text, response

    def metric(self, name):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        (value,) = [line.split()[-1] for line in lines if line.split(" ")[0] == name] or ["0"]
        return float(value)


def refused(what, kind, call, code=None):
    try:
        call()
    except kind as error:
        told = error.body
        assert told["message"] and "\n" not in told["message"] and told["type"], told
        assert code is None or error.code == code, (what, error.code)
        print(f"refused: {what}: {told['message']}")
        return
    sys.exit(f"{what} was not refused")


def check_chat(client, model):
    def chat(**more):
        return client.chat.completions.create(**{"model": model, "messages": TURNS, "max_tokens": 12, "temperature": 0, **more})

    whole = chat()
    choice = whole.choices[0]
    assert whole.object == "chat.completion" and whole.model == model and choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert 1 <= whole.usage.completion_tokens <= 12 < whole.usage.prompt_tokens
    assert chat().choices[0].message.content == choice.message.content, "greedy answers differ"

    pieces = list(chat(stream=True, stream_options={"include_usage": True}))
    told = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert told == choice.message.content, (told, choice.message.content)
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens and not pieces[-1].choices
    assert pieces[-2].choices[0].finish_reason == choice.finish_reason
    assert len({p.id for p in pieces}) == 1
    assert all(p.usage is None for p in chat(stream=True)), "nobody asked for usage"
    print(f"{model}: a chat whole and as a stream: {told!r}")

    drawn = {"temperature": 1.5, "seed": 7, "n": 3}
    several = chat(**drawn)
    texts = [c.message.content for c in several.choices]
    assert [c.index for c in several.choices] == [0, 1, 2] and len(set(texts)) > 1, texts
    assert several.usage.prompt_tokens == whole.usage.prompt_tokens, "the prompt counts once"
    assert [c.message.content for c in chat(**drawn).choices] == texts, "the same seed gives other answers"
    streamed = ["", "", ""]
    for piece in chat(stream=True, **drawn):
        streamed[piece.choices[0].index] += piece.choices[0].delta.content or ""
    assert streamed == texts, (streamed, texts)
    print(f"{model}: three answers of one seed")

    told = chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content
    assert len(told) in (whole.usage.completion_tokens, whole.usage.completion_tokens - 1)
    for token in told:
        assert len(token.top_logprobs) == 3 and token.logprob == max(t.logprob for t in token.top_logprobs) <= 0
    streamed = [t for p in chat(stream=True, logprobs=True, top_logprobs=3) for t in (p.choices[0].logprobs.content if p.choices[0].logprobs else [])]
    assert streamed == told, "a stream has other log-probabilities"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Say something."}]}]
    assert chat(messages=[TURNS[0], *parts]).choices[0].message.content == choice.message.content
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    turns = [*TURNS, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "rain"}]
    tooled = chat(messages=turns, tools=[TOOL])
    untold = chat(messages=turns, tools=[TOOL], tool_choice="none")
    # SmolLM2's template knows no tools.
    if model == "tiny":
        assert tooled.usage.prompt_tokens > whole.usage.prompt_tokens + 20, "tools are not told to the model"
        assert untold.usage.prompt_tokens < tooled.usage.prompt_tokens
    print(f"{model}: log-probabilities, parts, tools")


def check_completions(client, model):
    def complete(**more):
        return client.completions.create(**{"model": model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **more})

    one = complete()
    assert one.object == "text_completion" and one.usage.completion_tokens <= 8
    several = complete(prompt=["Once upon a time", "A B C D"], n=2)
    texts = [c.text for c in several.choices]
    assert len(texts) == 4 and texts[0] == texts[1] == one.choices[0].text, texts
    assert "".join(p.choices[0].text for p in complete(stream=True)) == one.choices[0].text
    told = complete(logprobs=2).choices[0].logprobs
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset)
    assert complete(prompt=[65, 66, 67]).usage.prompt_tokens == 3
    text = one.choices[0].text
    if len(text) > 3:
        stopped = complete(stop=[text[2:4]]).choices[0]
        assert stopped.text == text[: text.index(text[2:4])] and stopped.finish_reason == "stop", (stopped.text, text)
    assert complete(max_tokens=1).usage.completion_tokens == 1
    assert client.completions.create(model=model, prompt="x").usage.completion_tokens <= 16
    print(f"{model}: completions: {text!r}")


def check_refusals(server, client, model):
    def chat(**more):
        return client.chat.completions.create(**{"model": model, "messages": TURNS, "max_tokens": 4, **more})

    bad = openai.BadRequestError
    refused("a model that is not there", openai.NotFoundError, lambda: chat(model="gpt-4o"), "model_not_found")
    refused("the same", openai.NotFoundError, lambda: client.models.retrieve("gpt-4o"), "model_not_found")
    refused("more than the context", bad, lambda: chat(max_tokens=1 << 20), "context_length_exceeded")
    refused("a long prompt", bad, lambda: chat(messages=[{"role": "user", "content": "a b c " * 2000}]), "context_length_exceeded")
    refused("no messages", bad, lambda: chat(messages=[]))
    refused("a picture", bad, lambda: chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]))
    refused("a schema", bad, lambda: chat(response_format={"type": "json_object"}), "unsupported_parameter")
    refused("a tool that must be called", bad, lambda: chat(tools=[TOOL], tool_choice="required"), "unsupported_parameter")
    refused("a negative n", bad, lambda: chat(n=-1))
    refused("a temperature", bad, lambda: chat(temperature=9))
    refused("embeddings", bad, lambda: client.embeddings.create(model=model, input="x"), "unsupported")
    refused("a page", openai.NotFoundError, lambda: client.get("/nothing", cast_to=object))

    def told(body, path="/v1/chat/completions", headers=()):
        status, text, _ = server.raw(path, body, headers)
        error = json.loads(text)["error"]
        assert error["message"] and "\n" not in error["message"], error
        return status

    turns = json.dumps(TURNS)
    assert told(f'{{"model": "{model}", "messages": {turns}, "temperature": NaN}}') == 400
    assert told(f'{{"model": "{model}", "messages": {turns}, "n": -3}}') == 400
    assert told(b'{"model": "\xff\xfe", "messages": []}') == 400
    assert told('{"model": "m", "messages": ' + "[" * 100_000 + "]" * 100_000 + "}") == 400
    many = json.dumps([{"role": "user", "content": "x"}] * 10_000)
    assert told(f'{{"model": "{model}", "messages": {many}}}') == 400
    assert told(b"x" * (20 << 20)) == 413
    assert told("", headers={"Host": "evil.example"}) == 403
    assert told("", headers={"Origin": "https://evil.example"}) == 403
    assert told("", path="/v1/models") == 405
    print("hostile requests are refused in one line each")


def check_others(server, client, model):
    """Many at once, and those that go away."""
    def ask(tokens, stream=False):
        return client.completions.create(model=model, prompt="A", max_tokens=tokens, temperature=0, stream=stream, extra_body={"top_k": 1})

    expected = ask(24).choices[0].text
    texts = [None] * 6
    def one(at):
        texts[at] = ask(24).choices[0].text
    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(texts))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert texts == [expected] * len(texts), texts

    long = {"model": model, "prompt": "x", "max_tokens": 400, "temperature": 1.5, "extra_body": {"logit_bias": {}}}
    before = server.metric("neap_clients_gone_total")
    for _ in range(8):
        stream = client.completions.create(stream=True, **long)
        next(iter(stream))
        stream.close()
    for _ in range(100):
        if server.metric(f'neap_answers{{model="{model}",state="running"}}') == 0:
            break
        time.sleep(0.1)
    else:
        sys.exit("answers go on that nobody waits for")
    gone = server.metric("neap_clients_gone_total") - before
    print(f"{len(texts)} clients at once; {gone:.0f} of 8 went away before the end")
    assert server.metric(f'neap_tokens_total{{model="{model}",kind="answer"}}') > 0
    assert server.metric(f'neap_requests_total{{model="{model}"}}') > 0


def check_no_room(neap, tiny):
    """A cache that one answer fills: another is refused until it is given."""
    with Server([neap, "serve", tiny, "--context", "512", "--memory-budget", "96MiB"]) as server:
        client = server.client()
        name = client.models.list().data[0].id
        def ask():
            return client.completions.create(model=name, prompt="x", max_tokens=500, temperature=1.5, stream=True)
        streams = []
        try:
            # One may end by itself before the next is asked.
            for _ in range(20):
                streams.append(ask())
        except openai.RateLimitError as error:
            assert int(error.response.headers["retry-after"]) >= 1
            print(f"refused while blocks are short: {error.body['message']}")
            [stream.close() for stream in streams]
            return
        sys.exit("two answers had the memory of one")


def check_token(neap, tiny):
    with tempfile.TemporaryDirectory() as own:
        secret = pathlib.Path(own) / "token"
        secret.write_text("open-sesame-of-32-characters-long\n")
        with Server([neap, "serve", tiny, "--token-file", secret]) as server:
            refused("a wrong key", openai.AuthenticationError, lambda: server.client("wrong").models.list(), "invalid_api_key")
            assert server.client("open-sesame-of-32-characters-long").models.list().data


def main():
    neap, folder, cache, *more = sys.argv[1:]
    with tempfile.TemporaryDirectory() as own:
        tiny = str(pathlib.Path(own) / "tiny.gguf")
        tiny_gguf.write(tiny)
        models = [tiny, *(f"smol={path}" for path in more)]
        command = [neap, "serve", folder, *models, "--cache-dir", cache, "--memory-budget", BUDGET, "--context", "1024"]
        with Server([*command, "--share", "tiny=24MiB"]) as server:
            client = server.client()
            names = [model.id for model in client.models.list()]
            assert names == sorted(["tiny", *(["smol"] if more else [])]), names
            for name in names:
                assert client.models.retrieve(name).id == name
                check_chat(client, name)
                check_completions(client, name)
            check_refusals(server, client, "tiny")
            check_others(server, client, "tiny")
            if more:
                turns = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
                said = client.chat.completions.create(model="smol", messages=turns, temperature=0, max_tokens=16)
                assert "Paris" in said.choices[0].message.content, said
                print(f"smol: {said.choices[0].message.content!r}")
        check_no_room(neap, tiny)
        check_token(neap, tiny)


main()
