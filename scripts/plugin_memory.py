"""What onnxruntime takes for a model, by itself and with the execution provider.

    python scripts/plugin_memory.py LIBRARY MODEL.onnx BUDGET [--external] [--limits]

Each in a process of its own: resident memory before, its peak while the model is opened, after that, and after runs. MiB.
``--external`` puts the model's weights into a file of their own first. ``--limits`` looks for the smallest hard limit of the kernel's
(a memory cgroup) in which the process opens the model and runs it, with the outputs that onnxruntime has without a limit.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile

NAME = "NeaptideExecutionProvider"
RUNS = 3
#: Of outputs, relative to the largest.
TOLERANCE = 1e-4
#: Limits are found to within so much.
STEP_MIB = 1
#: A process that is kept from memory may go on reading the same pages for ever.
PATIENCE_SECONDS = 60


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def worker(library, model, budget, out):
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    before = status("VmRSS")
    if budget:
        onnxruntime.register_execution_provider_library("neaptide", library)
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
        options.add_provider_for_devices(devices, {"memory_budget": budget})
    session = onnxruntime.InferenceSession(model, options)
    if budget:
        assert NAME in session.get_providers(), "the provider did not take the model"
    opened, after = status("VmHWM"), status("VmRSS")
    random = np.random.default_rng(0)
    feed = {}
    for value in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in value.shape]
        is_real = value.type == "tensor(float)"
        feed[value.name] = random.standard_normal(shape).astype(np.float32) if is_real else np.ones(shape, np.int64)
    for _ in range(RUNS):
        outputs = session.run(None, feed)
    np.savez(out, *outputs)
    print(f"{before:.0f} | {opened:.0f} | {after:.0f} | {status('VmRSS'):.0f}")


def run(library, model, budget, out, limit_mib=None):
    """The worker's line; ``None`` where it did not end well."""
    command = [sys.executable, os.path.abspath(__file__), "--worker", os.path.abspath(library), model, budget, out]
    with limited(limit_mib) as enter:
        try:
            done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter, timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return None
    if done.returncode and limit_mib is None:
        raise SystemExit(done.stderr)
    return None if done.returncode else done.stdout.strip()


@contextlib.contextmanager
def limited(mib):
    """What a process calls to have no more memory than that, and no swap."""
    if mib is None:
        yield None
        return
    groups, files = place_of_groups()
    group = os.path.join(groups, f"neaptide-plugin-{os.getpid()}")
    os.mkdir(group)
    try:
        for name, value in files(mib << 20):
            path = os.path.join(group, name)
            if os.path.exists(path):
                write(path, value)
        yield lambda: write(os.path.join(group, "cgroup.procs"), os.getpid())
    finally:
        os.rmdir(group)


def place_of_groups():
    """A folder for memory cgroups, and what is written to which files of one."""
    with open("/proc/self/cgroup") as lines:
        own = dict(line.strip().split(":", 2)[1:] for line in lines)
    if "memory" in own:
        root = "/sys/fs/cgroup/memory"
        inside = root + own["memory"]
        files = lambda limit: [("memory.limit_in_bytes", limit), ("memory.memsw.limit_in_bytes", limit)]
    else:
        root = "/sys/fs/cgroup"
        # A group with processes may have no limited children: beside it.
        inside = os.path.dirname(root + own[""])
        files = lambda limit: [("memory.max", limit), ("memory.swap.max", 0)]
    return inside if os.path.isdir(inside) else root, files


def write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


def are_close(mine, theirs):
    """Whether two files have the same outputs but for rounding."""
    import numpy as np

    with np.load(mine) as ours, np.load(theirs) as others:
        return len(ours.files) == len(others.files) and all(
            ours[name].shape == others[name].shape
            and np.abs(ours[name] - others[name]).max() <= TOLERANCE * max(1.0, np.abs(others[name]).max())
            for name in others.files
        )


def smallest_limit(library, model, budget, folder, most_mib):
    """In MiB. What fails within a limit is held to fail within smaller ones."""
    expected, out = os.path.join(folder, "expected.npz"), os.path.join(folder, "limited.npz")

    def is_enough(mib):
        if os.path.exists(out):
            os.remove(out)
        return run(library, model, budget, out, mib) is not None and are_close(out, expected)

    low, high = 0, most_mib
    if not is_enough(high):
        return None
    while high - low > STEP_MIB:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("model")
    parser.add_argument("budget")
    parser.add_argument("--external", action="store_true")
    parser.add_argument("--limits", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Packed models go with it.
        os.environ["NEAPTIDE_CACHE_DIR"] = os.path.join(folder, "cache")
        model = os.path.abspath(arguments.model)
        if arguments.external:
            model = with_external_weights(model, folder)
        print("| | before | peak while opening | open | after three runs |" + (" smallest hard limit |" if arguments.limits else ""))
        print("|---|--:|--:|--:|--:|" + ("--:|" if arguments.limits else ""))
        for name, budget in [("onnxruntime", ""), (f"with the provider, {arguments.budget}", arguments.budget)]:
            out = os.path.join(folder, "given.npz" if budget else "expected.npz")
            # Once before, to pack it.
            found = run(arguments.library, model, budget, out) and run(arguments.library, model, budget, out)
            if not are_close(out, os.path.join(folder, "expected.npz")):
                raise SystemExit("other outputs than onnxruntime's")
            if arguments.limits:
                most = 64 + round(float(found.split("|")[1]))
                found += f" | {smallest_limit(arguments.library, model, budget, folder, most) or 'more'}"
            print(f"| {name} | {found} |", flush=True)


def with_external_weights(model, folder):
    import onnx

    path = os.path.join(folder, "external.onnx")
    onnx.save(onnx.load(model), path, save_as_external_data=True, location="external.data")
    return path


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:])
    else:
        main()
