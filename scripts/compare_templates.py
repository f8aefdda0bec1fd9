"""Compares prompts with those that Python's jinja2 makes of the same chat template, set up as Hugging Face's transformers does.

    cargo build --release -p neap-tokenizer --example render
    python scripts/compare_templates.py target/release/examples/render target/models/MODEL.gguf...

Needs the package `jinja2` and models as scripts/language_models.py fetches them.
"""

import json
import random
import subprocess
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from compare_tokens import header

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Tells the weather, "now" & <later>, in °C',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]},
        },
    }
]
TEXTS = ["Hello", " spaces \n", "", "日本語 😀", "<|im_end|>", "{{ 1 }}", "a\n\nb", "</think>"]


def conversations(count):
    draw = random.Random(1)
    for _ in range(count):
        messages = [{"role": "system", "content": draw.choice(TEXTS)}] if draw.random() < 0.5 else []
        for _ in range(draw.randint(1, 4)):
            messages.append({"role": "user", "content": draw.choice(TEXTS)})
            if draw.random() < 0.3:
                call = {"name": "weather", "arguments": {"city": draw.choice(TEXTS), "days": draw.randint(0, 9), "x": draw.choice([None, True, 0.5, 1e20, []])}}
                messages.append({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]})
                messages.append({"role": "tool", "content": draw.choice(TEXTS)})
            messages.append({"role": "assistant", "content": draw.choice(TEXTS)})
        yield {"messages": messages, "tools": draw.choice([None, TOOLS]), "add_generation_prompt": draw.random() < 0.5}


def reference(path):
    """Makes a prompt of the template's arguments."""
    pairs, _ = header(path)

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = dumps
    environment.globals["raise_exception"] = refuse
    template = environment.from_string(pairs["tokenizer.chat_template"].decode())
    tokens = pairs["tokenizer.ggml.tokens"]
    names = {f"{end}_token": tokens[pairs[f"tokenizer.ggml.{end}_token_id"]].decode() for end in ("bos", "eos")}
    return lambda arguments: template.render(documents=None, **names, **arguments)


def main():
    program, *models = sys.argv[1:]
    failed = not models
    for model in models:
        prompt = reference(model)
        cases = list(conversations(500))
        lines = "".join(json.dumps(case) + "\n" for case in cases)
        made = subprocess.run([program, model], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
        different = 0
        for case, line in zip(cases, made, strict=True):
            try:
                expected = prompt(case)
            except jinja2.exceptions.TemplateError as error:
                expected = {"error": error.message}
            ours = json.loads(line)
            if ours != expected and not (isinstance(ours, dict) and isinstance(expected, dict)):
                different += 1
                if different < 4:
                    print(json.dumps(case), repr(expected), repr(ours), sep="\n  ")
        print(f"{model}: {len(cases)} prompts, {different} of them different")
        failed |= different > 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
