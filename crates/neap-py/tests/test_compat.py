"""Programs that import onnxruntime, unchanged."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import importlib.util, sys
assert importlib.util.find_spec("onnxruntime") is not None
import numpy as np
import onnxruntime as rt
from onnxruntime import InferenceSession, SessionOptions, GraphOptimizationLevel
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile
import onnxruntime.capi._pybind_state as state
assert "CPUExecutionProvider" in state.get_available_providers()
assert tuple(int(n) for n in rt.__version__.split(".")[:2]) >= (1, 20)
options = SessionOptions()
options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
session = InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
try:
    session.run(None, {"x": np.zeros((1, 3), np.float32)})
except InvalidArgument:
    pass
else:
    raise SystemExit("no error")
(y, mean) = session.run(None, {"x": np.ones((2, 1024), np.float32)})
assert y.shape == (2, 1024)
try:
    import onnxruntime.quantization
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("onnxruntime's own module was found")
print(type(session).__module__, __name__, sys.argv[1:])
"""


def python(*arguments, **variables):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, **variables), timeout=120)


def test_a_script_runs_unchanged(tmp_path, mlp):
    script = tmp_path / "program.py"
    script.write_text("import beside\n" + PROGRAM)
    (tmp_path / "beside.py").write_text("")
    done = python("-m", "neaptide", "--memory-budget", "7MiB", "--report", script, mlp, "--memory-budget")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"neaptide.session __main__ ['{mlp}', '--memory-budget']"
    assert "mlp.onnx: budget 7.0 MiB, planned" in done.stderr


def test_code_and_modules_run_unchanged(tmp_path, mlp):
    done = python("-m", "neaptide", "-c", PROGRAM, mlp)
    assert done.returncode == 0, done.stderr
    (tmp_path / "a_module.py").write_text(PROGRAM)
    done = python("-m", "neaptide", "-m", "a_module", mlp, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("neaptide.session __main__")


def test_an_exit_code_is_the_programs(tmp_path):
    assert python("-m", "neaptide", "-c", "import sys; sys.exit(7)").returncode == 7


@pytest.mark.parametrize("arguments", [[], ["--frobnicate"], ["--memory-budget"], ["-m"], ["no_such_file.py"]])
def test_what_cannot_be_run_is_told(arguments):
    done = python("-m", "neaptide", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_a_budget_that_cannot_be_met_is_the_programs_error(tmp_path, mlp):
    done = python("-m", "neaptide", "--memory-budget=200KiB", "-c", PROGRAM, mlp)
    assert done.returncode != 0
    assert "BudgetError" in done.stderr and "smallest feasible budget" in done.stderr


def test_install_and_uninstall(mlp):
    code = f"""
import neaptide
neaptide.install()
neaptide.install()
import onnxruntime
assert onnxruntime.InferenceSession is neaptide.InferenceSession
neaptide.uninstall()
import onnxruntime
assert onnxruntime.InferenceSession is not neaptide.InferenceSession
try:
    neaptide.install()
except RuntimeError as error:
    assert "before" in str(error)
else:
    raise SystemExit("no error")
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
