"""Errors have the classes that onnxruntime's have, and say what is wrong."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as theirs

import neaptide as ort
from neaptide.capi import onnxruntime_pybind11_state as ours

from .conftest import rows, save, tensor


def same_class(make):
    """Both engines refuse, by exceptions of the same name. Gives the text of ours."""
    with pytest.raises(Exception) as mine:
        make(ort)
    with pytest.raises(Exception) as other:
        make(onnxruntime)
    assert type(mine.value).__name__ == type(other.value).__name__, (mine.value, other.value)
    return str(mine.value)


def test_there_is_every_class_of_onnxruntime():
    names = [n for n, c in vars(theirs).items() if isinstance(c, type) and issubclass(c, Exception)]
    assert "InvalidArgument" in names
    for name in names:
        assert issubclass(getattr(ours, name), Exception), name


def test_what_is_no_model(tmp_path):
    same_class(lambda ort: ort.InferenceSession(str(tmp_path / "missing.onnx")))
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"\xff" * 200)
    text = same_class(lambda ort: ort.InferenceSession(str(junk)))
    assert "junk.onnx" in text


def test_a_list_that_is_no_array(mlp):
    with pytest.raises(ours.InvalidArgument, match="input 'x': "):
        ort.InferenceSession(mlp).run(None, {"x": [[1.0, 2.0], [3.0]]})


def test_feeds_that_do_not_fit(mlp):
    x = rows(2)
    feeds = [
        {},
        {"z": x},
        {"x": x, "z": x},
        {"x": x.astype(np.float64)},
        {"x": x[0]},
        {"x": x[:, :5]},
    ]
    for feed in feeds:
        same_class(lambda ort: ort.InferenceSession(mlp).run(None, feed))
    same_class(lambda ort: ort.InferenceSession(mlp).run(["no such output"], {"x": x}))


def test_a_session_goes_on_after_an_error(mlp):
    session = ort.InferenceSession(mlp)
    x = rows(2)
    expected = session.run(None, {"x": x})
    for feed in ({"x": x[:, :5]}, {"x": x.astype(np.int8)}, {}):
        with pytest.raises((ours.InvalidArgument, ValueError)):
            session.run(None, feed)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected[0])


def test_an_operator_that_does_not_exist(tmp_path):
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.example")
    graph = helper.make_graph([node], "g", [tensor("x", 1, [2])], [tensor("y", 1, [2])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    path = tmp_path / "unknown.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    with pytest.raises(ours.NotImplemented, match="Frobnicate"):
        ort.InferenceSession(str(path))


def test_sizes_that_are_known_only_while_it_runs(tmp_path):
    path = save(
        tmp_path,
        "nonzero",
        [helper.make_node("NonZero", ["x"], ["y"])],
        [tensor("x", TensorProto.FLOAT, ["n"])],
        [tensor("y", TensorProto.INT64, [1, "found"])],
    )
    session, reference = ort.InferenceSession(path), onnxruntime.InferenceSession(path)
    # The value of a small input may decide: the model is opened anew for each value.
    for x in ([0, 1, 0, 2], [3, 0, 0, 0], [0, 0, 0, 0]):
        feed = {"x": np.array(x, np.float32)}
        np.testing.assert_array_equal(session.run(None, feed)[0], reference.run(None, feed)[0])
    # One that is too large for that is planned for the most that there can be.
    for every in (1, 3, 7):
        feed = {"x": (np.arange(100_000) % every == 0).astype(np.float32)}
        np.testing.assert_array_equal(session.run(None, feed)[0], reference.run(None, feed)[0])


def test_a_budget_that_cannot_be_met(mlp):
    options = ort.SessionOptions(memory_budget=100_000)
    session = ort.InferenceSession(mlp, options)
    with pytest.raises(ort.BudgetError, match="smallest feasible budget") as caught:
        session.run(None, {"x": rows(1)})
    smallest = caught.value.smallest_bytes
    assert caught.value.budget_bytes == 100_000 < smallest
    session.set_memory_budget(smallest)
    assert session.run(["y"], {"x": rows(1)})[0].shape == (1, 1024)
    assert session.memory()["total_bytes"] <= smallest


def test_budgets_as_people_write_them(mlp, monkeypatch):
    for bad in ("64Q", "0%", "-5", 1.5, True):
        with pytest.raises(ours.InvalidArgument):
            ort.InferenceSession(mlp, ort.SessionOptions(memory_budget=bad))
    x = rows(1)

    def budget(session):
        session.run(None, {"x": x})
        return session.memory()["budget_bytes"]

    assert budget(ort.InferenceSession(mlp)) is None
    assert budget(ort.InferenceSession(mlp, ort.SessionOptions(memory_budget="7MiB"))) == 7 << 20
    provider = ("NeaptideExecutionProvider", {"memory_budget": "8MiB"})
    assert budget(ort.InferenceSession(mlp, providers=[provider])) == 8 << 20
    assert budget(ort.InferenceSession(mlp, None, ["CPUExecutionProvider"], [{"memory_budget": "8M"}])) == 8 << 20
    monkeypatch.setenv("NEAPTIDE_MEMORY_BUDGET", "50%")
    whole = ort.InferenceSession(mlp, ort.SessionOptions(memory_budget="100%"))
    half = ort.InferenceSession(mlp)
    assert abs(budget(half) * 2 - budget(whole)) <= 2
    assert budget(ort.InferenceSession(mlp, ort.SessionOptions(memory_budget="none"))) is None
    # The session's own option comes first, then the provider's.
    first = ort.SessionOptions(memory_budget="9MiB")
    assert budget(ort.InferenceSession(mlp, first, providers=[provider])) == 9 << 20
    assert budget(ort.InferenceSession(mlp, providers=[provider])) == 8 << 20
