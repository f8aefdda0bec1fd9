"""Time of one call of `run` on a model that does nothing, beside onnxruntime, turn by turn.

Prints medians over turns in microseconds, and how much larger the process is after all runs.
"""

import argparse
import os
import statistics
import tempfile
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import neaptide


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--runs", type=int, default=500, help="of each engine in a turn")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "identity.onnx")
        save(path)
        x = np.ones((1, 4), np.float32)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        own = neaptide.SessionOptions(cache_dir=folder)
        own.intra_op_num_threads = 1
        sessions = {
            "onnxruntime": onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]),
            "neaptide": neaptide.InferenceSession(path, own),
        }
        for session in sessions.values():
            turn(session, x, 1000)
        before = resident_bytes()
        times = {name: [] for name in sessions}
        for _ in range(arguments.turns):
            for name, session in sessions.items():
                times[name].append(turn(session, x, arguments.runs))
        medians = {name: statistics.median(of_one) * 1e6 for name, of_one in times.items()}
        for name, median in medians.items():
            print(f"{name}: {median:.2f} us, best {min(times[name]) * 1e6:.2f} us")
        ratios = sorted(a / b for a, b in zip(times["neaptide"], times["onnxruntime"]))
        print(f"median of the turns' ratios: {statistics.median(ratios):.2f}")
        runs = arguments.turns * arguments.runs
        print(f"after {runs} runs of each the process has {(resident_bytes() - before) / 1024:.0f} KiB more")


def turn(session, x, runs):
    """Seconds for each run."""
    feed = {"x": x}
    began = time.perf_counter()
    for _ in range(runs):
        session.run(None, feed)
    return (time.perf_counter() - began) / runs


def save(path):
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy")
    graph = helper.make_graph([node], "identity", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
