"""The execution provider in the onnxruntime of PyPI. `cargo xtask test --part python` builds it, and says where it is."""

import importlib.util
import os
import pathlib

import numpy as np
import pytest
from onnx import TensorProto, helper

onnxruntime = pytest.importorskip("onnxruntime")

ROOT = pathlib.Path(__file__).resolve().parents[3]
TRAINED = ROOT.parent / "shared" / "models"
LIBRARY = os.environ.get("NEAPTIDE_EP")
NAME = "NeaptideExecutionProvider"

pytestmark = pytest.mark.skipif(not LIBRARY, reason="NEAPTIDE_EP does not say where the library is")

# What measures it for docs/plugin.md.
spec = importlib.util.spec_from_file_location("plugin_memory", ROOT / "scripts" / "plugin_memory.py")
plugin_memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin_memory)


@pytest.fixture(scope="module")
def devices():
    onnxruntime.register_execution_provider_library("neaptide", LIBRARY)
    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]
    assert len(found) == 1 and found[0].ep_vendor == "Neaptide"
    yield found
    onnxruntime.unregister_execution_provider_library("neaptide")


@pytest.fixture
def session(devices, tmp_path):
    """Opens a model with the provider."""

    def open_model(path, **options):
        made = onnxruntime.SessionOptions()
        made.add_provider_for_devices(devices, {"cache_dir": str(tmp_path / "cache"), **options})
        return onnxruntime.InferenceSession(str(path), made)

    return open_model


def trained(name):
    path = TRAINED / f"{name}.onnx"
    if not path.exists():
        if os.environ.get("NEAP_REQUIRE_ALL", "0") not in ("", "0"):
            pytest.fail(f"{path} is not there")
        pytest.skip("no trained models")
    return path


def inputs_of(name):
    if name == "minilm_l6_v2":
        return dict(np.load(TRAINED / f"{name}.sentence0.in.npz"))
    image = {"FastestDet": "people"}.get(name, "chelsea")
    return {None: np.load(TRAINED / f"{name}.{image}.in.npy")}


BUDGETS = {"mobilenet_v2_imagenet": "6MiB", "efficientnet_lite0": "8MiB", "FastestDet": "6MiB", "minilm_l6_v2": "24MiB"}


@pytest.mark.parametrize("name", BUDGETS)
def test_trained_models_run_within_a_budget(session, name):
    path, feed = trained(name), inputs_of(name)
    ours = session(path, memory_budget=BUDGETS[name])
    assert NAME in ours.get_providers()
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    if None in feed:
        feed = {theirs.get_inputs()[0].name: feed[None]}
    for _ in range(2):
        for mine, other in zip(ours.run(None, feed), theirs.run(None, feed), strict=True):
            assert mine.dtype == other.dtype and mine.shape == other.shape
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(other).max()))


def test_a_budget_that_is_too_small_is_an_error(session):
    with pytest.raises(Exception, match="neaptide: .*try a budget of|neaptide: .*smallest"):
        session(trained("mobilenet_v2_imagenet"), memory_budget="100K")
    with pytest.raises(Exception, match="neaptide: memory_budget"):
        session(trained("mobilenet_v2_imagenet"), memory_budget="much")
    with pytest.raises(Exception, match="neaptide: there is no option 'memory_buget'.*memory_budget"):
        session(trained("mobilenet_v2_imagenet"), memory_buget="64MiB")


def save(folder, nodes, inputs, outputs):
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(*i) for i in inputs], [helper.make_tensor_value_info(*o) for o in outputs]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_open_dimensions_and_types(session, tmp_path):
    nodes = [helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=TensorProto.INT64)]
    path = save(
        tmp_path, nodes, [("a", 1, ["n", 2]), ("b", 1, ["n", 2])], [("s", 1, ["n", 2]), ("y", TensorProto.INT64, ["n", 2])]
    )
    opened = session(path)
    for rows in (1, 4, 0):
        a, b = np.full((rows, 2), 1.5, np.float32), np.full((rows, 2), 2.0, np.float32)
        total, whole = opened.run(None, {"a": a, "b": b})
        assert total.shape == whole.shape == (rows, 2)
        assert (total == 3.5).all() and (whole == 3).all() and whole.dtype == np.int64


def test_what_the_engine_does_not_run_is_left_to_onnxruntime(session, tmp_path):
    text = TensorProto.STRING
    path = save(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], [("x", text, [1])], [("y", text, [1])])
    (y,) = session(path).run(None, {"x": np.array(["a"], object)})
    assert y.tolist() == ["a"]


def can_limit():
    groups, _ = plugin_memory.place_of_groups()
    return os.access(groups, os.W_OK)


@pytest.mark.parametrize("name", BUDGETS)
def test_a_hard_limit_of_the_budget_beside_the_host_program_holds(name, tmp_path, monkeypatch):
    if not can_limit():
        if os.environ.get("NEAP_REQUIRE_ALL", "0") not in ("", "0"):
            pytest.fail("no right to make memory cgroups")
        pytest.skip("no right to make memory cgroups")
    monkeypatch.setenv("NEAPTIDE_CACHE_DIR", str(tmp_path / "cache"))
    model = plugin_memory.with_external_weights(str(trained(name)), str(tmp_path))
    expected, given = str(tmp_path / "expected.npz"), str(tmp_path / "given.npz")
    budget = BUDGETS[name]
    # What the host takes depends on its libraries and on the processor: it is measured here, not assumed.
    host_mib = float(plugin_memory.run(LIBRARY, model, "", expected).split("|")[0])
    assert plugin_memory.run(LIBRARY, model, budget, given)
    os.remove(given)
    limit_mib = round(host_mib) + int(budget.removesuffix("MiB"))
    assert plugin_memory.run(LIBRARY, model, budget, given, limit_mib)
    assert plugin_memory.are_close(given, expected)
