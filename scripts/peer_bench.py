"""Runs a model in OpenVINO or ncnn (on the processor or on Vulkan), in f32, for a driver that asks for runs on stdin.

It speaks as ort_bench.py --serve does: `run N`, `stats`, `quit`, each answered with one line of JSON.
The first line it prints says that the model is loaded and how far its outputs are from those given:
{"ready": true, "difference": ...}, or {"error": ...} when the engine is not there, cannot convert the
model, or cannot run it.

    peer_bench.py ENGINE MODEL.onnx --inputs A.npy [...] --outputs B.npy [...] --work DIR --threads N

`--inputs` and `--outputs` are in the model's order, as reference.py writes them.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model", help="ONNX file")
    parser.add_argument("--inputs", nargs="+", required=True)
    parser.add_argument("--outputs", nargs="+", required=True)
    parser.add_argument("--work", required=True, help="folder for converted models")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    inputs = [np.load(path, allow_pickle=False) for path in arguments.inputs]
    try:
        run, version = ENGINES[arguments.engine](arguments, inputs)
        difference = max_difference(run(), [np.load(path, allow_pickle=False) for path in arguments.outputs])
    except ImportError as error:
        answer({"error": f"not to be had here: {error}"})
        return
    except Unable as error:
        answer({"error": str(error)})
        return
    answer({"ready": True, "version": version, "difference": difference})
    serve(run)


class Unable(Exception):
    """The engine cannot do this model."""


def openvino(arguments, inputs):
    import openvino as ov

    core = ov.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": arguments.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
    }
    try:
        request = core.compile_model(arguments.model, "CPU", settings).create_infer_request()
    except RuntimeError as error:
        raise Unable(f"cannot load the model: {first_line(error)}") from None
    for index, value in enumerate(inputs):
        request.set_input_tensor(index, ov.Tensor(value))

    def run():
        request.infer()
        return [request.get_output_tensor(i).data for i in range(len(arguments.outputs))]

    return run, ov.__version__


def ncnn(arguments, inputs, vulkan=False):
    import ncnn as engine

    if vulkan and engine.get_gpu_count() == 0:
        raise Unable("ncnn sees no Vulkan device")
    param, weights = convert(arguments)
    for layer in layers(param):
        if engine.layer_to_index(layer) < 0:
            raise Unable(f"converted, but ncnn has no layer {layer}")
    net = engine.Net()
    # Before loading: weights are laid out for these.
    net.opt.num_threads = arguments.threads
    for reduced in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        if hasattr(net.opt, f"use_{reduced}"):
            setattr(net.opt, f"use_{reduced}", False)
    if vulkan:
        net.opt.use_vulkan_compute = True
        # On a driver that computes on the processor it is slower with it.
        net.opt.use_winograd_convolution = False
    if net.load_param(param) != 0 or net.load_model(weights) != 0:
        raise Unable("ncnn cannot load the converted model")
    # ncnn has no batch; ids are 32 bits wide.
    mats = [engine.Mat(np.ascontiguousarray(narrow(v)[0])).clone() for v in inputs]

    def run():
        extractor = net.create_extractor()
        for index, mat in enumerate(mats):
            extractor.input(f"in{index}", mat)
        results = []
        for index in range(len(arguments.outputs)):
            code, out = extractor.extract(f"out{index}")
            if code != 0:
                raise Unable("ncnn cannot run the converted model")
            results.append(np.array(out))
        return results

    return run, engine.__version__


def ncnn_vulkan(arguments, inputs):
    return ncnn(arguments, inputs, vulkan=True)


ENGINES = {"openvino": openvino, "ncnn": ncnn, "ncnn-vulkan": ncnn_vulkan}


def narrow(value):
    return value.astype(np.int32) if value.dtype == np.int64 else value


def layers(param):
    """Types of a converted model's layers."""
    with open(param) as lines:
        next(lines)
        next(lines)
        return sorted({line.split()[0] for line in lines if line.strip()})


def convert(arguments):
    """The model as ncnn's two files, made once in the work folder."""
    stem = os.path.splitext(os.path.basename(arguments.model))[0]
    done = [os.path.join(arguments.work, f"{stem}.ncnn.{end}") for end in ("param", "bin")]
    newer = lambda path: os.path.exists(path) and os.path.getmtime(path) >= os.path.getmtime(arguments.model)
    if all(newer(path) for path in done):
        return done
    tool = pnnx()
    scratch = os.path.join(arguments.work, f"{stem}.converting")
    shutil.rmtree(scratch, ignore_errors=True)
    os.makedirs(scratch)
    # It writes beside the model, whatever it is told.
    os.symlink(os.path.abspath(arguments.model), os.path.join(scratch, f"{stem}.onnx"))
    print(f"converting {stem} for ncnn", file=sys.stderr)
    log = subprocess.run([tool, f"{stem}.onnx", "fp16=0"], cwd=scratch, capture_output=True, text=True)
    made = [os.path.join(scratch, f"{stem}.ncnn.{end}") for end in ("param", "bin")]
    if log.returncode != 0 or not all(os.path.exists(path) for path in made):
        shutil.rmtree(scratch)
        raise Unable(f"pnnx cannot convert the model (exit code {log.returncode})")
    for source, target in zip(made, done):
        os.replace(source, target)
        os.utime(target)
    shutil.rmtree(scratch)
    return done


def pnnx():
    """The converter's own binary: its Python package wants more than is needed."""
    import importlib.metadata

    try:
        for file in importlib.metadata.files("pnnx") or []:
            if str(file) == "pnnx/pnnx":
                return str(file.locate())
    except importlib.metadata.PackageNotFoundError:
        pass
    raise Unable("pnnx, which converts for ncnn, is not to be had here")


def max_difference(results, expected):
    """The largest difference, relative to the largest value expected."""
    worst = 0.0
    for result, wanted in zip(results, expected, strict=True):
        if result.size != wanted.size:
            raise Unable(f"an output has {result.size} elements, {wanted.size} are right")
        scale = max(float(np.max(np.abs(wanted))), 1e-30)
        apart = float(np.max(np.abs(result.reshape(-1).astype(np.float64) - wanted.reshape(-1))))
        worst = max(worst, apart / scale) if np.isfinite(apart) else float("inf")
    if not np.isfinite(worst):
        raise Unable("outputs are not numbers")
    return worst


def serve(run):
    for line in sys.stdin:
        words = line.split()
        if not words:
            continue
        if words[0] == "run" and len(words) == 2 and words[1].isdigit():
            answer({"latency_ms": [timed(run) for _ in range(int(words[1]))]})
        elif words == ["stats"]:
            answer({"peak_memory_bytes": vm_hwm_bytes()})
        elif words == ["quit"]:
            break
        else:
            answer({"error": f"unknown command: {line.strip()}"})


def timed(run):
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def vm_hwm_bytes():
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def answer(value):
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
