"""Training: a model learns from arrays or batches, within a memory budget."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from neaptide import _neaptide
from neaptide.capi.onnxruntime_pybind11_state import InvalidArgument
from neaptide.options import BUDGET_VARIABLE, Budget, SessionOptions, budget_text, choose, threads_of
from neaptide.session import InferenceSession

#: Learning rates, as ``neap train`` has them.
_RATES = {"adamw": 3e-4, "sgd": 0.01, "adagrad": 0.01}
_LOSSES = ("cross-entropy", "mean-square", "mean-absolute", "binary-cross-entropy")

#: Samples and what they are to give.
Batch = Tuple[np.ndarray, np.ndarray]
Data = Union[Tuple[Any, Any], Iterable[Any]]


class Trainer:
    """Trains an ``.onnx`` on the processor: ``fit``, then ``save``.

    ``model``
        A model that is not packed. Its first dimension is the batch: open, or as many samples as batches have.
    ``memory_budget``
        How much memory the engine may take: parameters, moments, activations. What does not fit is on the drive meanwhile.
        Batches are the program's. Without it the variable ``NEAPTIDE_MEMORY_BUDGET`` counts.
    ``optimizer``, ``lr``, ``momentum``, ``weight_decay``, ``clip_norm``
        ``"adamw"``, ``"sgd"`` or ``"adagrad"``, as for ``neap train``; biases and scales have no decay.
    ``loss``
        ``"cross-entropy"`` with class numbers along ``class_axis``, ``"mean-square"``, ``"mean-absolute"``, or
        ``"binary-cross-entropy"`` of scores.
    ``batch_norm``
        ``"batch"``: normalisations go by each batch, and the model's statistics follow; ``"given"``: by the model's.
    ``freeze``
        Names of parameters that stay as they are; ``*`` is anything.
    ``micro_batch``
        Samples that go through the model at a time, where a whole batch has no room.
    """

    def __init__(
        self,
        model: Union[str, "os.PathLike[str]"],
        *,
        memory_budget: Budget = None,
        optimizer: str = "adamw",
        loss: str = "cross-entropy",
        lr: Optional[float] = None,
        momentum: float = 0.9,
        weight_decay: Optional[float] = None,
        label_smoothing: float = 0.0,
        class_axis: int = 1,
        batch_norm: str = "batch",
        freeze: Sequence[str] = (),
        clip_norm: Optional[float] = None,
        micro_batch: Optional[int] = None,
        seed: int = 0,
        threads: int = 0,
        state_dir: Optional[str] = None,
    ) -> None:
        for what, given, known in (
            ("optimizer", optimizer, tuple(_RATES)),
            ("loss", loss, _LOSSES),
            ("batch_norm", batch_norm, ("batch", "given")),
        ):
            if given not in known:
                raise InvalidArgument(f"{what}: expected one of {', '.join(known)}, got {given!r}")
        self._path = os.fspath(model)
        self._inputs = _neaptide.signature(self._path)[0]
        self._budget = choose(memory_budget, None, BUDGET_VARIABLE)
        self._loss = loss
        self._class_axis = class_axis
        self._threads = threads_of(threads)
        self._rate = _RATES[optimizer] if lr is None else float(lr)
        self._random = np.random.default_rng(seed)
        self._options = {
            "loss": loss,
            "class_axis": class_axis,
            "label_smoothing": label_smoothing,
            "optimizer": optimizer,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "freeze": [freeze] if isinstance(freeze, str) else list(freeze),
            "batch_norm": batch_norm == "batch",
            "clip_norm": clip_norm,
            "micro_batch": micro_batch,
            "seed": seed,
            "memory_budget": budget_text(self._budget),
            "threads": self._threads,
            "state_dir": state_dir,
        }
        self._native: Optional["_neaptide.Trainer"] = None
        self._rows = 0

    def fit(
        self,
        data: Data,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 64,
        shuffle: bool = True,
        validation: Optional[Data] = None,
        progress: Optional[Callable[[Dict[str, Any]], None]] = None,
        lr: Optional[float] = None,
    ) -> List[Dict[str, Any]]:
        """Trains, and gives the figures of each epoch.

        ``data`` are arrays of samples and targets (``fit(x, y)`` or ``fit((x, y))``), of which batches of ``batch_size`` are made
        in another order in each epoch; or something that gives batches ``(x, y)`` whenever it is gone through, such as a
        ``DataLoader`` of torch. All batches of a trainer have as many samples as its first: a smaller last one is passed over,
        and counted as ``skipped``. ``validation`` is of the same kind. ``progress`` is called with a dict after each step
        (``epoch``, ``step``, ``loss``) and each epoch (``validation_loss``, ``validation_accuracy`` in it too).
        """
        if epochs < 1 or batch_size < 1:
            raise InvalidArgument("epochs and batch_size: expected whole numbers of 1 or more")
        rate = self._rate if lr is None else float(lr)
        source = _source(data if y is None else (data, y))
        held_out = None if validation is None else _source(validation)
        if epochs > 1 and isinstance(source, Iterator):
            raise InvalidArgument("data: an iterator ends with the first epoch; give a list or a loader of batches")
        history = []
        for epoch in range(1, epochs + 1):
            losses: List[float] = []
            skipped = 0
            for x, target in self._batches(source, batch_size, shuffle):
                if self._native is not None and len(x[0]) < self._rows:
                    skipped += len(x[0])
                    continue
                losses.append(self._step(x, target, rate))
                if progress is not None:
                    progress({"epoch": epoch, "step": self.steps, "loss": losses[-1]})
            if not losses:
                raise InvalidArgument(f"data: no batch of {self._rows or batch_size} samples in it")
            figures: Dict[str, Any] = {"epoch": epoch, "step": self.steps, "loss": float(np.mean(losses)), "skipped": skipped}
            if held_out is not None:
                figures.update({f"validation_{name}": value for name, value in self._evaluate(held_out, batch_size).items()})
            history.append(figures)
            if progress is not None:
                progress(dict(figures))
        return history

    def evaluate(self, data: Data, y: Any = None, *, batch_size: int = 64) -> Dict[str, float]:
        """The mean loss over data, and with cross-entropy the share of classes that are right, as of now."""
        return self._evaluate(_source(data if y is None else (data, y)), batch_size)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the model with what it has learned. Everything else in it is as it was."""
        if self._native is None:
            raise InvalidArgument("nothing was learned yet: call fit first")
        if os.path.exists(path) and os.path.samefile(path, self._path):
            raise InvalidArgument("the trained model needs another name than the one it begins with")
        self._native.save(os.fspath(path))

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return 0 if self._native is None else int(self._native.about()["steps"])

    def memory(self) -> Optional[Dict[str, Any]]:
        """The planned peak in bytes, the budget, and how many parameters learn; ``None`` before the first batch."""
        return None if self._native is None else dict(self._native.about())

    def _step(self, x: List[np.ndarray], target: np.ndarray, rate: float) -> float:
        if self._native is None:
            shapes = {name: list(array.shape) for (name, _, _), array in zip(self._inputs, x)}
            self._native = _neaptide.Trainer(self._path, shapes=shapes, **self._options)
            self._rows = len(x[0])
        if self._loss == "cross-entropy":
            target = target.astype(np.int64, copy=False)
        return self._native.step(x, target, rate)

    def _batches(self, source: Any, batch_size: int, shuffle: bool) -> Iterator[Tuple[List[np.ndarray], np.ndarray]]:
        """Each as arrays for the model's inputs, and the target."""
        if isinstance(source, tuple):
            x, y = source
            order = np.arange(len(y))
            if shuffle:
                self._random.shuffle(order)
            rows = self._rows or min(batch_size, len(y))
            for begin in range(0, len(y), rows):
                own = order[begin : begin + rows]
                yield self._typed([part[own] for part in x]), y[own]
            return
        for batch in source:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise InvalidArgument("data: expected batches (x, y)")
            yield self._typed(_several(batch[0])), _array(batch[1])

    def _typed(self, x: List[np.ndarray]) -> List[np.ndarray]:
        if len(x) != len(self._inputs):
            raise InvalidArgument(f"data: the model has {len(self._inputs)} inputs, {len(x)} were given")
        return [_as_declared(array, kind) for array, (_, kind, _) in zip(x, self._inputs)]

    def _evaluate(self, source: Any, batch_size: int) -> Dict[str, float]:
        losses, right, counted, samples = 0.0, 0, 0, 0
        options = SessionOptions(memory_budget=self._budget)
        options.intra_op_num_threads = self._threads
        with tempfile.TemporaryDirectory() as folder:
            path = self._path
            if self._native is not None:
                path = os.path.join(folder, "model.onnx")
                self._native.save(path)
            options.cache_dir = folder
            session = InferenceSession(path, options)
            name = session.get_outputs()[0].name
            for x, target in self._batches(source, batch_size, False):
                feed = {input[0]: array for input, array in zip(self._inputs, x)}
                (result,) = session.run([name], feed)
                loss = _loss(self._loss, result, target, self._class_axis)
                losses += loss * len(x[0])
                samples += len(x[0])
                if self._loss == "cross-entropy":
                    right += int((result.argmax(self._class_axis) == target).sum())
                    counted += target.size
            del session
        if not samples:
            raise InvalidArgument("validation: there are no samples")
        figures = {"loss": losses / samples}
        if counted:
            figures["accuracy"] = right / counted
        return figures


def _source(data: Any) -> Any:
    """Arrays of all samples as a tuple, what gives batches as it is."""
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[1], "shape"):
        x, y = _several(data[0]), _array(data[1])
        if any(len(part) != len(y) for part in x):
            raise InvalidArgument(f"data: there are {len(y)} targets, and {len(x[0])} samples")
        return x, y
    if not hasattr(data, "__iter__"):
        raise InvalidArgument("data: expected arrays (x, y), or what gives batches (x, y)")
    return data


def _several(x: Any) -> List[np.ndarray]:
    """For a model of several inputs there is a tuple."""
    return [_array(part) for part in x] if isinstance(x, (tuple, list)) else [_array(x)]


def _array(value: Any) -> np.ndarray:
    """Also of a tensor of torch."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def _as_declared(array: np.ndarray, kind: str) -> np.ndarray:
    """Floats are made as wide as the model's; other types must fit."""
    if kind == "tensor(float)" and array.dtype == np.float64:
        array = array.astype(np.float32)
    return np.ascontiguousarray(array)


def _loss(kind: str, result: np.ndarray, target: np.ndarray, class_axis: int) -> float:
    result = result.astype(np.float64)
    if kind == "cross-entropy":
        scores = result - result.max(class_axis, keepdims=True)
        logs = scores - np.log(np.exp(scores).sum(class_axis, keepdims=True))
        picked = np.take_along_axis(logs, np.expand_dims(target.astype(np.int64), class_axis), class_axis)
        return float(-picked.mean())
    target = target.reshape(result.shape)
    if kind == "mean-square":
        return float(((result - target) ** 2).mean())
    if kind == "mean-absolute":
        return float(np.abs(result - target).mean())
    return float((np.logaddexp(0, result) - target * result).mean())
