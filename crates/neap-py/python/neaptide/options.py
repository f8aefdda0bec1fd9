"""How sessions are opened and run."""

from __future__ import annotations

import enum
import os
from typing import Any, Dict, List, Mapping, Optional, Union

from neaptide import _neaptide
from neaptide.capi.onnxruntime_pybind11_state import Fail, InvalidArgument

#: A size: ``"64MiB"``, a number of bytes, ``"25%"`` of what the engine takes with everything resident, or ``"none"``.
Budget = Union[str, int, None]

#: The most that sizes can be that only the data say, by name: a dict, or text such as ``frames=500,boxes=100``.
Bounds = Union[Mapping[str, int], str, None]

#: Options of onnxruntime's that are whole numbers.
_NUMBERS = ("intra_op_num_threads", "inter_op_num_threads", "log_severity_level", "log_verbosity_level")

#: For programs that cannot be changed.
BUDGET_VARIABLE = "NEAPTIDE_MEMORY_BUDGET"
CACHE_VARIABLE = "NEAPTIDE_CACHE_DIR"
BOUNDS_VARIABLE = "NEAPTIDE_BOUNDS"

#: This engine's options, as a provider's options and entries of a configuration (``neaptide.memory_budget``) name them.
OWN_OPTIONS = ("memory_budget", "cache_dir", "bounds", "exact", "weights", "threads")

#: What stands before them in entries of a configuration: our own, and onnxruntime's for the plug-in.
_PREFIXES = ("neaptide.", "ep.neaptideexecutionprovider.")


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


def _own_key(key: str) -> Optional[str]:
    """Which option of this engine an entry of a configuration is; ``None`` for entries of onnxruntime's."""
    for prefix in _PREFIXES:
        name = key[len(prefix) :]
        if key.startswith(prefix):
            if name not in OWN_OPTIONS:
                raise InvalidArgument(f"there is no option '{key}': there is {', '.join(prefix + o for o in OWN_OPTIONS)}")
            return name
    if key in OWN_OPTIONS:
        raise InvalidArgument(f"an entry '{key}' would do nothing: write 'neaptide.{key}'")
    return None


class _Fixed:
    """What has the attributes that it was made with, and takes no others: a misspelt option is an error."""

    _is_made = False

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_made and not hasattr(self, name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        object.__setattr__(self, name, value)


class SessionOptions(_Fixed):
    """Options of a session.

    Neaptide's own:

    ``memory_budget``
        How much memory the engine may take for this session: weights, activations, workspaces, its own tables.
        Inputs and outputs are the program's. ``None`` asks the provider's option of the same name, then the variable
        ``NEAPTIDE_MEMORY_BUDGET``; without any there is no limit.
    ``cache_dir``
        Folder for packed models. ``None`` asks the provider's option, then ``NEAPTIDE_CACHE_DIR``; without any it is
        the model's own folder, or the user's cache folder where that cannot be written.
    ``bounds``
        The most that sizes can be that only the data say, where nothing in the model bounds them, by the name of the result
        that the error tells: ``{"frames": 500}``. ``None`` asks the provider's option, then ``NEAPTIDE_BOUNDS``
        (``frames=500,boxes=100``), of which a session takes those that its model has.
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
        bounds: Bounds = None,
    ) -> None:
        self.memory_budget = memory_budget
        self.bounds = bounds
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
        self._providers: List[Any] = []
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _NUMBERS and not _is_number(value):
            raise TypeError(f"SessionOptions.{name}: expected a whole number, got {value!r}")
        super().__setattr__(name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keeps an entry. Those that begin with ``neaptide.`` are options of this engine, as its provider has them."""
        _own_key(key)
        self._entries[key] = value

    def _own_entries(self) -> Dict[str, str]:
        named = ((_own_key(key), value) for key, value in self._entries.items())
        return {name: value for name, value in named if name is not None}

    def add_provider(self, provider: str, options: Optional[Dict[str, str]] = None) -> None:
        """As ``providers=`` of a session that is given none."""
        self._providers.append((provider, dict(options or {})))

    def add_provider_for_devices(self, ep_devices: Any, options: Optional[Dict[str, str]] = None) -> None:
        """As :meth:`add_provider`, by devices of :func:`neaptide.get_ep_devices`."""
        names = {device.ep_name for device in ep_devices}
        if len(names) != 1:
            raise InvalidArgument("the devices are of no or of several providers")
        self.add_provider(names.pop(), options)

    def has_providers(self) -> bool:
        """Whether providers were added."""
        return bool(self._providers)

    def set_provider_selection_policy(self, policy: Any) -> None:
        """Does nothing: there is one engine."""

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

    def add_external_initializers_from_files_in_memory(self, names: Any, buffers: Any, lengths: Any = None) -> None:
        """Not possible: weights stay in their file."""
        raise Fail("weights are read from the model's files only")


class RunOptions(_Fixed):
    """Options of a run."""

    def __init__(self) -> None:
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.training_mode = False
        self._entries: Dict[str, str] = {}
        self._cancel = _neaptide.Cancel()
        self._is_made = True

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
        if _own_key(key) is not None:
            raise InvalidArgument(f"'{key}' is an option of sessions: SessionOptions.add_session_config_entry takes it")
        self._entries[key] = value

    def add_active_adapter(self, adapter: Any) -> None:
        """Not possible, as :class:`neaptide.LoraAdapter` says."""
        raise Fail("adapters of onnxruntime cannot be loaded: merge them into the model")

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


def bounds_of(given: Bounds) -> Optional[Dict[str, int]]:
    """Bounds as the engine reads them."""
    if given is None or given == "":
        return None
    if isinstance(given, str):
        return dict(_neaptide.parse_bounds(given))
    if not isinstance(given, Mapping) or not all(_is_number(most) and most >= 0 for most in given.values()):
        raise InvalidArgument(f"bounds: expected a dict of names and whole numbers, such as {{'frames': 500}}, got {given!r}")
    return {str(name): int(most) for name, most in given.items()}


def threads_of(given: Any) -> int:
    """A number of threads; 0 for all processors."""
    try:
        threads = int(given)
    except (TypeError, ValueError):
        threads = -1
    if not 0 <= threads <= 256:
        raise InvalidArgument(f"threads: expected a whole number from 0 to 256, got {given!r}")
    return threads


def truth_of(name: str, given: Any) -> bool:
    """Yes or no, also as the text of an entry."""
    known = {"1": True, "true": True, "0": False, "false": False, "": False}
    found = known.get(str(given).lower())
    if found is None:
        raise InvalidArgument(f"{name}: expected true or false, got {given!r}")
    return found


def _is_number(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def choose(own: Any, of_provider: Any, variable: str) -> Any:
    """Of a session's option, its provider's and the environment's: the first that is there."""
    for value in (own, of_provider, os.environ.get(variable)):
        if value is not None and value != "":
            return value
    return None
