"""Each Python snippet of docs/python.md, run in order, in one program."""

import re
import shutil

import numpy as np

from .conftest import ROOT


def test_every_snippet_runs(tmp_path, monkeypatch, capsys, trained):
    text = (ROOT / "docs" / "python.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) >= 5
    model = "mobilenet_v2_imagenet.onnx"
    shutil.copy(trained / model, tmp_path / model)
    monkeypatch.chdir(tmp_path)
    # A snippet sets it: it is gone after the test.
    monkeypatch.setenv("NEAPTIDE_MEMORY_BUDGET", "")
    image = np.load(trained / "mobilenet_v2_imagenet.chelsea.in.npy")
    names = {"model": model, "image": image}
    exec("import os", names)
    for snippet in snippets:
        exec(compile(snippet, "docs/python.md", "exec"), names)
    best, planned = capsys.readouterr().out.split()
    expected = np.load(trained / "mobilenet_v2_imagenet.chelsea.out.npy")
    assert int(best) == expected.argmax()
    assert int(planned) <= 6 << 20
