"""What the tests share: models made with onnx, and sessions of both engines over them.

Models of ``../shared/models`` are used where they are; with ``NEAP_REQUIRE_ALL=1`` they must be.
"""

import os
import pathlib
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import neaptide

ROOT = pathlib.Path(__file__).resolve().parents[3]
TRAINED = ROOT.parent / "shared" / "models"
# How this repository asks onnxruntime for values.
sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture(autouse=True)
def own_environment(monkeypatch, tmp_path):
    """No test sees the user's cache or budget."""
    monkeypatch.delenv("NEAPTIDE_MEMORY_BUDGET", raising=False)
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def trained():
    """The folder of trained models."""
    if not TRAINED.is_dir():
        if os.environ.get("NEAP_REQUIRE_ALL", "0") not in ("", "0"):
            pytest.fail(f"{TRAINED} is not there")
        pytest.skip("no trained models")
    return TRAINED


def tensor(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def save(folder, name, nodes, inputs, outputs, constants=(), opset=17, **about):
    """Writes a model and gives its path."""
    constants = [numpy_helper.from_array(value, name) for name, value in constants]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants, doc_string="of the graph")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **about)
    model.ir_version = 8
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return str(path)


def weights(*shape, seed=0, scale=0.05):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@pytest.fixture
def mlp(tmp_path):
    """Two layers of 4 MB each over rows of 1,024; the number of rows is open."""
    return save(
        tmp_path,
        "mlp",
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["y"]),
            helper.make_node("ReduceMean", ["y"], ["mean"], axes=[1], keepdims=0),
        ],
        [tensor("x", TensorProto.FLOAT, ["rows", 1024])],
        [tensor("y", TensorProto.FLOAT, ["rows", 1024]), tensor("mean", TensorProto.FLOAT, ["rows"])],
        [("w1", weights(1024, 1024)), ("w2", weights(1024, 1024, seed=1))],
        producer_name="a maker",
        doc_string="of the model",
        domain="org.example",
        model_version=7,
    )


@pytest.fixture
def identity(tmp_path):
    """Gives its four numbers back."""
    node = helper.make_node("Identity", ["x"], ["y"])
    shape = [1, 4]
    return save(tmp_path, "identity", [node], [tensor("x", 1, shape)], [tensor("y", 1, shape)])


def rows(count, seed=5):
    return weights(count, 1024, seed=seed, scale=1.0)


def close(got, expected, tolerance=2e-5):
    """The same values but for rounding, relative to the largest of them."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    if expected.size:
        scale = max(1.0, float(np.abs(expected.astype(np.float64)).max()))
        difference = np.abs(got.astype(np.float64) - expected.astype(np.float64)).max()
        assert difference <= tolerance * scale


def both(path, **options):
    """A session of this engine and one of onnxruntime."""
    import onnxruntime

    ours = neaptide.InferenceSession(path, neaptide.SessionOptions(**options))
    return ours, onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
