"""Compares neap-tokenizer with Hugging Face's tokenizers on random and real strings of many scripts.

    cargo build --release -p neap-tokenizer --example encode
    python scripts/compare_tokens.py target/release/examples/encode target/models/MODEL.gguf [--strings N] [--text FILE...]

Needs the package `tokenizers` and models as scripts/language_models.py fetches them. The other tokenizer is made from the same file's
vocabulary, with the words and normal form that the model's publisher gives in its tokenizer.json. Prints strings whose ids differ.
"""

import argparse
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

CASED = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = {
    "llama-bpe": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + LINES,
    "qwen2": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + LINES,
    "qwen35": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + LINES,
    "gpt-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt-4o": CASED % (CONTRACTION + "?", CONTRACTION + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + LINES,
    "tekken": CASED % ("", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + LINES,
}
#: Types of tokens in files.
CONTROL, USER_DEFINED, BYTE = 3, 4, 6
#: First and last characters of ranges that strings are drawn from: scripts, marks, spaces, symbols.
RANGES = [
    (0x20, 0x7E), (0x20, 0x7E), (0x30, 0x39), (0xA0, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x530, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1E00, 0x1EFF),
    (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x209F), (0x20A0, 0x20BF), (0x2100, 0x218B), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2460, 0x24FF), (0x2581, 0x2581),
    (0x3000, 0x303F), (0x3040, 0x309F), (0x30A0, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xFB00, 0xFB4F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF),
    (0x20000, 0x2A6DF), (0xE000, 0xE0FF), (0x09, 0x0D),
]  # fmt: skip
WORDS_OF_TEXT = (
    "the of and to in is you that it he was for on are as with his they I at be this have from or one had by word but not what all were we when your can said there "
    "use an each which she do how their if will up other about out many then them these so some her would make like him into time has look two more write go see "
    "number no way could people my than first water been call who oil its now find long down day did get come made may part don't we'll I've they're it's HELLO World "
    "Привет мир это не что как él niño está größe straße œuvre naïve façade 你好 世界 今天 天气 很好 こんにちは カタカナ 한국어 안녕하세요 שלום عالم مرحبا नमस्ते ไทย việt ελληνικά ქართული "
    "def return class import self.x += 1 == != -> => {} [] () // /* */ && || :: ; \" ' ` ~ $100 3.14159 0xFF 1e-9 2024-01-01 12:34:56 user@example.com https://a.b/c?d=e#f"
).split(" ")


def strings(count, seed, texts):
    draw = random.Random(seed)
    for number in range(count):
        kind = number % 4
        if kind == 0:
            low, high = draw.choice(RANGES)
            near = [chr(draw.randint(low, high)) for _ in range(draw.randint(1, 40))]
            yield "".join(c if draw.random() < 0.85 else draw.choice(" \n\t 'a1.\r") for c in near)
        elif kind == 1:
            yield "".join(chr(draw.randint(*draw.choice(RANGES))) for _ in range(draw.randint(1, 24)))
        elif kind == 2:
            words = [draw.choice(WORDS_OF_TEXT) for _ in range(draw.randint(1, 30))]
            yield "".join(word + draw.choice([" ", " ", " ", "", "  ", "\n", ", ", ". ", "\n\n", "\t", "   \n "]) for word in words)
        elif texts:
            text = draw.choice(texts)
            begin = draw.randrange(len(text))
            yield text[begin : begin + draw.randint(1, 300)]
        else:
            yield "".join(draw.choice("aAbB sS'tT12 \n\r\t.!?-éſß") for _ in range(draw.randint(1, 30)))


#: More spaces than a vocabulary of SentencePiece's kind has a token for are cut by the longest token here, as SentencePiece and
#: llama.cpp do it, and by merges there.
MANY_SPACES = " " * 32


#: A mark whose order among marks the other program does not know: its tables are of an older Unicode.
NEW_MARK = "\u09fe"


def comparable(text):
    """Programs know different versions of Unicode: characters that are new to any of them are left out."""
    is_known = NEW_MARK not in text and all(unicodedata.category(c) != "Cn" for c in text)
    return is_known and MANY_SPACES not in text.replace("▁", " ")


def header(path):
    """The key-value pairs of a GGUF file, and where they end."""
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def text(file):
        return file.read(*struct.unpack("<Q", file.read(8)))

    def value(file, kind):
        if kind == 8:
            return text(file)
        if kind == 9:
            element, count = struct.unpack("<IQ", file.read(12))
            return [value(file, element) for _ in range(count)]
        return struct.unpack("<" + numbers[kind], file.read(struct.calcsize(numbers[kind])))[0]

    with open(path, "rb") as file:
        file.read(8)
        _, count = struct.unpack("<QQ", file.read(16))
        return {text(file).decode(): value(file, *struct.unpack("<I", file.read(4))) for _ in range(count)}, file.tell()


def with_pre(path, pre, made):
    """A file without weights that has the vocabulary of another, and says that text is prepared in another way."""
    key = b"tokenizer.ggml.pre"
    pairs, end = header(path)
    with open(path, "rb") as file:
        data = file.read(end)
    at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
    rest = at + 8 + len(pairs[key.decode()])
    with open(made, "wb") as file:
        file.write(data[:8] + struct.pack("<Q", 0) + data[16:at])
        file.write(struct.pack("<Q", len(pre)) + pre.encode() + data[rest:])


def reference(path):
    """The same vocabulary as Hugging Face's library has it."""
    pairs, _ = header(path)
    of = lambda key: pairs.get("tokenizer.ggml." + key)
    texts = [token.decode(errors="replace") for token in of("tokens")]
    vocabulary = {token: id for id, token in enumerate(texts)}
    if of("model") == b"gpt2":
        made = byte_level(vocabulary, [tuple(merge.decode().split(" ")) for merge in of("merges")], of("pre").decode())
    else:
        # Where SentencePiece has its own file, tokens that users defined are merged before all others.
        scores = [0 if kind == USER_DEFINED else score for kind, score in zip(of("token_type"), of("scores"))]
        made = sentencepiece(vocabulary, scores, of("add_space_prefix") is not False)
    added = [(text, kind) for text, kind in zip(texts, of("token_type")) if kind in (CONTROL, USER_DEFINED)]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text, kind in added if kind == CONTROL])
    # Runs of spaces have merges as well.
    defined = [text for text, kind in added if kind == USER_DEFINED and not (text.isspace() and " " in text and of("model") == b"llama")]
    made.add_tokens([AddedToken(text, normalized=False) for text in defined])
    return made, [text for text, kind in added if kind == CONTROL], of("model") == b"llama"


def byte_level(vocabulary, merges, pre):
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre == "smollm":
        split = pre_tokenizers.Digits(individual_digits=True)
    else:
        split = pre_tokenizers.Split(Regex(WORDS[pre]), "isolated")
    use_regex = pre == "smollm"
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)])
    if pre in ("qwen2", "qwen35"):
        made.normalizer = normalizers.NFC()
    return made


def sentencepiece(vocabulary, scores, adds_space):
    """Merges are all pairs of tokens that make a token, the best score first."""
    vocabulary = {text.replace(" ", "▁"): id for text, id in vocabulary.items()}
    merges = []
    for text, id in vocabulary.items():
        pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        pairs = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
        merges += [(*pair, scores[id]) for pair in pairs]
    merges.sort(key=lambda merge: -merge[2])
    merges = [merge[:2] for merge in merges]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    prepend = [normalizers.Prepend("▁")] if adds_space else []
    made.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    made.decoder = decoders.ByteFallback()
    return made


def ours(program, model, texts, options):
    """Ids of each text, by the program."""
    child = subprocess.Popen([program, model, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def feed():
        for text in texts:
            data = text.encode()
            child.stdin.write(struct.pack("<I", len(data)) + data)
        child.stdin.close()

    threading.Thread(target=feed).start()
    for _ in texts:
        (count,) = struct.unpack("<I", child.stdout.read(4))
        yield list(struct.unpack(f"<{count}I", child.stdout.read(4 * count)))
    child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--pre", choices=["smollm", *WORDS], help="another way to prepare text, with the same vocabulary")
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--text", nargs="*", default=[], help="files that strings are also cut from")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = arguments.model
        if arguments.pre:
            model = os.path.join(scratch, "vocabulary.gguf")
            with_pre(arguments.model, arguments.pre, model)
        sys.exit(0 if same(arguments, model) else 1)


def same(arguments, model):
    made, control, of_pieces = reference(model)
    texts = [open(file, encoding="utf-8", errors="ignore").read() for file in arguments.text]
    compared = different = 0
    for begin in range(0, arguments.strings, 20_000):
        count = min(20_000, arguments.strings - begin)
        batch = [text for text in strings(count, arguments.seed + begin, texts) if comparable(text)]
        for parses in (False, True):
            if parses:
                draw = random.Random(begin)
                batch = [draw.choice(control).join(text[at : at + 9] for at in range(0, len(text), 9)) for text in batch[:1000]]
            made.encode_special_tokens = not parses
            # The sign for a space is one.
            spaced = [text.replace("▁", " ") for text in batch] if of_pieces else batch
            theirs = made.encode_batch(spaced, add_special_tokens=False)
            for text, theirs, ids in zip(batch, theirs, ours(arguments.program, model, batch, ["--parse"] * parses)):
                compared += 1
                if theirs.ids != ids:
                    different += 1
                    if different <= 20:
                        print(repr(text), theirs.ids, ids, sep="\n  ", flush=True)
    print(f"{arguments.model} {arguments.pre or ''}: {compared} strings, {different} of them different")
    return compared > 0 and different == 0


if __name__ == "__main__":
    main()
