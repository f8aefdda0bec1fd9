"""Writes a model in few bits, by onnxruntime's own tools.

    quantize.py MODEL.onnx OUT.onnx --form qdq|qoperator|dynamic|int4

qdq and qoperator are calibrated on seeded noise of the inputs' shapes; weights have a scale for each channel.
"""

import argparse
import os
import tempfile

import numpy as np
import onnx
from onnxruntime import quantization as q


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--form", required=True, choices=["qdq", "qoperator", "dynamic", "int4"])
    arguments = parser.parse_args()
    if arguments.form == "dynamic":
        q.quantize_dynamic(arguments.model, arguments.out, weight_type=q.QuantType.QInt8)
    elif arguments.form == "int4":
        blocks(arguments.model, arguments.out)
    else:
        static(arguments)


def static(arguments):
    form = q.QuantFormat.QDQ if arguments.form == "qdq" else q.QuantFormat.QOperator
    with tempfile.TemporaryDirectory() as folder:
        prepared = os.path.join(folder, "prepared.onnx")
        q.quant_pre_process(arguments.model, prepared, skip_symbolic_shape=True)
        q.quantize_static(
            prepared,
            arguments.out,
            Noise(prepared),
            quant_format=form,
            activation_type=q.QuantType.QUInt8,
            weight_type=q.QuantType.QInt8,
            per_channel=True,
        )


def blocks(model, out):
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(model), block_size=32, is_symmetric=True)
    quantizer.process()
    onnx.save(quantizer.model.model, out)


class Noise(q.CalibrationDataReader):
    """Four inputs of seeded noise."""

    def __init__(self, model):
        graph = onnx.load(model, load_external_data=False).graph
        constants = {constant.name for constant in graph.initializer}
        self.inputs = [value for value in graph.input if value.name not in constants]
        self.random = np.random.default_rng(1)
        self.left = 4

    def get_next(self):
        if self.left == 0:
            return None
        self.left -= 1
        return {value.name: self.noise(value.type.tensor_type) for value in self.inputs}

    def noise(self, tensor):
        shape = [max(1, axis.dim_value) for axis in tensor.shape.dim]
        return self.random.standard_normal(shape).astype(np.float32)


if __name__ == "__main__":
    main()
