"""onnxruntime over mapped weights: the kernel reads and evicts pages of them as it likes.

    runtime_pages.py prepare MODEL.onnx OUT.onnx        optimised once, weights in OUT.onnx.data as they will be mapped
    runtime_pages.py serve THREADS MODEL INPUT ...      MODEL as prepared, INPUT the bytes of its only input

`serve` opens all models, says what it has, and answers each line with a line of JSON:

    run N       runs model N
    same N      whether its outputs have the bits of its first run
    outputs N   the first thousand values of its first output
    stats       major page faults so far

Nothing is optimised or packed anew when a model is opened: both would copy weights into memory that cannot be mapped.
"""

import json
import os
import resource
import sys
import time


def main():
    words = sys.argv[1:]
    if len(words) == 3 and words[0] == "prepare":
        prepare(words[1], words[2])
    elif len(words) >= 2 and words[0] == "serve" and len(words) % 2 == 0:
        serve(int(words[1]), words[2::2], words[3::2])
    else:
        sys.exit(__doc__)


def prepare(source, target):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = target
    entries = {
        "session.optimized_model_external_initializers_file_name": os.path.basename(target) + ".data",
        "session.optimized_model_external_initializers_min_size_in_bytes": "1024",
    }
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


class Model:
    def __init__(self, path, input_path, threads):
        import numpy
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # What is not mapped goes back to the kernel after each run, and threads of idle models do not spin.
        options.enable_cpu_mem_arena = False
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = self.session.get_inputs()[0]
        self.feeds = {given.name: numpy.fromfile(input_path, numpy.float32).reshape(given.shape)}
        self.outputs = None
        self.first = None

    def run(self):
        self.outputs = self.session.run(None, self.feeds)

    def is_same(self):
        bits = [output.tobytes() for output in self.outputs]
        if self.first is None:
            self.first = bits
        return bits == self.first


def serve(threads, models, inputs):
    began = time.perf_counter()
    # What another process has read would be charged to that one.
    for path in models:
        forget(path + ".data")
    models = [Model(*each, threads) for each in zip(models, inputs)]
    answer(
        {
            "start_ms": (time.perf_counter() - began) * 1e3,
            "own_bytes": own_bytes(),
            "mapped_bytes": mapped_bytes(),
        }
    )
    for line in sys.stdin:
        words = line.split()
        model = models[int(words[1])] if len(words) == 2 else None
        if words[0] == "run":
            model.run()
            answer(True)
        elif words[0] == "same":
            answer(model.is_same())
        elif words[0] == "outputs":
            answer([float(value) for value in model.outputs[0].ravel()[:1000]])
        elif words[0] == "stats":
            answer({"major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt})


def answer(value):
    print(json.dumps(value), flush=True)


def forget(path):
    """Drops a file from the kernel's cache."""
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def own_bytes():
    """Memory that no file is behind."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024


def mapped_bytes():
    """Of files with weights."""
    total = 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            if line.rstrip().endswith(".data"):
                low, high = line.split()[0].split("-")
                total += int(high, 16) - int(low, 16)
    return total


if __name__ == "__main__":
    main()
