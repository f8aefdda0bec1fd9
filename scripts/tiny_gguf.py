"""Writes a tiny language model of seeded weights to a GGUF file: bytes are its tokens, and what it says makes no sense.

    tiny_gguf.py FILE
"""

import random
import struct
import sys

WIDTH, INNER, LAYERS, HEADS, CONTEXT = 64, 128, 2, 2, 512
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def alphabet():
    """A printable character for every byte, as GPT-2's vocabulary has them."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key, value):
    """Metadata: texts, whole numbers, fractions, flags, and lists of texts or whole numbers."""
    if isinstance(value, list):
        kind, items = (8, b"".join(map(text, value))) if value and isinstance(value[0], str) else (5, struct.pack(f"<{len(value)}i", *value))
        return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + items
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    if isinstance(value, float):
        return text(key) + struct.pack("<If", 6, value)
    return text(key) + struct.pack("<II", 4, value)


def write(path, architecture="llama"):
    """Writes the file. Another architecture than llama is one that nobody knows."""
    seeded = random.Random(7)
    tokens = [*alphabet(), "Ġt", "<|im_start|>", "<|im_end|>"]
    kinds = [1] * 257 + [3, 3]
    tensors = [("token_embd.weight", [WIDTH, len(tokens)]), ("output_norm.weight", [WIDTH])]
    for layer in range(LAYERS):
        name = f"blk.{layer}.{{}}.weight".format
        tensors += [(name(part), [WIDTH, WIDTH]) for part in ("attn_q", "attn_k", "attn_v", "attn_output")]
        tensors += [(name(part), [WIDTH, INNER]) for part in ("ffn_gate", "ffn_up")]
        tensors += [(name("ffn_down"), [INNER, WIDTH]), (name("attn_norm"), [WIDTH]), (name("ffn_norm"), [WIDTH])]
    pairs = [
        ("general.architecture", architecture), ("llama.embedding_length", WIDTH), ("llama.block_count", LAYERS),
        ("llama.attention.head_count", HEADS), ("llama.attention.head_count_kv", HEADS),
        ("llama.feed_forward_length", INNER), ("llama.context_length", CONTEXT), ("llama.rope.dimension_count", WIDTH // HEADS),
        ("llama.attention.layer_norm_rms_epsilon", 1e-5), ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "gpt-2"),
        ("tokenizer.ggml.tokens", tokens), ("tokenizer.ggml.token_type", kinds), ("tokenizer.ggml.merges", ["Ġ t"]),
        ("tokenizer.ggml.eos_token_id", len(tokens) - 1), ("tokenizer.chat_template", TEMPLATE),
    ]  # fmt: skip
    infos, data = b"", b""
    for name, sizes in tensors:
        infos += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, len(data))
        count = sizes[0] * (sizes[1] if len(sizes) > 1 else 1)
        weights = [seeded.uniform(-0.3, 0.3) for _ in range(count)] if len(sizes) > 1 else [1.0] * count
        data += struct.pack(f"<{count}f", *weights)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pair(*p) for p in pairs) + infos
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32) + data)


if __name__ == "__main__":
    write(sys.argv[1])
