"""Trains whole networks in PyTorch and here by the same data, and compares: gradients, what a step leaves, and losses.

    torch_training.py XTASK [--only NAME]

Each network is made in PyTorch, exported by torch.onnx, and trained by `STUDY train-worker`, which is this repository's engine.
It ends with an error where they differ by more than the limits below.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
from torch import nn

from torch_networks import Gpt, loss_of, normalised, optimizer_of

STEPS = 200

# Of a tensor's norm, after one step.
TENSOR_LIMIT = 1e-4

# Of PyTorch's loss, in every step.
LOSS_LIMIT = 0.01

# Less says nothing: the loss at the end as a part of the loss at the beginning, both of so many steps.
LEARNED = 0.9
MEAN_OF = 20

CLASSES = 10


def cnn():
    return nn.Sequential(
        *(normalised(3, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(normalised(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, CLASSES)),
    )


class Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.one = normalised(channels, out, 3, stride)
        self.two = normalised(out, out, 3)
        self.shortcut = normalised(channels, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return torch.relu(self.two(torch.relu(self.one(x))) + self.shortcut(x))


def residual():
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1), Residual(32, 64, 2)]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES)]
    return nn.Sequential(normalised(3, 16, 3), nn.ReLU(), *blocks, *pooled)


class Recurrent(nn.Module):
    """Two layers over a sequence, and scores from its last step."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 48, num_layers=2, batch_first=True)
        self.scores = nn.Linear(48, CLASSES)

    def forward(self, x):
        return self.scores(self.lstm(x)[0][:, -1])


def gpt():
    # A bias of keys changes nothing: its gradient is rounding, which AdamW would make a whole step of.
    return Gpt(vocabulary=96, positions=64, width=64, heads=4, layers=2, bias=False)


def samples(random, shape, batch):
    """Noise with a pattern of its class in it; one class in five is wrong, so that losses stay away from zero."""
    count = STEPS * batch
    patterns = random.standard_normal((CLASSES, *shape))
    classes = random.integers(0, CLASSES, count)
    x = (random.standard_normal((count, *shape)) + patterns[classes]).astype(np.float32)
    told = np.where(random.random(count) < 0.2, random.integers(0, CLASSES, count), classes)
    return x.reshape(STEPS, batch, *shape), told.reshape(STEPS, batch)


def texts(random, shape, batch):
    """Each token has four that may come after it."""
    (tokens,) = shape
    after = random.integers(0, 96, (96, 4))
    text = np.empty((STEPS * batch, tokens + 1), np.int64)
    text[:, 0] = random.integers(0, 96, len(text))
    for place in range(tokens):
        text[:, place + 1] = after[text[:, place], random.integers(0, 4, len(text))]
    text = text.reshape(STEPS, batch, tokens + 1)
    return np.ascontiguousarray(text[..., :-1]), np.ascontiguousarray(text[..., 1:])


IMAGE = (3, 16, 16)

# How to make the network, its data and their shape, the batch, the optimizer and its rate.
CASES = {
    "cnn": (cnn, samples, IMAGE, 32, "sgd", 0.002),
    "residual": (residual, samples, (3, 12, 12), 32, "sgd", 0.0005),
    "lstm": (Recurrent, samples, (20, 16), 32, "sgd", 0.05),
    "gpt": (gpt, texts, (32,), 8, "adamw", 1e-3),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=pathlib.Path)
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    faults = []
    print(f"PyTorch {torch.__version__}: differences after one step, of a tensor's norm, and of losses in {STEPS} steps")
    for name in [arguments.only] if arguments.only else CASES:
        with tempfile.TemporaryDirectory() as folder:
            faults += [f"{name}: {fault}" for fault in check(name, arguments.study, pathlib.Path(folder))]
    for fault in faults:
        print(f"WRONG {fault}")
    sys.exit(bool(faults))


def check(name, study, folder):
    """Trains by both, tells how far they differ, and gives what is wrong."""
    make, data, shape, batch, optimizer, rate = CASES[name]
    torch.manual_seed(0)
    model = make()
    inputs, targets = data(np.random.default_rng(0), shape, batch)
    inputs.tofile(folder / "inputs")
    targets.astype(np.int64).tofile(folder / "targets")
    program = torch.onnx.export(model.eval(), (torch.from_numpy(inputs[0]),), dynamo=True, optimize=False, verbose=False)
    program.save(folder / "model.onnx", external_data=False)
    names = [name for name, _ in model.named_parameters()]
    (folder / "names").write_text("\n".join(names), encoding="utf-8")

    worker = Worker(study, folder, optimizer, rate, class_axis=targets.ndim - 1)
    own_losses = worker.run(1)
    own = worker.states()
    own_losses += worker.run(STEPS - 1)
    worker.end()

    first, losses = train(model, optimizer_of(model, optimizer, rate), inputs, targets)
    # Moments begin as zeros: the first is the gradient, or AdamW's share of it.
    share = 0.1 if optimizer == "adamw" else 1.0
    gradients = {name: own.get(("moment", f"{name}/moment0"), np.zeros(0)) / share for name in names}
    weights = {name: own.get(("parameter", name)) for name in names}
    statistics = {name: own.get(("statistic", name)) for name in first["statistics"]}
    faults = []
    worst = {
        "gradients": compare("the gradient of", gradients, first["gradients"], faults),
        "parameters": compare("the parameter", weights, first["parameters"], faults),
        "statistics": compare("the statistic", statistics, first["statistics"], faults),
    }
    faults += compare_losses(own_losses, losses)
    off = max(abs(a - b) / b for a, b in zip(own_losses, losses))
    told = ", ".join(f"{what} {error:.1e}" for what, error in worst.items() if error is not None)
    begin, end = np.mean(losses[:MEAN_OF]), np.mean(losses[-MEAN_OF:])
    count = sum(p.numel() for p in model.parameters())
    print(f"{name}: {count} parameters; {told}; losses {off:.1e}, from {begin:.3f} to {end:.3f}", flush=True)
    return faults


def train(model, optimizer, inputs, targets):
    """What PyTorch's first step gives, and all losses."""
    model.train()
    first, losses = {}, []
    for x, target in zip(inputs, targets):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(torch.from_numpy(x)), torch.from_numpy(target.astype(np.int64)))
        loss.backward()
        if not first:
            first["gradients"] = copied((name, p.grad) for name, p in model.named_parameters())
        optimizer.step()
        if not losses:
            first["parameters"] = copied(model.named_parameters())
            buffers = model.named_buffers()
            first["statistics"] = copied((name, b) for name, b in buffers if b.is_floating_point())
        losses.append(loss.item())
    return first, losses


def copied(tensors):
    return {name: tensor.detach().numpy().astype(np.float64) for name, tensor in tensors}


def compare(what, own, theirs, faults):
    """The largest difference, of a tensor's norm; `None` where there are no tensors."""
    worst = None
    for name, expected in theirs.items():
        got = own.get(name)
        if got is None or got.shape != expected.shape:
            faults.append(f"{what} {name} is {None if got is None else got.shape}, not {expected.shape}")
            continue
        norm = np.linalg.norm(expected)
        error = np.linalg.norm(got - expected) / max(norm, np.finfo(np.float32).tiny)
        worst = error if worst is None else max(worst, error)
        # A number that is none is no small difference.
        if not error <= TENSOR_LIMIT:
            faults.append(f"{what} {name} is {error:.1e} of its norm, {norm:.1e}, from PyTorch's")
    return worst


def compare_losses(own, theirs):
    faults = []
    if len(own) != len(theirs):
        faults.append(f"{len(own)} losses, not {len(theirs)}")
    for step, (a, b) in enumerate(zip(own, theirs), 1):
        if not abs(a - b) <= LOSS_LIMIT * b:
            faults.append(f"the loss of step {step} is {a:.6f}, PyTorch's {b:.6f}")
            break
    if not np.mean(theirs[-MEAN_OF:]) < LEARNED * np.mean(theirs[:MEAN_OF]):
        faults.append("PyTorch has learned nothing, so equal losses say little")
    return faults


class Worker:
    """The engine's trainer, in a process of its own."""

    def __init__(self, study, folder, optimizer, rate, class_axis):
        self.folder = folder
        command = [study.resolve(), "train-worker", folder / "model.onnx", "--inputs", folder / "inputs"]
        command += ["--targets", folder / "targets", "--parameters", folder / "names", "--state-dir", folder]
        command += ["--optimizer", optimizer, "--rate", str(rate), "--class-axis", str(class_axis)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ready = self.answer()
        if not ready.get("ready"):
            raise SystemExit(f"the worker is not ready: {ready}")

    def ask(self, question):
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended: {self.process.wait()}")
        return json.loads(line)

    def run(self, steps):
        return self.ask(f"run {steps}")["losses"]

    def states(self):
        """By role and name; not those that stay as they are."""
        found = {}
        for state in self.ask(f"states {self.folder / 'states'}")["states"]:
            if state["role"] == "frozen":
                continue
            values = np.fromfile(state["file"], np.float32).reshape(state["shape"])
            found[state["role"], state["name"]] = values.astype(np.float64)
        return found

    def end(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            raise SystemExit("the worker ended badly")


if __name__ == "__main__":
    main()
