"""The backend interface, and the ONNX project's own tests through it."""

import os
import tempfile
import unittest
import warnings

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test import BackendTest

import neaptide
from neaptide import backend

from .conftest import ROOT, close, rows, tensor

#: The lists of 1.16.2 have no version in their names.
VERSION = "" if onnx.__version__ == "1.16.2" else f"-{onnx.__version__}"

#: What the node tests of the conformance workspace hold: tests that pass, and tests whose data contradict the operator's definition.
PASSING = set((ROOT / f"conformance/passing{VERSION}.txt").read_text().split())
CONTRADICTING = {
    line.split(":")[0] for line in (ROOT / f"conformance/contradicting{VERSION}.txt").read_text().splitlines()
}

#: How tests of an operator begin that are among the models, as they take several nodes.
GRADIENT = "test_gradient_"

#: Tests of whole models, as trained ones that would be downloaded.
DOWNLOADED = "OnnxBackendRealModelTest"


class Refused(unittest.SkipTest):
    """The engine does not run the model, and says so before anything is computed."""


class Counted(backend.NeaptideBackend):
    """Tells refusals from failures: to the ONNX project's runner all exceptions are failures."""

    @classmethod
    def is_compatible(cls, model, device="CPU", **kwargs):
        return True

    @classmethod
    def prepare(cls, model, device="CPU", **kwargs):
        try:
            return CountedRep(super().prepare(model, device, intra_op_num_threads=2, **kwargs).session, model.graph)
        except backend.REFUSALS as error:
            raise Refused(str(error)) from None


class CountedRep(backend.NeaptideBackendRep):
    """Takes and gives what the ONNX project's runner has of types that numpy lacks."""

    def __init__(self, session, graph):
        super().__init__(session)
        self.kinds = [[port.type.tensor_type.elem_type for port in ports] for ports in (graph.input, graph.output)]

    def run(self, inputs, **kwargs):
        given = [FROM_RUNNER.get(kind, carried)(value) for kind, value in zip(self.kinds[0], inputs)]
        try:
            outputs = super().run(given, **kwargs)
        except backend.REFUSALS as error:
            raise Refused(str(error)) from None
        return tuple(TO_RUNNER.get(kind, narrowed)(value, kind) for kind, value in zip(self.kinds[1], outputs))


def carrier(dtype):
    """Types of few bits are arrays of another type here, which holds them exactly; ``None`` for the rest."""
    if dtype.name in ("int2", "int4", "uint2", "uint4"):
        return np.dtype(np.uint8 if dtype.name.startswith("u") else np.int8)
    return np.dtype(np.float32) if dtype.name.startswith(("float4", "float8")) else None


def carried(value):
    wanted = carrier(value.dtype) if isinstance(value, np.ndarray) else None
    return value if wanted is None else value.astype(wanted)


def narrowed(value, kind):
    wanted = helper.tensor_dtype_to_np_dtype(kind) if kind else value.dtype
    given = carrier(wanted)
    return value if given is None or value.dtype != given else value.astype(wanted)


FROM_RUNNER, TO_RUNNER = {}, {}
if not VERSION:
    # Bits of bfloat16, and floats for 4-bit integers.
    FROM_RUNNER = {
        TensorProto.BFLOAT16: lambda bits: bits.view(ml_dtypes.bfloat16),
        TensorProto.INT4: lambda value: value.astype(np.int8),
        TensorProto.UINT4: lambda value: value.astype(np.uint8),
    }
    TO_RUNNER = {
        TensorProto.BFLOAT16: lambda value, _: value.view(np.uint16),
        TensorProto.INT4: lambda value, _: value.astype(np.float32),
        TensorProto.UINT4: lambda value, _: value.astype(np.float32),
    }


class Outcomes(unittest.TestResult):
    """Names of tests by what became of them."""

    def __init__(self):
        super().__init__()
        self.passed, self.refused, self.wrong = set(), {}, {}

    def addSuccess(self, test):
        self.passed.add(name_of(test))

    def addSkip(self, test, reason):
        if "doesn't support device" not in reason:
            self.refused[name_of(test)] = reason

    def addFailure(self, test, error):
        self.wrong[name_of(test)] = str(error[1])

    addError = addFailure


def name_of(test):
    return test.id().rsplit(".", 1)[1].removesuffix("_cpu")


def outcomes_of(case):
    outcomes = Outcomes()
    with warnings.catch_warnings():
        # Of numpy, where the tests compare values that are not finite.
        warnings.simplefilter("ignore")
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(outcomes)
    return outcomes


@pytest.fixture(autouse=True)
def quick_cache(monkeypatch):
    """Hundreds of models are packed: in memory that takes half the time, where there is such a folder."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        monkeypatch.setenv("NEAPTIDE_CACHE_DIR", folder)
        yield


@pytest.fixture(scope="module")
def cases():
    return BackendTest(Counted, __name__).test_cases


def test_node_tests_have_the_outcomes_of_the_native_run(cases):
    outcomes = outcomes_of(cases["OnnxBackendNodeModelTest"])
    unknown = {name: why for name, why in outcomes.wrong.items() if name not in CONTRADICTING}
    assert not unknown
    assert outcomes.passed == {name for name in PASSING if not name.startswith(GRADIENT)}
    assert set(outcomes.wrong) == CONTRADICTING
    assert all(outcomes.refused.values())


def test_other_tests_pass_or_are_refused(cases):
    names = [name for name in cases if name != DOWNLOADED and "Node" not in name]
    assert len(names) == 3
    all_of_them = [outcomes_of(cases[name]) for name in names]
    assert not {name: why for outcomes in all_of_them for name, why in outcomes.wrong.items()}
    passed = set().union(*(outcomes.passed for outcomes in all_of_them))
    assert {name for name in PASSING if name.startswith(GRADIENT)} <= passed
    assert sum(len(outcomes.passed) for outcomes in all_of_them) >= 118


def test_a_prepared_model_runs_on_lists_and_dicts(mlp):
    x = rows(3)
    prepared = backend.prepare(onnx.load(mlp), "CPU", memory_budget="6MiB")
    by_list, by_name, alone = prepared.run([x]), prepared.run({"x": x}), prepared.run(x)
    assert by_list.y is by_list[0]
    assert by_list["mean"].shape == (3,)
    (expected, _) = neaptide.InferenceSession(mlp).run(None, {"x": x})
    for outputs in (by_list, by_name, alone, backend.run_model(onnx.load(mlp), [x])):
        close(outputs.y, expected)
    assert prepared.session.memory()["budget_bytes"] == 6 << 20


def test_one_node_runs():
    x = np.array([[-1, 2]], np.float32)
    (y,) = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    assert y.tolist() == [[0, 2]]
    node = helper.make_node("Clip", ["x", "", "most"], ["y"])
    (y,) = backend.run_node(node, [x, np.float32(1)], outputs_info=[(np.float32, (1, 2))], opset_version=13)
    assert y.tolist() == [[-1, 1]]


def test_what_cannot_be_done_is_refused():
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0") and not backend.supports_device("CUDA")
    text = tensor("x", TensorProto.STRING, [2])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [text], [tensor("y", TensorProto.STRING, [2])])
    model = helper.make_model(graph)
    assert not backend.is_compatible(model)
    with pytest.raises(backend.REFUSALS):
        backend.prepare(model)
    with pytest.raises(neaptide.capi.onnxruntime_pybind11_state.InvalidArgument, match="CUDA"):
        backend.prepare(model, "CUDA")
    with pytest.raises(neaptide.capi.onnxruntime_pybind11_state.InvalidArgument, match="no_option"):
        backend.prepare(model, no_option=1)
