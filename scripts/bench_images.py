"""Times networks of pictures within limits of memory, and writes the tables of docs/images.md.

    python3 scripts/bench_images.py --work FOLDER [--neap target/release/neap] [--turns 3] [--only NAME,…] [--write]

Networks have their published sizes and seeded weights (`neap zoo`). Limits are those of a memory cgroup with the whole process in
it (`--enforce`; needs root); the page cache is dropped before each run. Each program runs the network twice, and the second time
counts (of SDXL, which takes long, the first). Ours and onnxruntime take turns. What the drive gives is
measured in every turn, as `neap doctor` does it. Figures are medians over the turns. In a first turn that is not timed, networks run with
`--exact`, and their outputs within all limits are compared byte for byte.

Bound: a run takes no less than computing it without a limit, nor less than reading and writing what it read and wrote at the drive's rate.

Needs an environment with scripts/requirements.txt; 30 GB in FOLDER, which is not emptied at the end.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field

from bench_llm import processor

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PAGE = os.path.join(ROOT, "docs/images.md")
MIB = 1 << 20
MB = 10**6
PROMPT = "a house by the sea"


@dataclass
class Network:
    """One network of a zoo's family, or a family of its own (no `file`)."""

    name: str
    zoo: list
    shapes: dict
    file: str = ""
    #: Bytes; beside none, and the smallest.
    limits: list = field(default_factory=list)
    #: What onnxruntime runs instead: the same in f32.
    rival: list = None
    #: It takes so long, and so much memory, that one run in one turn counts, and the first limit is what all of it fits into.
    is_large: bool = False


def latents(side, text, batch=1):
    return {"sample": [batch, 4, side, side], "timestep": [1], "encoder_hidden_states": [batch, 77, text]}


def sides(height, width=None):
    return {"input": [1, 3, height, width or height]}


XL = latents(128, 2048) | {"text_embeds": [1, 1280], "time_ids": [1, 6]}
NETWORKS = [
    Network("SD 1.5 UNet, f16 weights", ["sd_15", "--half"], latents(64, 768), "unet", [133 * MB], ["sd_15"]),
    Network("SD 1.5 VAE decoder, f32", ["sd_15"], {"latent_sample": [1, 4, 64, 64]}, "vae_decoder", [133 * MB], ["sd_15"]),
    Network("SDXL UNet, f16 weights, 1024²", ["sdxl", "--half"], XL, "unet", [8 << 30, 298 * MB], is_large=True),
    Network("SDXL VAE decoder, f32, 1024²", ["sd_15"], {"latent_sample": [1, 4, 128, 128]}, "vae_decoder", [8 << 30, 298 * MB], is_large=True),
]
#: Only their smallest budgets are looked at.
SMALLEST = [
    Network("SD 1.5 UNet, f32, two prompts at once", ["sd_15"], latents(64, 768, 2), "unet"),
    Network("MobileNetV2, 1024²", ["mobilenet_v2"], sides(1024)),
    Network("EfficientNet-B0, 1024²", ["efficientnet_b0"], sides(1024)),
    Network("YOLOv3, 1280²", ["yolov3"], sides(1280)),
    Network("U²-Net, 1024²", ["u2net"], sides(1024)),
    Network("IS-Net, 1024²", ["isnet"], sides(1024)),
    Network("Real-ESRGAN compact, 480x270 to 1920x1080", ["srvgg_x4"], sides(270, 480)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, metavar="FOLDER", help="for models")
    parser.add_argument("--neap", default=os.path.join(ROOT, "target/release/neap"))
    parser.add_argument("--only", help="names, or their beginnings, separated by commas")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--no-compare", dest="compare", action="store_false", help="leave out the turn that compares outputs")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=20, help="of whole pictures")
    parser.add_argument("--rival", nargs=2, metavar=("PYTHON", "CHECKPOINT"), help="one that has stable-diffusion-cpp-python, and the same model for it")
    parser.add_argument("--write", action="store_true", help="into docs/images.md")
    parser.add_argument("--json", metavar="FILE", help="for everything measured")
    parser.add_argument("--ort-worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ort_worker:
        return ort_worker(*arguments.ort_worker)
    arguments.neap, arguments.work = os.path.abspath(arguments.neap), os.path.abspath(arguments.work)
    os.makedirs(arguments.work, exist_ok=True)
    wanted = lambda name: not arguments.only or any(name.startswith(only) for only in arguments.only.split(","))
    told = {
        "networks": [of_network(network, arguments) for network in NETWORKS if wanted(network.name)],
        "smallest": [smallest_of(network, arguments) for network in NETWORKS + SMALLEST if wanted(network.name)],
        "pictures": [picture(arguments)] if wanted("picture") else [],
    }
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(told, file, indent=1)
    text = tables(told, arguments)
    print(text)
    if arguments.write:
        put(text)


def model(zoo, file, arguments):
    """A network's file, written once."""
    name = "".join(zoo)
    path = os.path.join(arguments.work, name if file else f"{name}.onnx")
    if not os.path.exists(path):
        free = [] if file else ["--free-size"]
        subprocess.run([arguments.neap, "-q", "zoo", *zoo, *free, "-o", path + ".part"], check=True)
        os.rename(path + ".part", path)
    return os.path.join(path, file, "model.onnx") if file else path


def smallest_budget(path, network, arguments, *options):
    command = [arguments.neap, "-q", "inspect", path, *shapes(network), "--threads", str(arguments.threads), "-o", "json", *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["smallest_feasible_bytes"]


def smallest_of(network, arguments):
    path = model(network.zoo, network.file, arguments)
    told = {"name": network.name, "smallest": smallest_budget(path, network, arguments)}
    told["without_strips"] = smallest_budget(path, network, arguments, "--bands", "off")
    print(f"{network.name}: smallest {told['smallest'] / MIB:.1f} MiB, without bands and strips {told['without_strips'] / MIB:.1f}", flush=True)
    return told


def shapes(network):
    return [f"--shape={name}={'x'.join(map(str, shape))}" for name, shape in network.shapes.items()]


def of_network(network, arguments):
    """Medians of all limits."""
    path = model(network.zoo, network.file, arguments)
    rival = network.rival and model(network.rival, network.file, arguments)
    if arguments.compare and not network.is_large:
        smallest = smallest_budget(path, network, arguments, "--exact")
        digests = {neap(path, network, limit, arguments, "--exact")["digest"] for limit in (None, *network.limits, smallest)}
        if len(digests) != 1:
            raise SystemExit(f"{network.name}: outputs differ between limits")
    limits = [*([] if network.is_large else [None]), *network.limits, smallest_budget(path, network, arguments)]
    runs = {limit: [] for limit in limits}
    theirs, drive = [], []
    for turn in range(1 if network.is_large else arguments.turns):
        drive.append(drive_rate(path, arguments))
        for limit in limits:
            ran = neap(path, network, limit, arguments)
            runs[limit].append(ran)
            print(f"{network.name} turn {turn} limit {limit and limit / MIB}: {ran}", flush=True)
        if rival:
            theirs.append(onnxruntime(rival, network, arguments))
            print(f"{network.name} turn {turn} onnxruntime: {theirs[-1]}", flush=True)
    told = {"name": network.name, "drive": statistics.median(drive), "rows": [middle(limit, of) for limit, of in runs.items()]}
    return told | {"onnxruntime": middle(None, theirs) if theirs else None}


def middle(limit, runs):
    told = {key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "digest"}
    seconds = sorted(run["seconds"] for run in runs)
    return told | {"limit": limit, "spread": (seconds[-1] - seconds[0]) / told["seconds"]}


def neap(path, network, limit, arguments, *options):
    drop_caches()
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        report = os.path.join(scratch, "report.json")
        command = [arguments.neap, "-q", "run", path, *shapes(network), *options, "--warmup", str(int(not options and not network.is_large)), "--threads", str(arguments.threads)]
        command += ["--output-dir", scratch, "--json", report, "--memory-budget", str(limit or "none")]
        subprocess.run(command + ["--enforce"] * bool(limit), check=True)
        with open(report) as file:
            told = json.load(file)
        return {
            "seconds": told["latency_ms"]["median"] / 1e3,
            "peak": told["peak_memory_bytes"],
            "read": told["loaded_bytes_per_run"],
            "stored": told["stored_bytes_per_run"],
            "predicted": told["predicted_latency_ms"] / 1e3,
            "digest": digest(scratch),
        }


def digest(folder):
    sums = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        if name.endswith(".npy"):
            with open(os.path.join(folder, name), "rb") as file:
                sums.update(file.read())
    return sums.hexdigest()


def onnxruntime(path, network, arguments):
    drop_caches()
    with tempfile.NamedTemporaryFile("r", suffix=".json") as report:
        worker = [sys.executable, os.path.abspath(__file__), "--work", arguments.work, "--threads", str(arguments.threads)]
        subprocess.run([*worker, "--ort-worker", path, json.dumps(network.shapes), report.name], check=True)
        return json.load(report)


def ort_worker(path, shapes, report):
    """Opens the model and runs it twice; the second run is the one that counts."""
    import resource
    import time

    import neap_reference
    import numpy as np

    session = neap_reference.open_session(path, len(os.sched_getaffinity(0)))
    draw = np.random.default_rng(0)
    feeds = {}
    for port in session.get_inputs():
        shape = json.loads(shapes)[port.name]
        kind = neap_reference.DTYPES[port.type]
        feeds[port.name] = draw.integers(0, 100, shape).astype(kind) if np.issubdtype(kind, np.integer) else draw.standard_normal(shape).astype(kind)
    for _ in range(2):
        begin = time.perf_counter()
        session.run(None, feeds)
        seconds = time.perf_counter() - begin
    with open(report, "w") as file:
        json.dump({"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}, file)


def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")


def drive_rate(path, arguments):
    """Bytes a second of direct reads, as `neap doctor` measures them."""
    text = subprocess.run([arguments.neap, "-q", "doctor"], stdout=subprocess.PIPE, text=True, cwd=os.path.dirname(path)).stdout
    return 1e9 * float(re.search(r"([\d.]+) GB/s", text)[1])


#: What the rival runs.
RIVAL = """
import resource, sys
from stable_diffusion_cpp import StableDiffusion
model = StableDiffusion(model_path=sys.argv[1], n_threads=int(sys.argv[2]), verbose=True)
model.generate_image(prompt=sys.argv[3], width=512, height=512, cfg_scale=7.5, sample_steps=1, sample_method="euler_a", seed=1)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def rival(arguments):
    """Seconds of a step and of decoding, and the peak, of stable-diffusion.cpp without a limit."""
    python, checkpoint = arguments.rival
    drop_caches()
    command = [python, "-c", RIVAL, checkpoint, str(arguments.threads), PROMPT]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    found = [re.search(pattern, said) for pattern in (r"sampling completed, taking ([\d.]+)s", r"decode_first_stage completed, taking ([\d.]+)s", r"peak (\d+)")]
    step, decode, peak = (float(match[1]) for match in found)
    print(f"stable-diffusion.cpp: {step} s a step, {decode} s to decode, {peak / MIB:.0f} MiB", flush=True)
    return {"step": step, "decode": decode, "peak": peak}


def picture(arguments):
    """A whole picture of Stable Diffusion 1.5 with guidance."""
    folder = os.path.dirname(os.path.dirname(model(["sd_15", "--half"], "unet", arguments)))
    limit = 133 * MB
    with tempfile.TemporaryDirectory(dir=arguments.work) as scratch:
        report = os.path.join(scratch, "report.json")
        command = [arguments.neap, "-q", "imagine", folder, "-p", PROMPT, "--size", "512x512", "--guidance", "7.5"]
        command += ["--threads", str(arguments.threads), "--memory-budget", str(limit), "--enforce", "--json", report]
        command += ["-o", os.path.join(scratch, "out.png"), "--scheduler", "euler-a", "--seed", "1"]
        # The first packs the networks.
        for steps in (1, arguments.steps):
            drop_caches()
            subprocess.run([*command, "--steps", str(steps)], check=True)
        with open(report) as file:
            told = json.load(file)
    print(f"picture: {told}", flush=True)
    by_name = {network["network"]: network["seconds"] for network in told["networks"]}
    ours = {"step": by_name["unet"] / arguments.steps, "decode": by_name["vae_decoder"], "peak": told["peak_memory_bytes"]}
    return {"steps": arguments.steps, "limit": limit, "seconds": told["seconds"], "ours": ours, "rival": arguments.rival and rival(arguments)}


def tables(told, arguments):
    drive = statistics.median(network["drive"] for network in told["networks"]) if told["networks"] else None
    lines = [f"{processor()}, {arguments.threads} threads{f', drive {drive / 1e9:.1f} GB/s' if drive else ''}, medians of {arguments.turns} turns.", ""]
    if told["networks"]:
        lines += ["| network | limit, MiB | seconds | spread, % | × without a limit | × the bound | peak, MiB | read, MiB | stored, MiB |"]
        lines += ["|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
        for network in told["networks"]:
            free = network["rows"][0]["seconds"]
            for run in network["rows"]:
                bound = max(free, (run["read"] + run["stored"]) / network["drive"])
                cells = [network["name"], f"{run['limit'] / MIB:.1f}" if run["limit"] else "none", f"{run['seconds']:.1f}", f"{100 * run['spread']:.0f}"]
                cells += [f"{run['seconds'] / free:.2f}", f"{run['seconds'] / bound:.2f}"]
                cells += [f"{run[key] / MIB:.1f}" for key in ("peak", "read", "stored")]
                lines.append("| " + " | ".join(cells) + " |")
            if theirs := network["onnxruntime"]:
                lines.append(f"| the same in onnxruntime, f32 | none | {theirs['seconds']:.1f} | {100 * theirs['spread']:.0f} | {theirs['seconds'] / free:.2f} | | {theirs['peak'] / MIB:.1f} | | |")
        lines.append("")
    if told["smallest"]:
        lines += ["| network | smallest budget, MiB | without bands and strips | share |", "|---|--:|--:|--:|"]
        for network in told["smallest"]:
            now, whole = network["smallest"] / MIB, network["without_strips"] / MIB
            lines.append(f"| {network['name']} | {now:.1f} | {whole:.1f} | {now / whole:.2f} |")
        lines.append("")
    for whole in told["pictures"]:
        ours, theirs = whole["ours"], whole["rival"]
        lines += [
            f"A picture of 512x512 in {whole['steps']} steps with guidance, f16 weights, within {whole['limit'] / MIB:.1f} MiB: {whole['seconds']:.0f} s in all.",
            "",
            "| picture by | limit, MiB | peak, MiB | seconds a step | seconds to decode |",
            "|---|--:|--:|--:|--:|",
            f"| neap | {whole['limit'] / MIB:.1f} | {ours['peak'] / MIB:.1f} | {ours['step']:.1f} | {ours['decode']:.1f} |",
        ]
        if theirs:
            lines.append(f"| stable-diffusion.cpp | none | {theirs['peak'] / MIB:.1f} | {theirs['step']:.1f} | {theirs['decode']:.1f} |")
        lines.append("")
    return "\n".join(lines)


def put(text):
    begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
    with open(PAGE) as file:
        page = file.read()
    before, rest = page.split(begin)
    _, after = rest.split(end)
    with open(PAGE, "w") as file:
        file.write(before + begin + text + end + after)


if __name__ == "__main__":
    main()
