"""The paper's Figure 4: how long 300 MiB take out of the card and back, by chunk size.

usage: figure4.py NEAP_GPU HOOK SOCKET ROUNDS CHUNKS_MIB…
"""

import pathlib
import subprocess
import sys
import time

gpu, hook, socket, rounds, *chunks = sys.argv[1:]
program = pathlib.Path(__file__).parent / "holds.py"
MIB = 1 << 20


def ask(*words):
    return subprocess.run([gpu, *words, "--socket", socket], capture_output=True, text=True).stdout


def metric(name):
    lines = [line for line in ask("gputop", "--metrics").splitlines() if line.startswith(f"neap_gpu_{name}{{")]
    return float(lines[-1].split()[-1]) if lines else 0.0


print("chunk MiB | out ms | in ms | moved MiB | out GiB/s | in GiB/s", flush=True)
for chunk in chunks:
    command = [gpu, "gpu", "run", "--socket", socket, "--hook", hook, "--chunk", f"{chunk}MiB"]
    command += ["--", sys.executable, str(program), "300", rounds]
    held = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert held.stdout.readline() == "holds\n"
    best = {}
    for _ in range(int(rounds)):
        before = {name: metric(name) for name in ("out_seconds_total", "in_seconds_total", "in_bytes_total")}
        time.sleep(0.05)
        while ask("gpu", "evict", str(held.pid)) is None or metric("away_bytes") == 0:
            time.sleep(0.01)
        held.stdin.write("\n")
        held.stdin.flush()
        assert held.stdout.readline() == "right\n"
        for name, old in before.items():
            best[name] = min(best.get(name, 1e18), metric(name) - old)
    moved, out, back = best["in_bytes_total"], best["out_seconds_total"], best["in_seconds_total"]
    rate = lambda seconds: moved / seconds / (1 << 30) if seconds else 0
    print(f"{chunk} | {out * 1e3:.1f} | {back * 1e3:.1f} | {moved / MIB:.0f} | {rate(out):.1f} | {rate(back):.1f}", flush=True)
    held.stdin.close()
    held.wait()
