"""Sessions beside onnxruntime's: what they declare, take and give."""

import os
import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import neaptide as ort

from .conftest import both, close, rows, save, tensor


def test_outputs_are_those_of_onnxruntime(mlp):
    ours, theirs = both(mlp)
    x = rows(3)
    for names in (None, [], ["mean"], ["mean", "y"]):
        got, expected = ours.run(names, {"x": x}), theirs.run(names, {"x": x})
        assert len(got) == len(expected)
        for ours_one, theirs_one in zip(got, expected):
            close(ours_one, theirs_one)


def test_every_run_may_have_another_shape(mlp):
    ours, theirs = both(mlp, memory_budget="10MiB")
    for count in (1, 7, 1, 32, 2, 7):
        x = rows(count, seed=count)
        for got, expected in zip(ours.run(None, {"x": x}), theirs.run(None, {"x": x})):
            close(got, expected)


def test_weights_are_packed_once(mlp, tmp_path):
    first = ort.InferenceSession(mlp)
    first.run(None, {"x": rows(1)})
    (packed,) = (tmp_path / "cache").glob("*.neap")
    before = packed.stat()
    for count in (2, 5, 40):
        first.run(None, {"x": rows(count)})
    ort.InferenceSession(mlp, ort.SessionOptions(memory_budget="6MiB")).run(None, {"x": rows(3)})
    (again,) = (tmp_path / "cache").glob("*.neap")
    after = again.stat()
    assert (again, after.st_ino, after.st_mtime_ns) == (packed, before.st_ino, before.st_mtime_ns)


def test_declarations_are_those_of_onnxruntime(mlp):
    ours, theirs = both(mlp)
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, a.shape) for a in other]
    mine, other = ours.get_modelmeta(), theirs.get_modelmeta()
    for field in ("producer_name", "graph_name", "domain", "description", "graph_description", "version"):
        assert getattr(mine, field) == getattr(other, field), field
    assert mine.custom_metadata_map == other.custom_metadata_map
    assert ours.get_overridable_initializers() == []


def test_metadata_of_the_model(tmp_path, identity):
    model = onnx.load(identity)
    helper.set_model_props(model, {"labels": "cat\ndog", "leer": "", "schlüssel": "wört"})
    path = tmp_path / "with_metadata.onnx"
    onnx.save(model, path)
    ours, theirs = both(str(path))
    expected = theirs.get_modelmeta().custom_metadata_map
    assert ours.get_modelmeta().custom_metadata_map == expected == {"labels": "cat\ndog", "leer": "", "schlüssel": "wört"}


TYPES = ["float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_goes_in_and_out(tmp_path, dtype):
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    path = save(
        tmp_path,
        "concat",
        [node],
        [tensor("a", number, ["n", 3]), tensor("b", number, ["m", 3])],
        [tensor("y", number, ["k", 3])],
    )
    a = np.arange(-3, 3).reshape(2, 3).astype(dtype)
    b = np.arange(9).reshape(3, 3).astype(dtype)
    ours, theirs = both(path)
    (got,), (expected,) = (session.run(None, {"a": a, "b": b}) for session in (ours, theirs))
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    assert [a.type for a in ours.get_inputs()] == [a.type for a in theirs.get_inputs()]


def test_half_floats_are_rounded_as_they_are(tmp_path):
    path = save(
        tmp_path,
        "half",
        [helper.make_node("Mul", ["x", "x"], ["y"])],
        [tensor("x", TensorProto.FLOAT16, ["n"])],
        [tensor("y", TensorProto.FLOAT16, ["n"])],
    )
    x = np.array([1 / 3, 1e-4, 300.0, -0.0, np.inf, 2.0**-12], np.float16)
    ours, theirs = both(path)
    (got,), (expected,) = (session.run(None, {"x": x}) for session in (ours, theirs))
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, expected)


def test_arrays_of_every_form(mlp):
    ours, theirs = both(mlp)
    base = rows(6)
    forms = {
        "fortran": np.asfortranarray(base),
        "strided": base[::2],
        "backwards": base[::-1],
        "other byte order": base.astype(">f4"),
        "view": np.ascontiguousarray(base)[1:4],
        "read-only": np.frombuffer(base.tobytes(), np.float32).reshape(base.shape),
    }
    for form, x in forms.items():
        expected = theirs.run(["y"], {"x": np.ascontiguousarray(x, np.float32)})[0]
        close(ours.run(["y"], {"x": x})[0], expected)


def test_scalars_and_empty_tensors(tmp_path):
    path = save(
        tmp_path,
        "scalar",
        [helper.make_node("Mul", ["x", "s"], ["y"])],
        [tensor("x", TensorProto.FLOAT, ["n"]), tensor("s", TensorProto.FLOAT, [])],
        [tensor("y", TensorProto.FLOAT, ["n"])],
    )
    ours, theirs = both(path)
    for count in (3, 0, 1):
        feed = {"x": np.arange(count, dtype=np.float32), "s": np.float32(2.5)}
        theirs_feed = dict(feed, s=np.array(2.5, np.float32))
        np.testing.assert_array_equal(ours.run(None, feed)[0], theirs.run(None, theirs_feed)[0])


def test_values_that_decide_shapes(tmp_path):
    path = save(
        tmp_path,
        "reshape",
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [tensor("x", TensorProto.FLOAT, ["n"]), tensor("shape", TensorProto.INT64, [2])],
        [tensor("y", TensorProto.FLOAT, None)],
    )
    ours, theirs = both(path)
    x = np.arange(12, dtype=np.float32)
    for shape in ([3, 4], [2, 6], [3, 4], [-1, 1]):
        feed = {"x": x, "shape": np.array(shape, np.int64)}
        np.testing.assert_array_equal(ours.run(None, feed)[0], theirs.run(None, feed)[0])


def test_bytes_paths_and_external_data(tmp_path, mlp):
    x = rows(2)
    expected = ort.InferenceSession(mlp).run(None, {"x": x})
    data = pathlib.Path(mlp).read_bytes()
    for model in (data, bytearray(data), pathlib.Path(mlp)):
        got = ort.InferenceSession(model).run(None, {"x": x})
        np.testing.assert_array_equal(got[0], expected[0])
    assert len(list(pathlib.Path(os.environ["NEAPTIDE_CACHE_DIR"]).glob("bytes-*.onnx"))) == 1

    folder = tmp_path / "external"
    folder.mkdir()
    external = str(folder / "model.onnx")
    onnx.save(onnx.load(mlp), external, save_as_external_data=True, location="weights.bin")
    got = ort.InferenceSession(external).run(None, {"x": x})
    np.testing.assert_array_equal(got[0], expected[0])


def test_a_packed_model(tmp_path, mlp):
    cache = tmp_path / "cache"
    x = rows(2)
    expected = ort.InferenceSession(mlp).run(None, {"x": x})
    (packed,) = cache.glob("*.neap")
    session = ort.InferenceSession(str(packed))
    assert session.get_inputs()[0].name == "x"
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected[0])
    assert session.get_inputs()[0].shape == ["rows", 1024]
    assert session.run(["y"], {"x": x[:1]})[0].shape == (1, 1024)


def test_open_dimensions_can_be_given_beforehand(mlp):
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("rows", 5)
    session = ort.InferenceSession(mlp, options)
    # It was planned when it was opened.
    assert session.memory()["total_bytes"] > 8 << 20
    assert session.run(["y"], {"x": rows(5)})[0].shape == (5, 1024)


def test_threads(mlp):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    x = rows(4)
    (got,) = ort.InferenceSession(mlp, options).run(["y"], {"x": x})
    np.testing.assert_array_equal(got, ort.InferenceSession(mlp).run(["y"], {"x": x})[0])


def test_providers(mlp):
    session = ort.InferenceSession(mlp, providers=["CPUExecutionProvider"])
    assert session.get_providers() == ort.get_available_providers()
    assert ort.get_device() == "CPU"
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        ort.InferenceSession(mlp, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])


CASES = {
    "mobilenet_v2_imagenet": ["chelsea", "coffee", "rocket"],
    "efficientnet_lite0": ["chelsea", "coffee", "rocket"],
    "FastestDet": ["people"],
}


@pytest.mark.parametrize("model", CASES)
def test_trained_models_give_what_they_gave_their_makers(trained, model):
    path = str(trained / f"{model}.onnx")
    ours, theirs = both(path, memory_budget="60%")
    name = ours.get_inputs()[0].name
    for sample in CASES[model]:
        x = np.load(trained / f"{model}.{sample}.in.npy")
        got, expected = ours.run(None, {name: x}), theirs.run(None, {name: x})
        for ours_one, theirs_one in zip(got, expected):
            close(ours_one, theirs_one, 1e-4)
        close(got[0], np.load(trained / f"{model}.{sample}.out.npy"), 1e-4)
    assert ours.memory()["total_bytes"] <= ours.memory()["budget_bytes"]


def test_sentences(trained):
    ours, theirs = both(str(trained / "minilm_l6_v2.onnx"), memory_budget="40MiB")
    for sample in range(3):
        feed = dict(np.load(trained / f"minilm_l6_v2.sentence{sample}.in.npz"))
        for got, expected in zip(ours.run(None, feed), theirs.run(None, feed)):
            close(got, expected, 1e-4)


def test_branches_and_loops_that_the_data_decide(tmp_path):
    def graph(name, nodes, inputs, outputs):
        values = [tensor(n, kind, shape) for n, kind, shape in inputs], [tensor(n, kind, shape) for n, kind, shape in outputs]
        return helper.make_graph(nodes, name, *values)

    f, i, b = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    # Three products where the sum of x is positive, else the positive rows of x, twice.
    then = graph("then", [helper.make_node("MatMul", ["x", "w"], ["a"])], [], [("a", f, ["n", 64])])
    otherwise = graph(
        "else",
        [
            helper.make_node("ReduceMax", ["x"], ["largest"], axes=[1], keepdims=0),
            helper.make_node("Greater", ["largest", "zero"], ["keeps"]),
            helper.make_node("Compress", ["x", "keeps"], ["kept"], axis=0),
            helper.make_node("SequenceConstruct", ["kept", "kept"], ["pair"]),
            helper.make_node("ConcatFromSequence", ["pair"], ["b"], axis=0),
        ],
        [],
        [("b", f, ["n", 64])],
    )
    # Halved until the sum of squares is at most 1, eight times at most.
    body = graph(
        "body",
        [
            helper.make_node("Mul", ["y", "half"], ["next"]),
            helper.make_node("ReduceSumSquare", ["next"], ["left"], keepdims=0),
            helper.make_node("Greater", ["left", "one"], ["again"]),
            helper.make_node("Identity", ["left"], ["seen"]),
        ],
        [("pass", i, []), ("on", b, []), ("y", f, [5, 64])],
        [("again", b, []), ("next", f, [5, 64]), ("seen", f, [])],
    )
    path = save(
        tmp_path,
        "decided",
        [
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Greater", ["sum", "zero"], ["positive"]),
            helper.make_node("If", ["positive"], ["chosen"], then_branch=then, else_branch=otherwise),
            helper.make_node("Loop", ["most", "positive", "x"], ["halved", "sums"], body=body),
        ],
        [tensor("x", f, [5, 64])],
        [tensor("chosen", f, ["n", 64]), tensor("halved", f, [5, 64]), tensor("sums", f, ["passes"])],
        [
            ("w", np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)),
            ("zero", np.array(0, np.float32)),
            ("half", np.array(0.5, np.float32)),
            ("one", np.array(1, np.float32)),
            ("most", np.array(8, np.int64)),
        ],
        opset=12,
    )
    ours, theirs = both(path)
    counts = set()
    for shift, scale in ((1, 1), (-1, 1), (0.1, 0.01), (-0.1, 2), (3, 1000)):
        x = (np.random.default_rng(7).standard_normal((5, 64)) * scale + shift).astype(np.float32)
        got, expected = ours.run(None, {"x": x}), theirs.run(None, {"x": x})
        for ours_one, theirs_one in zip(got, expected):
            close(ours_one, theirs_one)
        counts.add((got[0].shape[0], got[2].shape[0]))
    assert len(counts) > 2


def test_weights_are_packed_in_fewer_bits(mlp, tmp_path):
    x = rows(3)
    exact, theirs = both(mlp)
    expected = theirs.run(["y"], {"x": x})[0]
    close(exact.run(["y"], {"x": x})[0], expected)
    sizes = {None: packed_bytes(tmp_path)}
    for weights, tolerance in (("f16", 1e-3), ("int8", 2e-2), ("int4", 2e-1)):
        known = set((tmp_path / "cache").iterdir())
        session = ort.InferenceSession(mlp, ort.SessionOptions(weights=weights))
        got = session.run(["y"], {"x": x})[0]
        close(got, expected, tolerance)
        assert not np.array_equal(got, exact.run(["y"], {"x": x})[0])
        sizes[weights] = packed_bytes(tmp_path, known)
    assert sizes[None] > 1.9 * sizes["f16"]
    assert sizes["f16"] > 1.8 * sizes["int8"]
    assert sizes["int8"] > 1.2 * sizes["int4"]
    # The exact form is still there, and still exact.
    again = ort.InferenceSession(mlp, ort.SessionOptions(weights="exact"))
    assert np.array_equal(again.run(["y"], {"x": x})[0], exact.run(["y"], {"x": x})[0])
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="'int7' is no form of weights"):
        ort.InferenceSession(mlp, ort.SessionOptions(weights="int7"))
    packed = next(path for path in (tmp_path / "cache").iterdir() if path.suffix == ".neap")
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match="packed already"):
        ort.InferenceSession(str(packed), ort.SessionOptions(weights="int8"))


def packed_bytes(folder, known=()):
    """Of the packed models in the cache that were not there before."""
    new = [path for path in (folder / "cache").iterdir() if path not in known and path.suffix == ".neap"]
    return sum(path.stat().st_size for path in new)
