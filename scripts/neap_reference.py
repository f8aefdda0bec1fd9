"""Shared by the scripts here: opening a model in onnxruntime, finding or making its inputs."""

import re

import numpy as np

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
# Token ids must stay below every vocabulary in use.
MAX_ID = 20_000


def add_arguments(parser):
    """The options by which every script here takes a model and its inputs."""
    parser.add_argument("model", help="ONNX file")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input; FILE.npz alone gives all arrays in it (default: seeded random)",
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1x3x224x224", help="shape of a random input"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random inputs")
    parser.add_argument("--threads", type=int, default=2)


#: Operators that onnxruntime computes in 8-bit integers.
IN_INTEGERS = {"MatMulInteger", "ConvInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QGemm", "QAttention"}


def exact_options(operators=None):
    """Session options with which onnxruntime's 8-bit products are exact.

    Without VNNI it adds pairs of products in 16 bits, which saturate: outputs are then wrong by up to half of their range. Its precision
    mode avoids that, but only where its graph is optimised. `operators` are the model's: without integers among them nothing
    is optimised, so that what is compared are the operators as they stand.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    if operators is not None:
        levels = onnxruntime.GraphOptimizationLevel
        integers = any(name in IN_INTEGERS or name.startswith("QLinear") for name in operators)
        options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED if integers else levels.ORT_DISABLE_ALL
    return options


def open_session(path, threads, exact=False):
    """An inference session on the CPU with a fixed number of threads. `exact` is for values, without it for times."""
    import onnxruntime

    options = exact_options() if exact else onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def path_safe(name):
    """A tensor name as a file name: anything but letters, digits, `.`, `_` and `-` becomes `_`."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return safe if safe.strip(".") else "_" + safe


def file_names(names):
    """One distinct path-safe file name (without suffix) per tensor name, in order."""
    used, result = set(), []
    for name in names:
        safe = base = path_safe(name)
        number = 1
        while safe in used:
            safe = f"{base}_{number}"
            number += 1
        used.add(safe)
        result.append(safe)
    return result


def collect_feeds(session, arguments):
    """The inputs as arrays: given ones from files, the rest random."""
    given = {}
    for item in arguments.input:
        name, separator, file = item.partition("=")
        if separator:
            given[name] = np.load(file, allow_pickle=False)
        elif item.endswith(".npz"):
            given.update(np.load(item, allow_pickle=False))
        else:
            raise SystemExit(f"--input {item}: expected NAME=FILE.npy or FILE.npz")
    shapes = {}
    for item in arguments.shape:
        name, separator, dims = item.partition("=")
        if not separator:
            raise SystemExit(f"--shape {item}: expected NAME=1x3x224x224")
        shapes[name] = [int(d) for d in dims.split("x")]
    known = {i.name for i in session.get_inputs()}
    for name in [*given, *shapes]:
        if name not in known:
            raise SystemExit(f"the model has no input {name}; it has {', '.join(sorted(known))}")
    rng = np.random.default_rng(arguments.seed)
    return {
        i.name: given[i.name] if i.name in given else random_input(rng, i, shapes.get(i.name))
        for i in session.get_inputs()
    }


def random_input(rng, spec, shape):
    """A random input of `shape`, or of the declared one with unnamed batch sizes set to 1."""
    if spec.type not in DTYPES:
        raise SystemExit(f"input {spec.name}: no random values of type {spec.type}")
    dtype = DTYPES[spec.type]
    if shape is None:
        shape = [d if isinstance(d, int) else None for d in spec.shape]
        if shape and shape[0] is None:
            shape[0] = 1
        if None in shape:
            raise SystemExit(f"input {spec.name} has shape {spec.shape}: give --shape {spec.name}=...")
    if np.issubdtype(dtype, np.floating):
        return rng.standard_normal(shape).astype(dtype)
    if dtype is np.bool_:
        return rng.random(shape) < 0.5
    if "mask" in spec.name:
        return np.ones(shape, dtype)
    if "type" in spec.name:
        return np.zeros(shape, dtype)
    return rng.integers(0, min(MAX_ID, np.iinfo(dtype).max), shape).astype(dtype)
