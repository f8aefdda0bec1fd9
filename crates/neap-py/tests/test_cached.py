"""The cache: what it holds is listed and removed, and models that are given as bytes do not stay for ever."""

import pathlib

import numpy as np
import pytest
from onnx import helper

import neaptide as ort

from .conftest import save, tensor


def names(folder):
    return sorted(path.name for path in pathlib.Path(folder).glob("*"))


def model(folder, number):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = [("w", np.full((16, 16), number, np.float32))]
    path = save(folder, "m", nodes, [tensor("x", 1, [1, 16])], [tensor("y", 1, [1, 16])], weights)
    return pathlib.Path(path).read_bytes()


def test_the_cache_is_listed_and_cleared(tmp_path):
    folder = tmp_path / "cache"
    data = model(tmp_path, 1)
    session = ort.InferenceSession(data)
    folder.joinpath("mine.neap").write_bytes(b"not of the cache")
    listed = ort.cache_list()
    assert len(listed) == 2 and all(file.bytes > 0 for file in listed)
    assert ort.cache_list(folder) == listed == ort.cache_clear()
    assert names(folder) == ["mine.neap"] and ort.cache_list(tmp_path / "absent") == []
    # A session that is open goes on, and the model is packed again.
    x = np.ones((1, 16), np.float32)
    for session in (session, ort.InferenceSession(data)):
        assert session.run(None, {"x": x})[0][0, 0] == 16


def test_models_of_bytes_do_not_pile_up(tmp_path):
    folder = tmp_path / "cache"
    held = ort.InferenceSession(model(tmp_path, 1000))
    for number in range(24):
        ort.InferenceSession(model(tmp_path, number))
    kept = [name for name in names(folder) if name.endswith(".onnx")]
    assert 2 <= len(kept) <= 17
    assert len(names(folder)) <= 2 * len(kept)
    # One that is in use stays, however old.
    assert pathlib.Path(held._path).exists()


@pytest.mark.parametrize("data", [b"", b"\xff" * 100])
def test_bytes_that_are_no_model_are_not_kept(tmp_path, data):
    with pytest.raises(Exception):
        ort.InferenceSession(data)
    assert names(tmp_path / "cache") == []
