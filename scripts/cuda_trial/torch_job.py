"""A PyTorch program as people write it: ResNet-50 and memory with known contents; the same bits after every pass.

usage: torch_job.py eager|graph|compile MIB PASSES [PERIOD_MS]     with a period, passes are jobs that begin so often
"""

import sys
import time

import neap_job
import torch
import torchvision

mode, mib, passes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
period = float(sys.argv[4]) / 1e3 if len(sys.argv) > 4 else 0
torch.manual_seed(1)
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.deterministic = True
device = torch.device("cuda")
model = torchvision.models.resnet50(weights=None).eval().to(device)
picture = torch.randn(4, 3, 224, 224).to(device)
pieces = [torch.arange(i, i + (16 << 18), dtype=torch.int32, device=device) for i in range(mib // 16)]


def whole():
    return all(torch.equal(p, torch.arange(i, i + (16 << 18), dtype=torch.int32, device=device)) for i, p in enumerate(pieces))


@torch.inference_mode()
def run():
    if mode == "graph":
        graph.replay()
        return out_of_graph
    return compiled(picture)


compiled = torch.compile(model) if mode == "compile" else model
with torch.inference_mode():
    if mode == "graph":
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(picture)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out_of_graph = model(picture)
first = run().clone().cpu()
for _ in range(5):
    run()
torch.cuda.synchronize()
times = []
began = time.perf_counter()
late = 0
for i in range(passes):
    start = time.perf_counter()
    if period:
        with neap_job.job():
            out = run().cpu()
        took = time.perf_counter() - start
        late += took > period
        time.sleep(max(0.0, period - took))
    else:
        out = run().cpu()
        took = time.perf_counter() - start
    times.append(took)
    assert torch.equal(out, first), "other bits"
total = time.perf_counter() - began
with neap_job.job():
    assert whole(), "memory is not what it was"
times.sort()
free, seen = torch.cuda.mem_get_info()
print(
    f"{mode}: right, {passes} passes, {total / passes * 1e3:.2f} ms each, median {times[len(times) // 2] * 1e3:.2f},"
    f" worst {times[-1] * 1e3:.1f}, late {late}, {torch.cuda.memory_reserved() >> 20} MiB reserved, card of {seen >> 20} MiB",
    flush=True,
)
