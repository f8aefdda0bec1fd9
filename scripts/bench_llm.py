"""Times language models beside llama.cpp within limits of memory, and writes the table of docs/language-models.md.

    python3 scripts/bench_llm.py [--neap target/release/neap] [--turns 3] [--tokens 48] [--write] MODEL.gguf…

Each program runs in a memory cgroup of its own (cgroup v1; needs root), the whole process counted. Engines take turns. Before each
run the page cache is dropped, and no page of the model may be left in it: pages charged to others would be free. llama.cpp runs
at its best of several ways to load (`--ways`), as scripts/llama.sh builds it for this processor. What the drive gives is measured in every
turn, as `neap plan` does it. Figures are medians over the turns.

The first token comes after the program's start, loading and the prompt. Ratios above 1 are in favour of neap.

Bound: a token takes no less than computing it without a limit, nor less than reading what was read for it at the drive's rate.
"""

import argparse
import ctypes
import json
import mmap
import os
import re
import resource
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PAGE = os.path.join(ROOT, "docs/language-models.md")
GROUPS = "/sys/fs/cgroup/memory"
MIB = 1 << 20

#: How llama.cpp loads a model, whether it repacks weights, and how it attends.
WAYS = ["mmap plain exact", "mmap plain flash", "none plain flash", "none repack flash"]

#: Of a whole process.
MEASURED = ("seconds", "peak_bytes", "major_faults")

#: Prose of no particular model, about 500 tokens.
PROMPT = """The tide that rises least and falls least is called a neap tide. It comes twice in a month, when the pull of the sun is at
right angles to that of the moon. Fishermen of old kept tables of such days, for a boat of any draught could leave the harbour at all
hours, and the bar at the mouth of the river was never dry. """


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--neap", default=os.path.join(ROOT, "target/release/neap"))
    parser.add_argument("--llama", help="program of scripts/llama.sh [default: it is built]")
    parser.add_argument("--shares", default="none,100,80,60,40,25", help="limits in hundredths of the model's file")
    parser.add_argument("--limits", default="", help="more limits, in MiB")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompt-tokens", type=int, default=256, help="about so many")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="a run that takes longer is ended and counts as too slow")
    parser.add_argument("--write", action="store_true", help="into docs/language-models.md")
    parser.add_argument("--json", help="file for everything measured")
    arguments = parser.parse_args()
    if arguments.llama is None:
        arguments.llama = subprocess.run(["sh", f"{ROOT}/scripts/llama.sh"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    rows = []
    for model in arguments.models:
        rows += of_model(os.path.abspath(model), arguments)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)
    text = table(rows, arguments)
    print(text)
    if arguments.write:
        put(text)


def of_model(model, arguments):
    """Medians of all limits of a model."""
    size = os.path.getsize(model)
    limits = [None if share == "none" else size * int(share) // 100 for share in arguments.shares.split(",") if share]
    limits += [int(limit) * MIB for limit in arguments.limits.split(",") if limit]
    ways = {limit: arguments.ways.split(",") for limit in limits}
    runs = {limit: {"neap": [], "drive": []} | {way: [] for way in ways[limit]} for limit in limits}
    with tempfile.TemporaryDirectory() as scratch:
        prompt = os.path.join(scratch, "prompt.txt")
        with open(prompt, "w") as file:
            words = (PROMPT * 40).split()
            file.write(" ".join(words[: arguments.prompt_tokens * 3 // 4]))
        for turn in range(arguments.turns):
            for limit in limits:
                of_limit = runs[limit]
                drop_cache(model)
                of_limit["drive"].append(drive_rate(model, arguments))
                of_limit["neap"].append(neap(model, prompt, limit, scratch, arguments))
                for way in list(ways[limit]):
                    told = llama(model, prompt, limit, way, arguments)
                    of_limit[way].append(told)
                    # What does not run at all needs no second turn.
                    if told is None:
                        ways[limit].remove(way)
                show(model, turn, limit, of_limit)
    free = runs.get(None)
    resident = median(rate(run) for run in free["neap"] if run) if free else None
    return [row(model, size, limit, runs[limit], resident) for limit in limits]


def neap(model, prompt, limit, scratch, arguments):
    report = os.path.join(scratch, "report.json")
    budget = "none" if limit is None else str(limit)
    command = [arguments.neap, "generate", model, "--file", prompt, "-n", str(arguments.tokens), "--ignore-end", "--draft", "0"]
    command += ["--context", str(arguments.context), "--threads", str(arguments.threads), "--memory-budget", budget, "--json", report]
    if os.path.exists(report):
        os.remove(report)
    # With a limit it makes its group itself, as a user's would, and says what the kernel charged there.
    ran = run(command if limit is None else [*command, "--enforce"], model, None, arguments)
    if ran is None or not os.path.exists(report):
        return None
    with open(report) as file:
        told = json.load(file) | {key: ran[key] for key in MEASURED}
    return told if limit is None else told | {"peak_bytes": told["peak_memory_bytes"]}


def llama(model, prompt, limit, way, arguments):
    load, repack, attention = way.split()
    command = [arguments.llama, model, prompt, str(arguments.tokens), str(arguments.context), str(arguments.threads)]
    ran = run([*command, load, repack, attention, "f16"], model, limit, arguments)
    return ran and json.loads(ran["output"]) | {key: ran[key] for key in MEASURED}


def run(command, model, limit, arguments):
    """Runs a program in a group with a limit; None where it fails, is killed, or takes too long."""
    drop_cache(model)
    group = tempfile.mkdtemp(prefix="bench", dir=GROUPS)
    with tempfile.TemporaryFile() as output:
        with open(f"{group}/memory.limit_in_bytes", "w") as file:
            file.write(str(-1 if limit is None else limit))

        def enter():
            with open(f"{group}/tasks", "w") as file:
                file.write(str(os.getpid()))

        begin = time.monotonic()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, preexec_fn=enter)
        timer = threading.Timer(arguments.seconds, child.kill)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - begin
        child.returncode = status
        timer.cancel()
        with open(f"{group}/memory.max_usage_in_bytes") as file:
            peak = int(file.read())
        remove(group)
        if status != 0:
            return None
        output.seek(0)
        told = {"seconds": seconds, "peak_bytes": peak, "major_faults": usage.ru_majflt}
        return told | {"output": output.read().decode(errors="replace")}


def remove(group):
    """The program's last pages may be on their way out."""
    for _ in range(100):
        try:
            return os.rmdir(group)
        except OSError:
            time.sleep(0.02)


def drop_cache(path):
    """No page of the file stays in memory, which is checked."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1")
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = cached_pages(file)
    if left:
        raise SystemExit(f"{left} pages of {path} are still in the page cache")


def cached_pages(file):
    size = os.fstat(file.fileno()).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return sum(page & 1 for page in bytes(pages))


def drive_rate(model, arguments):
    """Bytes a second that reading the file gives, as `neap plan` measures it."""
    plan = [arguments.neap, "plan", model, "--context", str(arguments.context)]
    text = subprocess.run(plan, check=True, stdout=subprocess.PIPE, text=True).stdout
    return 1e9 * float(re.search(r"reads ([\d.]+) GB/s", text)[1])


def rate(run):
    return run["later_tokens"] / run["later_seconds"]


def first_seconds(run):
    """From the start of the program to the first token of the answer."""
    return run["seconds"] - run["later_seconds"]


def median(values):
    values = list(values)
    return statistics.median(values) if values else None


def row(model, size, limit, runs, resident):
    ours = [run for run in runs["neap"] if run]
    by_way = {way: [run for run in of_way if run] for way, of_way in runs.items() if way not in ("neap", "drive")}
    by_way = {way: of_way for way, of_way in by_way.items() if of_way}
    best = max(by_way, key=lambda way: median(map(rate, by_way[way])), default=None)
    first = [median(map(first_seconds, of_way)) for of_way in by_way.values()]
    theirs = by_way.get(best, [])
    told = {
        "model": os.path.basename(model),
        "share": None if limit is None else round(100 * limit / size, 1),
        "limit_mib": None if limit is None else limit / MIB,
        "llama_way": best,
        "llama_rate": median(map(rate, theirs)),
        "llama_first_seconds": min(first, default=None),
        "llama_peak_mib": max((run["peak_bytes"] / MIB for run in theirs), default=None),
        "llama_major_faults": median(run["major_faults"] for run in theirs),
        "drive": median(runs["drive"]),
    }
    if ours:
        reads = median(run["later_read_bytes"] / run["later_tokens"] for run in ours)
        rates = sorted(map(rate, ours))
        told |= {
            "rate": median(rates),
            "spread": (rates[-1] - rates[0]) / median(rates),
            "first_seconds": median(map(first_seconds, ours)),
            "peak_mib": max(run["peak_bytes"] for run in ours) / MIB,
            "major_faults": median(run["major_faults"] for run in ours),
            "read_mb": reads / 1e6,
        }
        if resident:
            told["bound"] = 1 / max(1 / resident, reads / told["drive"])
    return told


def show(model, turn, limit, runs):
    parts = [f"drive {runs['drive'][-1] / 1e9:.2f} GB/s"]
    for name, of_name in runs.items():
        if name != "drive" and of_name:
            run = of_name[-1]
            told = f"{rate(run):.2f} tokens/s, first after {first_seconds(run):.2f} s, {run['peak_bytes'] / MIB:.1f} MiB" if run else "failed"
            parts.append(f"{name} {told}")
    limit = "none" if limit is None else f"{limit / MIB:.0f} MiB"
    print(f"{os.path.basename(model)} turn {turn} limit {limit}: " + "; ".join(parts), flush=True)


def table(rows, arguments):
    """The rows as a table of Markdown, and how they were measured."""

    def number(value, digits=1):
        return "–" if value is None else f"{value:.{digits}f}"

    def ratio(one, other, digits=2):
        return "–" if not one or not other else f"{one / other:.{digits}f}"

    lines = [
        f"{processor()}, {arguments.threads} threads, drive {number(median(r['drive'] for r in rows) / 1e9)} GB/s. "
        f"Prompt of about {arguments.prompt_tokens} tokens, {arguments.tokens} tokens of answer, medians of {arguments.turns} turns, "
        f"largest spread {number(100 * max((r.get('spread', 0) for r in rows), default=0), 0)} %. llama.cpp of llama-cpp-python 0.3.36.",
        "",
        "| model | limit, MiB (of the file) | tokens/s | MB read a token | of the bound | peak, MiB | llama.cpp: tokens/s | × | peak, MiB | first token after, s | llama.cpp | × |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        limit = "none" if r["limit_mib"] is None else f"{r['limit_mib']:.0f} ({r['share']:.0f} %)"
        cells = [re.sub(r"\.gguf$", "", r["model"]), limit, number(r.get("rate")), number(r.get("read_mb"))]
        cells += [ratio(r.get("rate"), r.get("bound")), number(r.get("peak_mib")), number(r["llama_rate"])]
        cells += [ratio(r.get("rate"), r["llama_rate"]), number(r["llama_peak_mib"])]
        cells += [number(r.get("first_seconds")), number(r["llama_first_seconds"]), ratio(r["llama_first_seconds"], r.get("first_seconds"))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def processor():
    with open("/proc/cpuinfo") as file:
        about = dict(line.split(":", 1) for line in file.read().replace("\t", "").split("\n\n")[0].splitlines() if ":" in line)
    flags = about.get("flags", "").split()
    known = [name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX-512"), ("avx512_vnni", "VNNI"), ("amx_int8", "AMX")) if flag in flags]
    return f"{about.get('model name', 'processor').strip()} (family {about.get('cpu family', '?').strip()}, {', '.join(known)})"


def put(text):
    begin, end = "<!-- measured: begin -->\n", "<!-- measured: end -->"
    with open(PAGE) as file:
        page = file.read()
    before, rest = page.split(begin)
    _, after = rest.split(end)
    with open(PAGE, "w") as file:
        file.write(before + begin + text + end + after)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
