"""How sessions are opened and run."""

from __future__ import annotations

import enum
import os
from typing import Any, Dict, Optional, Union

from neaptide import _neaptide
from neaptide.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

#: A size: ``"64MiB"``, a number of bytes, ``"25%"`` of what the engine takes with everything resident, or ``"none"``.
Budget = Union[str, int, None]

#: For programs that cannot be changed.
BUDGET_VARIABLE = "NEAPTIDE_MEMORY_BUDGET"
CACHE_VARIABLE = "NEAPTIDE_CACHE_DIR"


class GraphOptimizationLevel(enum.IntEnum):
    """Taken and not used: the engine rewrites every graph."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """Taken and not used: operators run one after another, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """Taken and not used: the plan has its own order."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class SessionOptions:
    """Options of a session.

    Neaptide's own:

    ``memory_budget``
        How much memory the engine may take for this session: weights, activations, workspaces, its own tables.
        Inputs and outputs are the program's. ``None`` asks the provider's option of the same name, then the variable
        ``NEAPTIDE_MEMORY_BUDGET``; without any there is no limit.
    ``cache_dir``
        Folder for packed models. ``None`` asks the provider's option, then ``NEAPTIDE_CACHE_DIR``; without any it is
        the model's own folder, or the user's cache folder where that cannot be written.
    ``exact``
        The same bits under every budget.
    ``weights``
        In how many bits weights are packed, as for ``neap pack --weights``: ``"exact"``, ``"f16"``, ``"bf16"``, ``"int8"`` or
        ``"int4"``. Fewer than the model has are rounded, and results change. Each form is packed to a file of its own.

    ``intra_op_num_threads`` is the number of threads; 0 means all processors. ``enable_profiling`` writes a trace of what
    runs do, to a file that begins with ``profile_file_prefix``; the plan and the trace take up to 1 MiB of the budget, and
    1 KiB for each step of the model. The rest of onnxruntime's options are
    taken, and have nothing to change here.
    """

    def __init__(
        self,
        *,
        memory_budget: Budget = None,
        cache_dir: Optional[str] = None,
        exact: bool = False,
        weights: Optional[str] = None,
    ) -> None:
        self.memory_budget = memory_budget
        self.cache_dir = cache_dir
        self.exact = exact
        self.weights = weights
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.enable_profiling = False
        self.profile_file_prefix = "onnxruntime_profile_"
        self.optimized_model_filepath = ""
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.use_deterministic_compute = False
        self.use_per_session_threads = True
        self._entries: Dict[str, str] = {}
        self._free_dimensions: Dict[str, int] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry. None has a meaning here."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """An entry that was added."""
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(f"SessionOptions does not have configuration with key: {key}") from None

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Gives a named dimension of the inputs its size, so that the model can be planned when it is opened."""
        self._free_dimensions[name] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Does nothing: dimensions have names here, and no denotations."""

    def register_custom_ops_library(self, path: str) -> None:
        """Not possible: such a library is for onnxruntime's own binary interface."""
        raise Fail(f"custom operators of onnxruntime cannot be loaded: {path}")

    def add_initializer(self, name: str, value: Any) -> None:
        """Not possible: weights stay in their file."""
        raise Fail(f"initializer '{name}': weights are read from the model's files only")

    def add_external_initializers(self, names: Any, values: Any) -> None:
        """Not possible: weights stay in their file."""
        raise Fail("weights are read from the model's files only")


class RunOptions:
    """Options of a run."""

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.training_mode = False
        self._entries: Dict[str, str] = {}
        self._cancel = _neaptide.Cancel()

    @property
    def terminate(self) -> bool:
        """Whether runs with these options are to end early. Another thread may set it while one runs."""
        return self._cancel.is_cancelled()

    @terminate.setter
    def terminate(self, value: bool) -> None:
        if value:
            self._cancel.cancel()
        elif self._cancel.is_cancelled():
            self._cancel = _neaptide.Cancel()

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry. None has a meaning here."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """An entry that was added."""
        try:
            return self._entries[key]
        except KeyError:
            raise RuntimeError(f"RunOptions does not have configuration with key: {key}") from None


def budget_text(budget: Budget) -> Optional[str]:
    """A budget as the engine reads it."""
    if budget is None or isinstance(budget, str):
        return budget
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise InvalidArgument(f"memory_budget: {budget!r} is no size: write '64MiB', '25%' or a number of bytes")
    return str(budget)


def choose(own: Any, of_provider: Any, variable: str) -> Any:
    """Of a session's option, its provider's and the environment's: the first that is there."""
    for value in (own, of_provider, os.environ.get(variable)):
        if value is not None and value != "":
            return value
    return None
