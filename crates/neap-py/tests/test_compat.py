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
assert rt.__file__
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


def test_modules_of_the_real_onnxruntime_use_this_package(mlp):
    """Where it is installed: what is written in Python, and never its native module."""
    code = """
import sys
import onnxruntime, onnxruntime.backend, onnxruntime.datasets
assert onnxruntime.backend.backend.InferenceSession.__module__ == "neaptide.session"
assert onnxruntime.datasets.get_example("sigmoid.onnx")
native = [name for name, module in sys.modules.items() if str(getattr(module, "__file__", "")).endswith("pybind11_state.so")]
assert not native, native
"""
    done = python("-m", "neaptide", "-c", code)
    assert done.returncode == 0, done.stderr


CHILD = """
import sys, subprocess, multiprocessing
import onnxruntime

def told(path):
    import numpy as np
    import onnxruntime
    session = onnxruntime.InferenceSession(path)
    session.run(None, {"x": np.ones((1, 1024), np.float32)})
    return type(session).__module__, session.memory()["budget_bytes"]

if __name__ == "__main__":
    path = sys.argv[1]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(told, (path,)))
    code = f"import onnxruntime, os; print(onnxruntime.__neaptide__, os.environ['NEAPTIDE_MEMORY_BUDGET'])"
    print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip())
"""


def test_processes_that_a_program_starts_have_its_budget(tmp_path, mlp):
    script = tmp_path / "program.py"
    script.write_text(CHILD)
    done = python("-m", "neaptide", "--memory-budget", "7MiB", script, mlp)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"('neaptide.session', {7 << 20})", "True 7MiB"]


@pytest.mark.parametrize("option", ["--memory-budget=foo", "--bounds=frames"])
def test_a_wrong_option_is_told_before_the_program_begins(option):
    done = python("-m", "neaptide", option, "-c", "print('begun')")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"error: {option.split('=')[0]}: ") and done.stderr.count("\n") == 1
