"""Each Python snippet of README and docs/python.md, run in order, in one program."""

import re
import shutil

import numpy as np

from .conftest import ROOT


def test_every_snippet_runs(tmp_path, monkeypatch, capsys, trained):
    pages = [ROOT / "README.md", ROOT / "docs" / "python.md"]
    snippets = [s for page in pages for s in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    assert len(snippets) >= 7
    model = "mobilenet_v2_imagenet.onnx"
    shutil.copy(trained / model, tmp_path / model)
    monkeypatch.chdir(tmp_path)
    # A snippet sets it: it is gone after the test.
    monkeypatch.setenv("NEAPTIDE_MEMORY_BUDGET", "")
    image = np.load(trained / "mobilenet_v2_imagenet.chelsea.in.npy")
    names = {"model": model, "image": image}
    exec("import os", names)
    for snippet in snippets:
        exec(compile(snippet, snippet, "exec"), names)
    best, planned, plan = capsys.readouterr().out.split(maxsplit=2)
    expected = np.load(trained / "mobilenet_v2_imagenet.chelsea.out.npy")
    assert int(best) == expected.argmax()
    assert int(planned) <= 6 << 20
    assert plan.startswith("Plan(a budget of 5.0 MiB")
    assert (tmp_path / "plan.html").exists()
