"""Training from Python: arrays, batches, what is asked and what comes out."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import neaptide as ort
from neaptide.capi.onnxruntime_pybind11_state import InvalidArgument

from .conftest import save, tensor, weights


@pytest.fixture
def classifier(tmp_path):
    """Three classes of points, by two layers; the batch is open."""
    return save(
        tmp_path,
        "classifier",
        [
            helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
        ],
        [tensor("x", TensorProto.FLOAT, ["batch", 2])],
        [tensor("y", TensorProto.FLOAT, ["batch", 3])],
        [
            ("w1", weights(2, 16, scale=0.5)),
            ("b1", np.zeros(16, np.float32)),
            ("w2", weights(16, 3, seed=1, scale=0.5)),
            ("b2", np.zeros(3, np.float32)),
        ],
    )


def points(count, seed=0):
    random = np.random.default_rng(seed)
    y = random.integers(0, 3, count)
    centres = np.array([[2, 0], [-2, 0], [0, 3]])
    return (centres[y] + random.normal(0, 0.5, (count, 2))).astype(np.float32), y


class Loader:
    """As torch's: tensors that are no arrays of numpy, whenever it is gone through."""

    class Tensor:
        def __init__(self, array):
            self.array = array

        def detach(self):
            return self

        def cpu(self):
            return self.array

    def __init__(self, x, y, size):
        self.batches = [(x[i : i + size], y[i : i + size]) for i in range(0, len(y), size)]

    def __iter__(self):
        return iter([[self.Tensor(x), self.Tensor(y)] for x, y in self.batches])


def test_arrays_are_learned_within_a_budget_and_written(classifier, tmp_path):
    x, y = points(200)
    told = []
    trainer = ort.Trainer(classifier, memory_budget="8MiB", optimizer="sgd", lr=0.1)
    history = trainer.fit(x, y, epochs=8, batch_size=32, validation=points(64, seed=1), progress=told.append)
    assert [figures["epoch"] for figures in history] == list(range(1, 9))
    assert history[-1]["loss"] < 0.3 * history[0]["loss"] and history[0]["skipped"] == 8
    assert history[-1]["validation_accuracy"] > 0.95
    assert trainer.steps == 8 * 6 == sum("loss" in event and "skipped" not in event for event in told)
    assert told[-1] == history[-1]
    assert 0 < trainer.memory()["planned_bytes"] <= 8 << 20
    path = tmp_path / "trained.onnx"
    trainer.save(path)
    x, y = points(64, seed=1)
    for engine in (ort, onnxruntime):
        session = engine.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (scores,) = session.run(None, {"x": x})
        assert (scores.argmax(1) == y).mean() == history[-1]["validation_accuracy"]


def test_batches_of_a_loader_are_learned_as_arrays_are(classifier):
    x, y = points(96)
    by_arrays = ort.Trainer(classifier, optimizer="adamw", lr=0.01)
    arrays = by_arrays.fit(x, y, epochs=2, batch_size=32, shuffle=False)
    by_loader = ort.Trainer(classifier, optimizer="adamw", lr=0.01)
    assert by_loader.fit(Loader(x, y, 32), epochs=2) == arrays
    assert by_loader.evaluate(Loader(x, y, 10)) == pytest.approx(by_arrays.evaluate(x, y))


def test_a_step_is_that_of_plain_gradient_descent(tmp_path):
    path = save(
        tmp_path,
        "line",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", TensorProto.FLOAT, ["batch", 3])],
        [tensor("y", TensorProto.FLOAT, ["batch", 1])],
        [("w", np.array([[1], [2], [3]], np.float32))],
    )
    x = weights(4, 3, scale=1.0)
    y = weights(4, 1, seed=1, scale=1.0)
    w = np.array([[1], [2], [3]], np.float64)
    trainer = ort.Trainer(path, optimizer="sgd", momentum=0.0, loss="mean-square", lr=0.1)
    (figures,) = trainer.fit([(x, y)])
    assert figures["loss"] == pytest.approx(((x @ w - y) ** 2).mean(), rel=1e-5)
    trainer.save(tmp_path / "after.onnx")
    after = w - 0.1 * 2 * x.T @ (x @ w - y) / 4
    (found,) = ort.InferenceSession(str(tmp_path / "after.onnx")).run(None, {"x": np.eye(3, dtype=np.float32)})
    np.testing.assert_allclose(found, after, rtol=1e-5)


def test_frozen_parameters_stay(classifier, tmp_path):
    import onnx
    from onnx import numpy_helper

    trainer = ort.Trainer(classifier, freeze=["*1"], lr=0.1)
    trainer.fit(*points(64))
    trainer.save(tmp_path / "after.onnx")
    before, after = (
        {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}
        for path in (classifier, tmp_path / "after.onnx")
    )
    assert [name for name in before if not np.array_equal(before[name], after[name])] == ["w2", "b2"]


def test_what_cannot_be_trained_so_is_told(classifier, tmp_path):
    x, y = points(64)
    for arguments, word in (
        ({"optimizer": "adam"}, "adamw"),
        ({"loss": "hinge"}, "cross-entropy"),
        ({"batch_norm": "none"}, "given"),
        ({"threads": -1}, "threads"),
    ):
        with pytest.raises(InvalidArgument, match=word):
            ort.Trainer(classifier, **arguments)
    trainer = ort.Trainer(classifier)
    with pytest.raises(InvalidArgument, match="call fit first"):
        trainer.save(tmp_path / "nothing.onnx")
    for data, word in (
        (5, "arrays"),
        ((x, y[:5]), "5 targets"),
        ([x], "batches"),
        ([], "no batch"),
        ((x, y + 3), "classes 0 to 2"),
        ((x[:, :1], y), "'x'"),
    ):
        with pytest.raises(Exception, match=word):
            trainer.fit(data)
    with pytest.raises(InvalidArgument, match="iterator"):
        trainer.fit(iter([(x, y)]), epochs=2)
    with pytest.raises(ort.BudgetError, match="smallest feasible budget"):
        ort.Trainer(classifier, memory_budget="1KiB").fit(x, y)
    with pytest.raises(InvalidArgument, match="names no parameter"):
        ort.Trainer(classifier, freeze="no*").fit(x, y)
    trainer.fit(x, y)
    with pytest.raises(InvalidArgument, match="another name"):
        trainer.save(classifier)
