"""The native half of the package."""

import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

__version__: str

_Path = Union[str, "os.PathLike[str]"]
_Declared = Tuple[str, str, Optional[List[Union[int, str, None]]]]
_Signature = Tuple[List[_Declared], List[_Declared], Dict[str, Any]]

def signature(path: _Path) -> _Signature: ...
def kept_model(model: bytes, cache_dir: Optional[_Path] = None) -> str: ...
def forget_model(path: _Path) -> None: ...
def cache_list(folder: Optional[_Path] = None) -> List[Tuple["os.PathLike[str]", int]]: ...
def cache_clear(folder: Optional[_Path] = None) -> List[Tuple["os.PathLike[str]", int]]: ...
def check_budget(text: str) -> None: ...
def parse_bounds(text: str) -> Dict[str, int]: ...
def known_bounds(path: _Path, bounds: Mapping[str, int]) -> Dict[str, int]: ...

class HeldModel:
    def __init__(self, path: _Path) -> None: ...

class Trainer:
    def __init__(
        self,
        path: _Path,
        *,
        shapes: Mapping[str, Sequence[int]],
        loss: str,
        class_axis: int,
        label_smoothing: float,
        optimizer: str,
        momentum: float,
        weight_decay: Optional[float],
        freeze: Sequence[str],
        batch_norm: bool,
        clip_norm: Optional[float],
        micro_batch: Optional[int],
        seed: int,
        memory_budget: Optional[str],
        threads: int,
        state_dir: Optional[_Path],
    ) -> None: ...
    def step(self, inputs: Sequence[Any], target: Any, rate: float) -> float: ...
    def about(self) -> Dict[str, Any]: ...
    def save(self, path: _Path) -> None: ...

class Cancel:
    def __init__(self) -> None: ...
    def cancel(self) -> None: ...
    def is_cancelled(self) -> bool: ...

class Session:
    def __init__(
        self,
        path: _Path,
        *,
        memory_budget: Optional[str] = None,
        threads: int = 0,
        cache_dir: Optional[_Path] = None,
        exact: bool = False,
        shapes: Optional[Mapping[str, Sequence[int]]] = None,
        bounds: Optional[Mapping[str, int]] = None,
        weights: Optional[str] = None,
        progress: Optional[Callable[[str, int, int], object]] = None,
        profile: Optional[_Path] = None,
    ) -> None: ...
    def signature(self) -> _Signature: ...
    def bound_outputs(self) -> Optional[List[Tuple[str, List[int]]]]: ...
    def ledger(self) -> Optional[Dict[str, Any]]: ...
    def plan(self, title: str, memory_budget: Optional[str] = None) -> Optional[Dict[str, Any]]: ...
    def end_profile(self) -> Optional["os.PathLike[str]"]: ...
    def set_budget(self, memory_budget: Optional[str]) -> None: ...
    def run(
        self,
        names: Optional[Sequence[str]],
        feed: Mapping[str, Any],
        places: Optional[Sequence[Optional[Any]]] = None,
        cancel: Optional[Cancel] = None,
    ) -> List[Any]: ...
