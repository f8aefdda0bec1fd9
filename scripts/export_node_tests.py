"""Exports the ONNX standard's node tests (package onnx, onnx.backend.test.data) in a simple form, and those of `Gradient`,
which the standard keeps among its models as they take several nodes.

    export_node_tests.py OUTDIR

makes OUTDIR/index.json and, per test, OUTDIR/NAME/ with `model.onnx`, `input_I.npy`,
`output_I.npy` and `manifest.json`:

    {"name": ..., "operator": "Conv", "supported": true, "reason": null,
     "inputs":  [{"name": ..., "dtype": "float32", "shape": [...], "file": "input_0.npy"}],
     "outputs": [...]}

bfloat16 is stored as the bits, in uint16; floats of 4 and 8 bits as float32, and integers of 2 and 4 bits as int8 or
uint8, which hold them exactly: `dtype` is "bfloat16", "float32", "int8" or "uint8".
A test whose data cannot be stored so (sequences, optionals, strings) has `supported` false with the
reason, and entries without a file. `index.json` holds the
tolerances, the package's version and all manifests.

Packages of onnx to 1.18 carry the tests as files. Later ones carry only what makes them, so they are made here.
"""

import argparse
import glob
import json
import os
import warnings

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

# Types of fewer bits and those that hold them, by the names of the package, which knows some of them only when it is new.
CARRIERS = {
    getattr(TensorProto, name): carrier
    for carrier, names in {
        np.float32: ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0", "FLOAT4E2M1"],
        np.int8: ["INT4", "INT2"],
        np.uint8: ["UINT4", "UINT2"],
    }.items()
    for name in names
    if hasattr(TensorProto, name)
}

# Raised when what is written changes, so that it is written anew.
FORMAT = 4

# Tests of `Gradient` begin so.
GRADIENT = "test_gradient_"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir")
    arguments = parser.parse_args()

    data = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data")
    operators = {}
    cases = carried(data) if os.path.isdir(os.path.join(data, "node")) else generated()
    tests = [export(os.path.join(arguments.outdir, case[0]), operators, *case) for case in cases]
    index = {"format": FORMAT, "onnx_version": onnx.__version__, "rtol": RTOL, "atol": ATOL, "tests": tests}
    write_json(os.path.join(arguments.outdir, "index.json"), index)
    print(json.dumps({"tests": len(tests), "supported": sum(t["supported"] for t in tests)}))


def carried(folder):
    """Tests that lie in the package: name, serialized model, inputs and outputs."""
    sources = glob.glob(os.path.join(folder, "node", "*")) + glob.glob(os.path.join(folder, "simple", GRADIENT + "*"))
    sources = [source for source in sources if os.path.isfile(os.path.join(source, "model.onnx"))]
    for source in sorted(sources, key=os.path.basename):
        name = os.path.basename(source)
        with open(os.path.join(source, "model.onnx"), "rb") as serialized:
            model = serialized.read()
        graph = onnx.load_from_string(model).graph
        data = os.path.join(source, "test_data_set_0")
        yield name, model, graph, stored_values(data, "input", graph.input), stored_values(data, "output", graph.output)


def stored_values(data, kind, ports):
    """The tensors of files, and None for values of other types."""
    count = len(glob.glob(os.path.join(data, f"{kind}_*.pb")))
    return [stored_value(os.path.join(data, f"{kind}_{i}.pb"), ports[i]) for i in range(count)]


def stored_value(path, port):
    if port.type.WhichOneof("value") != "tensor_type":
        return None
    tensor = TensorProto()
    with open(path, "rb") as serialized:
        tensor.ParseFromString(serialized.read())
    return tensor


def generated():
    """The same of tests that the package makes."""
    from onnx.backend.test.case import model, node

    with warnings.catch_warnings():
        # Infinities and NaN are made on purpose.
        warnings.simplefilter("ignore", RuntimeWarning)
        cases = node.collect_testcases()
        cases += [case for case in model.collect_testcases() if case.name.startswith(GRADIENT)]
    cases.sort(key=lambda case: case.name)
    for case in cases:
        inputs, outputs = case.data_sets[0]
        graph = case.model.graph
        values = [made_values(values, ports) for values, ports in ((inputs, graph.input), (outputs, graph.output))]
        yield case.name, case.model.SerializeToString(), graph, *values


def made_values(values, ports):
    return [made_value(value, port) for value, port in zip(values, ports, strict=True)]


def made_value(value, port):
    if port.type.WhichOneof("value") != "tensor_type":
        return None
    return value if isinstance(value, TensorProto) else numpy_helper.from_array(np.asarray(value), port.name)


def export(target, operators, name, model, graph, inputs, outputs):
    """Writes one test and returns its manifest."""
    os.makedirs(target, exist_ok=True)
    # Tests come by their names: an operator before what its definition expands it to.
    operator = operators.setdefault(name.split("_expanded")[0], graph.node[-1].op_type)
    with open(os.path.join(target, "model.onnx"), "wb") as out:
        out.write(model)
    manifest = {
        "name": name,
        "operator": operator,
        "supported": True,
        "reason": None,
        "inputs": convert_all(target, "input", graph.input, inputs),
        "outputs": convert_all(target, "output", graph.output, outputs),
    }
    for entry in manifest["inputs"] + manifest["outputs"]:
        if "unsupported" in entry:
            manifest["supported"] = False
            manifest["reason"] = f"{entry['name']}: {entry['unsupported']}"
            break
    write_json(os.path.join(target, "manifest.json"), manifest)
    return manifest


def convert_all(target, kind, ports, values):
    return [convert(target, f"{kind}_{i}.npy", ports[i], value) for i, value in enumerate(values)]


def convert(target, file, port, tensor):
    """Stores one value as .npy, or says why not."""
    if tensor is None:
        return {"name": port.name, "unsupported": port.type.WhichOneof("value").removesuffix("_type")}
    declared = port.type.tensor_type.elem_type
    # The bits of bfloat16 are stored as those of another type.
    bits = declared == TensorProto.BFLOAT16 and tensor.data_type in (TensorProto.UINT16, TensorProto.BFLOAT16)
    if tensor.data_type not in STORABLE and tensor.data_type not in CARRIERS and not bits:
        return {"name": port.name, "unsupported": TensorProto.DataType.Name(tensor.data_type).lower()}
    if tensor.data_type != declared and not bits:
        # Data stored in a stand-in type is not what the model takes.
        return {"name": port.name, "unsupported": TensorProto.DataType.Name(declared).lower()}
    array = numpy_helper.to_array(tensor)
    if tensor.data_type in CARRIERS:
        array = array.astype(CARRIERS[tensor.data_type])
    elif bits:
        array = array.view(np.uint16)
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
