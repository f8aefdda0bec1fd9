#!/bin/sh
# What neap does on this machine's card, by Vulkan, in the card's own memory: six networks that it makes itself, right or wrong against the
# processor, times, memory as the card's driver counts it, budgets of the card, and predictions. Prints Markdown; takes some minutes.
#   sh scripts/card_trial.sh [FOLDER]     NEAP=the program, built with --features vulkan; BASE=another one to run in turn with it;
#                                         NETWORKS='resnet50 ...'; FOLDER for networks and packed files, which take 3 GB
set -eu
exec python3 - "${1:-$(mktemp -d)}" <<'END'
import json, os, subprocess, sys, time
from datetime import date
from pathlib import Path

folder = Path(sys.argv[1])
neap = os.environ.get("NEAP", "neap")
base = os.environ.get("BASE")
names = os.environ.get("NETWORKS", "squeezenet1_1 mobilenet_v2 resnet50 vit_b_16 gpt2 vgg19").split()
shares = [float(s) for s in os.environ.get("SHARES", "0.1 0.25 0.5").split()]
least_s = float(os.environ.get("SECONDS_EACH", "1.5"))
began = time.time()
MIB = 1 << 20


def told(*arguments):
    try:
        return subprocess.run(arguments, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def used_by(pid):
    """MiB of the card, as nvidia-smi tells; 0 where it does not."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    for line in told(*query).splitlines():
        fields = [f.strip() for f in line.split(",")]
        if fields[0] == str(pid) and fields[1].isdigit():
            return int(fields[1])
    return 0


def run(program, model, *arguments, iterations, outputs=None, watch=False):
    """A run's report; and what the card's driver counts for the process while it runs, in most of the looks at it."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    command = [program, "run", str(model), "--warmup", "3", "--iterations", str(iterations), "--json", str(report), *arguments]
    if outputs:
        command += ["--output-dir", str(outputs)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seen = []
    while watch and process.poll() is None:
        seen.append(used_by(process.pid))
        time.sleep(0.05)
    error = process.communicate(timeout=300)[1]
    # 3: the budget is too small.
    if process.returncode == 3:
        return None, 0
    if process.returncode != 0:
        print(f"{' '.join(command)}: exit code {process.returncode}: {error.strip()[-300:]}", file=sys.stderr)
        return None, 0
    # Not while it opens, which takes more for a moment.
    seen = sorted(seen, key=seen.count)
    return json.loads(report.read_text()), seen[-1] if seen else 0


def off(expected, found):
    """The largest difference, as a part of the largest number; 1 where outputs differ in size."""
    worst = 0.0
    for path in sorted(expected.glob("*.npy")):
        a, b = [floats(folder / path.name) for folder in (expected, found)]
        if len(a) != len(b):
            return 1.0
        most = max(map(abs, a)) or 1.0
        worst = max(worst, max(abs(x - y) for x, y in zip(a, b)) / most)
    return worst


def floats(path):
    from array import array

    data = path.read_bytes()
    head = int.from_bytes(data[8:10], "little")
    values = array("f")
    values.frombytes(data[10 + head :])
    return values


def same(a, b):
    return all((b / path.name).read_bytes() == path.read_bytes() for path in a.glob("*.npy"))


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


card = told("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader") or "the best device"
print(f"{card.splitlines()[0]}; {date.today()}; {os.cpu_count()} cores; {told(neap, '--version')}\n")
row("network", "processor ms", "before ms", "card ms", "predicted", "off the processor", "planned MiB", "the driver counts", "budgets MiB: ms (predicted, copied MiB, same bits)")
row(*["---"] + ["--:"] * 7 + ["---"])
for name in names:
    model = folder / f"{name}.onnx"
    if not model.exists():
        subprocess.run([neap, "zoo", name, "-o", str(model)], check=True, stdout=subprocess.DEVNULL)
    plain, whole, part = [folder / f"{name}-{kind}" for kind in ("processor", "card", "part")]
    own = ["--device", "vulkan", "--device-budget"]
    processor, _ = run(neap, model, iterations=5, outputs=plain)
    run(neap, model, *own, "none", iterations=1)
    first, _ = run(neap, model, *own, "none", iterations=20, outputs=whole)
    if not first or not processor:
        row(name, "failed")
        continue
    count = int(min(3000, max(30, least_s * 1000 / first["latency_ms"]["median"])))
    before = None
    if base:
        before, _ = run(base, model, *own, "none", iterations=min(count, 50))
    report, driver = run(neap, model, *own, "none", iterations=count, watch=True)
    memory = report["device"]["memory"]
    least = memory["planned_bytes"]
    within = []
    # What the plan itself takes, beside what the driver does.
    reserve = report["ledger"].get("device", {}).get("reserve_bytes", 0)
    for share in shares:
        budget = reserve + int((least - reserve) * share)
        found, _ = run(neap, model, *own, str(budget), iterations=30, outputs=part)
        was = ""
        if base and found:
            older, _ = run(base, model, *own, str(budget - reserve), iterations=20)
            was = f"; before {older['latency_ms']['median']:.1f}" if older else "; before: refused"
        if found:
            copied = found["device"]["copied_bytes_per_run"] / MIB
            bits = "same" if same(whole, part) else "OTHER BITS"
            within.append(f"{(budget - reserve) / MIB:.0f}: {found['latency_ms']['median']:.1f} ({found['predicted_latency_ms']:.1f}, {copied:.0f}, {bits}{was})")
        else:
            within.append(f"{(budget - reserve) / MIB:.0f}: refused")
    row(
        name,
        f"{processor['latency_ms']['median']:.1f}",
        f"{before['latency_ms']['median']:.2f}" if before else "–",
        f"{report['latency_ms']['median']:.2f}",
        f"{report['predicted_latency_ms']:.2f}",
        f"{off(plain, whole):.0e}",
        f"{least / MIB:.0f}",
        driver or "–",
        "; ".join(within),
    )
print(f"\n{time.time() - began:.0f} s.")
END
