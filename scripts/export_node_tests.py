"""Exports the ONNX standard's node tests (package onnx, onnx.backend.test.data) in a simple form.

    export_node_tests.py OUTDIR

makes OUTDIR/index.json and, per test, OUTDIR/NAME/ with `model.onnx`, `input_I.npy`,
`output_I.npy` and `manifest.json`:

    {"name": ..., "supported": true, "reason": null,
     "inputs":  [{"name": ..., "dtype": "float32", "shape": [...], "file": "input_0.npy"}],
     "outputs": [...]}

bfloat16 is stored as the bits, in uint16; 8-bit floats as float32, and 4-bit integers as int8 or uint8, which hold
them exactly: `dtype` is "bfloat16", "float32", "int8" or "uint8".
A test whose data cannot be stored so (sequences, optionals, strings) has `supported` false with the
reason, and entries without a file. `index.json` holds the
tolerances, the package's version and all manifests.
"""

import argparse
import glob
import json
import os
import shutil

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

# How the standard's own runner compares.
RTOL = 1e-3
ATOL = 1e-7

STORABLE = {
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.INT8,
    TensorProto.INT16,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT8,
    TensorProto.UINT16,
    TensorProto.UINT32,
    TensorProto.UINT64,
    TensorProto.BOOL,
}

FLOAT8 = {
    TensorProto.FLOAT8E4M3FN,
    TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2,
    TensorProto.FLOAT8E5M2FNUZ,
}

# Types of fewer bits and those that hold them.
CARRIERS = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8} | {kind: np.float32 for kind in FLOAT8}

# Raised when what is written changes, so that it is written anew.
FORMAT = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir")
    arguments = parser.parse_args()

    source = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "node")
    names = sorted(n for n in os.listdir(source) if os.path.isfile(os.path.join(source, n, "model.onnx")))
    tests = [export(os.path.join(source, n), os.path.join(arguments.outdir, n), n) for n in names]
    index = {"format": FORMAT, "onnx_version": onnx.__version__, "rtol": RTOL, "atol": ATOL, "tests": tests}
    write_json(os.path.join(arguments.outdir, "index.json"), index)
    print(json.dumps({"tests": len(tests), "supported": sum(t["supported"] for t in tests)}))


def export(source, target, name):
    """Writes one test and returns its manifest."""
    os.makedirs(target, exist_ok=True)
    shutil.copyfile(os.path.join(source, "model.onnx"), os.path.join(target, "model.onnx"))
    graph = onnx.load(os.path.join(source, "model.onnx")).graph
    data = os.path.join(source, "test_data_set_0")
    manifest = {
        "name": name,
        "supported": True,
        "reason": None,
        "inputs": convert_all(data, target, "input", graph.input),
        "outputs": convert_all(data, target, "output", graph.output),
    }
    for entry in manifest["inputs"] + manifest["outputs"]:
        if "unsupported" in entry:
            manifest["supported"] = False
            manifest["reason"] = f"{entry['name']}: {entry['unsupported']}"
            break
    write_json(os.path.join(target, "manifest.json"), manifest)
    return manifest


def convert_all(data, target, kind, ports):
    files = glob.glob(os.path.join(data, f"{kind}_*.pb"))
    return [convert(os.path.join(data, f"{kind}_{i}.pb"), target, f"{kind}_{i}.npy", ports[i]) for i in range(len(files))]


def convert(source, target, file, port):
    """Turns one serialized value into .npy, or says why not."""
    kind = port.type.WhichOneof("value")
    if kind != "tensor_type":
        return {"name": port.name, "unsupported": kind.removesuffix("_type")}
    tensor = TensorProto()
    with open(source, "rb") as serialized:
        tensor.ParseFromString(serialized.read())
    declared = port.type.tensor_type.elem_type
    # The bits of bfloat16 are stored as those of another type.
    bits = declared == TensorProto.BFLOAT16 and tensor.data_type == TensorProto.UINT16
    if tensor.data_type not in STORABLE and tensor.data_type not in CARRIERS:
        return {"name": port.name, "unsupported": TensorProto.DataType.Name(tensor.data_type).lower()}
    if tensor.data_type != declared and not bits:
        # Data stored in a stand-in type is not what the model takes.
        return {"name": port.name, "unsupported": TensorProto.DataType.Name(declared).lower()}
    array = numpy_helper.to_array(tensor)
    if tensor.data_type in CARRIERS:
        array = array.astype(CARRIERS[tensor.data_type])
    # `ascontiguousarray` would turn a scalar into a vector.
    array = np.asarray(array, order="C")
    np.save(os.path.join(target, file), array, allow_pickle=False)
    dtype = "bfloat16" if bits else array.dtype.name
    return {"name": port.name, "dtype": dtype, "shape": list(array.shape), "file": file}


def write_json(path, value):
    with open(path, "w") as out:
        json.dump(value, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
