"""Models of a few operators whose results both engines compute: arrays for inputs and constants, and names of outputs."""

import numpy as np
import onnx
from onnx import TensorProto, helper

import neaptide

from .conftest import close, tensor

MICROSOFT = "com.microsoft"
CLASSICAL = "ai.onnx.ml"


def array(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def whole(*shape, high=256, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


class Case:
    """A model of a few operators: arrays for its inputs and constants, names of its outputs."""

    def __init__(self, name, nodes, inputs, constants=None, outputs=("y",), tolerance=2e-5, raw=(), classical=3):
        self.name, self.nodes, self.inputs = name, nodes, inputs
        self.constants, self.outputs, self.tolerance, self.raw = constants or {}, outputs, tolerance, raw
        self.classical = classical

    def save(self, folder):
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [tensor(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in self.inputs.items()],
            [tensor(k, TensorProto.FLOAT, None) if isinstance(k, str) else tensor(*k, None) for k in self.outputs],
            [onnx.numpy_helper.from_array(v, k) for k, v in self.constants.items()] + list(self.raw),
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1), helper.make_opsetid(CLASSICAL, self.classical)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 10
        path = folder / f"{self.name}.onnx"
        onnx.save(model, path)
        return str(path)

    def __repr__(self):
        return self.name


def node(op, inputs, outputs=("y",), domain=MICROSOFT, **attributes):
    return helper.make_node(op, inputs, list(outputs), domain=domain, **attributes)


def compare(case, folder):
    """Asserts that this engine gives what onnxruntime gives."""
    import neap_reference
    import onnxruntime

    path = case.save(folder)
    # Optimised, it rounds activations to 8 bits where weights have few.
    options = neap_reference.exact_options({node.op_type for node in case.nodes})
    theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ours = neaptide.InferenceSession(path)
    expected = theirs.run(None, case.inputs)
    got = ours.run(None, case.inputs)
    assert len(got) == len(expected)
    for mine, other in zip(got, expected):
        assert np.isfinite(other).all()
        close(mine, other, case.tolerance)
