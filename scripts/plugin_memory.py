"""What onnxruntime takes for a model, by itself and with the execution provider.

    python scripts/plugin_memory.py LIBRARY MODEL.onnx BUDGET

Each in a process of its own: resident memory before, its peak while the model is opened, after that, and after runs on zeros. MiB.
"""

import os
import subprocess
import sys

NAME = "NeaptideExecutionProvider"


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def worker(library, model, budget):
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    before = status("VmRSS")
    if budget:
        onnxruntime.register_execution_provider_library("neaptide", library)
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
        options.add_provider_for_devices(devices, {"memory_budget": budget})
    session = onnxruntime.InferenceSession(model, options)
    opened, after = status("VmHWM"), status("VmRSS")
    feed = {}
    for value in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        kind = {"tensor(float)": np.float32, "tensor(int64)": np.int64}[value.type]
        feed[value.name] = np.zeros(shape, kind)
    for _ in range(3):
        session.run(None, feed)
    print(f"{before:.0f} | {opened:.0f} | {after:.0f} | {status('VmRSS'):.0f}")


def main(library, model, budget):
    library = os.path.abspath(library)
    print("| | before | peak while opening | open | after three runs |")
    print("|---|--:|--:|--:|--:|")
    for name, given in [("onnxruntime", ""), (f"with the provider, {budget}", budget)]:
        command = [sys.executable, os.path.abspath(__file__), "--worker", library, model, given]
        done = subprocess.run(command, capture_output=True, text=True)
        print(f"| {name} | {done.stdout.strip() or done.stderr.strip().splitlines()[-1]} |", flush=True)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == "--worker":
        worker(*arguments[1:])
    else:
        main(*arguments)
