"""Trains a network in PyTorch, for a driver that asks for steps on stdin.

It speaks as ort_bench.py --serve does: `run N`, `stats`, `quit`, each answered with one line of JSON. The first line it prints
says that the network is there: {"ready": true, "version": ..., "parameters": ...}.

    torch_bench.py NETWORK BATCH --inputs FILE --targets FILE --optimizer NAME --rate RATE

The files hold one batch as raw bytes, the same for each step.
"""

import argparse
import sys
import time

import numpy as np
import torch

from ort_bench import answer, vm_hwm_bytes
from torch_networks import NETWORKS, loss_of, optimizer_of


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("batch", type=int)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--targets", required=True)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    make, shape, is_text = NETWORKS[arguments.network]
    x = np.fromfile(arguments.inputs, np.int64 if is_text else np.float32)
    x = torch.from_numpy(x.reshape(arguments.batch, *shape))
    targets = torch.from_numpy(np.fromfile(arguments.targets, np.int64))
    model = make().train()
    optimizer = optimizer_of(model, arguments.optimizer, arguments.rate)

    def step():
        started = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(x), targets)
        loss.backward()
        optimizer.step()
        return (time.perf_counter() - started) * 1e3, loss.item()

    parameters = sum(p.numel() for p in model.parameters())
    answer({"ready": True, "version": torch.__version__, "parameters": parameters})
    serve(step)


def serve(step):
    for line in sys.stdin:
        words = line.split()
        if len(words) == 2 and words[0] == "run" and words[1].isdigit():
            steps = [step() for _ in range(int(words[1]))]
            answer({"latency_ms": [ms for ms, _ in steps], "losses": [loss for _, loss in steps]})
        elif words == ["stats"]:
            answer({"peak_memory_bytes": vm_hwm_bytes()})
        elif words == ["quit"]:
            break
        else:
            answer({"error": f"unknown command: {line.strip()}"})


if __name__ == "__main__":
    main()
