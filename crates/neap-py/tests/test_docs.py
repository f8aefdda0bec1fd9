"""Each Python snippet of README and docs/python.md, run in order, a page in one program."""

import re
import shutil

import numpy as np
import pytest
import tiny_gguf

from .conftest import ROOT

MODEL = "mobilenet_v2_imagenet.onnx"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys, trained):
    """Runs a page's snippets in an empty folder, and gives what they print."""
    monkeypatch.chdir(tmp_path)
    # A snippet sets it: it is gone after the test.
    monkeypatch.setenv("NEAPTIDE_MEMORY_BUDGET", "")

    def run_all(page, names, at_least):
        snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert len(snippets) >= at_least
        for snippet in snippets:
            exec(compile(snippet, snippet, "exec"), names)
        return capsys.readouterr().out

    return run_all


def test_the_readme_needs_nothing_but_a_model(run, tmp_path, trained):
    shutil.copy(trained / MODEL, tmp_path / "mobilenet_v2.onnx")
    best, planned = run("README.md", {}, 1).split()
    assert 0 <= int(best) < 1000
    assert int(planned) <= 6 << 20


def test_every_snippet_runs(run, tmp_path, trained):
    shutil.copy(trained / MODEL, tmp_path / MODEL)
    tiny_gguf.write(tmp_path / "model.gguf")
    names = {"model": MODEL, "image": np.load(trained / "mobilenet_v2_imagenet.chelsea.in.npy")}
    exec("import os", names)
    best, planned, rest = run("docs/python.md", names, 8).split(maxsplit=2)
    expected = np.load(trained / "mobilenet_v2_imagenet.chelsea.out.npy")
    assert int(best) == expected.argmax()
    assert int(planned) <= 6 << 20
    # What the language model says comes last, and may be of many lines.
    plan, compared, *table = rest.splitlines()[:6]
    assert plan.startswith("Plan(a budget of 5.0 MiB")
    assert compared.endswith(".onnx") and len(table) == 1 + 3
    assert (tmp_path / "plan.html").exists()
