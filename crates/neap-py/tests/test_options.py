"""Options: what is misspelt is an error, and bounds for sizes that only the data say come from anywhere."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import neaptide as ort
from neaptide.capi.onnxruntime_pybind11_state import InvalidArgument

from .conftest import rows, save, tensor


def test_an_unknown_attribute_of_options_is_an_error():
    for options, name in ((ort.SessionOptions(), "memory_buget"), (ort.RunOptions(), "terminat")):
        with pytest.raises(AttributeError, match=name):
            setattr(options, name, "1MiB")
    options = ort.SessionOptions()
    options.memory_budget = "8MiB"
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    ort.RunOptions().terminate = True


def test_numbers_are_asked_for_when_they_are_set():
    options = ort.SessionOptions()
    with pytest.raises(TypeError, match="intra_op_num_threads: expected a whole number, got 'a'"):
        options.intra_op_num_threads = "a"
    options.intra_op_num_threads = np.int64(1)


@pytest.mark.parametrize("key", ["memory_budget", "neaptide.memory_buget", "ep.neaptideexecutionprovider.treads"])
def test_an_entry_that_would_do_nothing_is_an_error(key):
    with pytest.raises(InvalidArgument, match=key):
        ort.SessionOptions().add_session_config_entry(key, "1MiB")
    with pytest.raises(InvalidArgument, match=key):
        ort.RunOptions().add_run_config_entry(key, "1MiB")


def test_an_unknown_option_of_the_provider_is_an_error(mlp):
    with pytest.raises(InvalidArgument, match="no option 'memory_buget'"):
        ort.InferenceSession(mlp, providers=[("NeaptideExecutionProvider", {"memory_buget": "1MiB"})])
    # Options of onnxruntime's own provider are taken, and without effect.
    ort.InferenceSession(mlp, providers=[("CPUExecutionProvider", {"use_arena": "1"})])


def test_entries_and_added_providers_say_what_a_providers_options_say(mlp):
    def budget(options):
        session = ort.InferenceSession(mlp, options)
        session.run(None, {"x": rows(1)})
        return session.memory()["budget_bytes"]

    for prefix in ("neaptide.", "ep.neaptideexecutionprovider."):
        options = ort.SessionOptions()
        options.add_session_config_entry(f"{prefix}memory_budget", "7MiB")
        options.add_session_config_entry(f"{prefix}threads", "1")
        options.add_session_config_entry("session.use_env_allocators", "1")
        assert budget(options) == 7 << 20
    options = ort.SessionOptions()
    options.add_provider("NeaptideExecutionProvider", {"memory_budget": "8MiB"})
    assert options.has_providers() and budget(options) == 8 << 20
    options = ort.SessionOptions()
    options.add_provider_for_devices(ort.get_ep_devices(), {"memory_budget": "9MiB"})
    assert budget(options) == 9 << 20


@pytest.fixture
def frames(tmp_path):
    """As many frames as the rounded sum of more floats says than are looked at beforehand."""
    return save(
        tmp_path,
        "frames",
        [
            helper.make_node("ReduceSum", ["style"], ["sum"], keepdims=1),
            helper.make_node("Cast", ["sum"], ["count"], to=TensorProto.INT64),
            helper.make_node("Reshape", ["count", "one"], ["shape"]),
            helper.make_node("ConstantOfShape", ["shape"], ["frames"]),
            helper.make_node("Add", ["frames", "half"], ["y"]),
        ],
        [tensor("style", TensorProto.FLOAT, [32768])],
        [tensor("y", TensorProto.FLOAT, ["frames"])],
        [("one", np.array([1], np.int64)), ("half", np.array(0.5, np.float32))],
    )


def test_bounds_for_sizes_that_only_the_data_say(frames, mlp, monkeypatch):
    feed = {"style": np.full(32768, 2**-12, np.float32)}

    def count(options=None, **arguments):
        return ort.InferenceSession(frames, options, **arguments).run(None, feed)[0].tolist()

    with pytest.raises(Exception, match=r"SessionOptions\(bounds=\{'frames': N\}\), or NEAPTIDE_BOUNDS=frames=N"):
        count()
    expected = [0.5] * 8
    assert count(ort.SessionOptions(bounds={"frames": 500})) == expected
    assert count(ort.SessionOptions(bounds="frames=500")) == expected
    provider = ("NeaptideExecutionProvider", {"bounds": {"frames": 500}})
    assert count(providers=[provider]) == expected
    options = ort.SessionOptions()
    options.add_session_config_entry("neaptide.bounds", "frames=500")
    assert count(options) == expected
    # Those of the environment are for all models of the process.
    monkeypatch.setenv("NEAPTIDE_BOUNDS", "frames=500,boxes=9")
    assert count() == expected
    ort.InferenceSession(mlp).run(None, {"x": rows(1)})
    with pytest.raises(Exception, match="'boxes'"):
        count(ort.SessionOptions(bounds={"frames": 500, "boxes": 9}))
    for wrong in ({"frames": "x"}, "frames", {"frames": -1}, 5):
        with pytest.raises(InvalidArgument, match="bounds"):
            count(ort.SessionOptions(bounds=wrong))


def test_none_is_no_tensor(mlp):
    with pytest.raises(InvalidArgument, match="input 'x': None is no tensor"):
        ort.InferenceSession(mlp).run(None, {"x": None})


def test_memory_is_the_engines_with_and_without_a_budget(mlp):
    def planned(budget):
        session = ort.InferenceSession(mlp, ort.SessionOptions(memory_budget=budget))
        session.run(None, {"x": rows(1)})
        return session.memory()["total_bytes"]

    assert planned(None) < 1.5 * planned("100%")
