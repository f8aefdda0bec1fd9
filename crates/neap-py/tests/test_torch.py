"""PyTorch's models, exported and compiled. PyTorch takes gigabytes: `cargo xtask nightly --part torch` installs it."""

import numpy as np
import pytest

import neaptide

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch._dynamo.reset()
    # torch.compile would see a transformer's layer as one operator, which torch.onnx does not know.
    torch.backends.mha.set_fastpath_enabled(False)


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(width)
        self.two = torch.nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))


def resnet():
    """19 MB of weights."""
    layers = [torch.nn.Conv2d(3, 256, 3, stride=2, padding=1), *[Block(256) for _ in range(4)]]
    pooled = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, 10)]
    return torch.nn.Sequential(*layers, *pooled).eval(), torch.randn(1, 3, 16, 16)


def transformer():
    """25 MB of weights."""
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(1, 12, 512)


MODELS = pytest.mark.parametrize("make", [resnet, transformer])


def half_of(model):
    return sum(p.numel() * p.element_size() for p in model.parameters()) // 2


def close(got, expected):
    assert got.shape == expected.shape and got.dtype == expected.dtype
    np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)


@MODELS
def test_an_exported_model_runs_in_half_of_its_weights(make, tmp_path):
    import neaptide.torch

    model, x = make()
    with torch.no_grad():
        expected = model(x)
    run = neaptide.torch.export(model, (x,), tmp_path / "model.onnx", memory_budget=half_of(model))
    close(run(x), expected)
    assert run.session.memory()["total_bytes"] <= half_of(model)
    assert (tmp_path / "model.onnx").exists()


@MODELS
def test_a_compiled_model_runs_in_half_of_its_weights(make):
    from neaptide.torch import compile_backend

    model, x = make()
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, backend=compile_backend, options={"memory_budget": half_of(model)})
        close(compiled(x), expected)
        again = torch.randn_like(x)
        close(compiled(again), model(again))


def test_other_shapes_and_several_outputs():
    from neaptide.torch import compile_backend

    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, x, factor):
            y = self.linear(x)
            return y * factor, y.sum(dim=0)

    model = Two().eval()
    compiled = torch.compile(model, backend=compile_backend)
    with torch.no_grad():
        for rows in (2, 3, 5):
            x = torch.randn(rows, 8)
            for got, expected in zip(compiled(x, torch.tensor(2.0)), model(x, torch.tensor(2.0))):
                close(got, expected)


def test_a_temporary_export_goes_with_its_object():
    import os

    import neaptide.torch

    run = neaptide.torch.export(torch.nn.Linear(4, 2).eval(), (torch.randn(1, 4),))
    folder = os.path.dirname(run.path)
    assert os.path.isdir(folder)
    with pytest.raises(TypeError, match="1 inputs, 2"):
        run(torch.zeros(1, 4), torch.zeros(1))
    del run
    assert not os.path.exists(folder)


def test_tensors_share_their_memory(tmp_path):
    """A tensor is read where it lies, and a result is the tensor that comes out."""
    x = torch.arange(8, dtype=torch.float32).reshape(2, 4)
    value = neaptide.OrtValue.from_dlpack(x)
    assert value.data_ptr() == x.data_ptr()
    back = torch.from_dlpack(value)
    assert back.data_ptr() == x.data_ptr()
    y = torch.zeros(2, 4)
    model = torch.nn.Hardtanh(1.0, 5.0).eval()
    torch.onnx.export(model, (x,), tmp_path / "model.onnx", verbose=False)
    session = neaptide.InferenceSession(tmp_path / "model.onnx")
    binding = session.io_binding()
    binding.bind_ortvalue_input(session.get_inputs()[0].name, value)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, neaptide.OrtValue.from_dlpack(y))
    session.run_with_iobinding(binding)
    close(y, model(x))


def test_gradients_are_refused():
    from neaptide.torch import compile_backend

    compiled = torch.compile(torch.nn.Linear(4, 2), backend=compile_backend)
    with pytest.raises(Exception, match="no gradients"):
        compiled(torch.zeros(1, 4))


def test_the_backend_has_a_name():
    assert "neaptide" in torch._dynamo.list_backends()
    assert neaptide.__version__
