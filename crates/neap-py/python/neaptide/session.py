"""Sessions: a model that is open, and runs on numpy's arrays."""

from __future__ import annotations

import html
import itertools
import os
import threading
import time
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from neaptide import _neaptide, report
from neaptide.capi.onnxruntime_pybind11_state import BudgetError, InvalidArgument, NoSuchFile
from neaptide.info import PROVIDER, get_available_providers, get_ep_devices
from neaptide.options import (
    BOUNDS_VARIABLE,
    BUDGET_VARIABLE,
    CACHE_VARIABLE,
    OWN_OPTIONS,
    Budget,
    RunOptions,
    SessionOptions,
    bounds_of,
    budget_text,
    choose,
    threads_of,
    truth_of,
)
from neaptide.plan import Comparison, Plan
from neaptide.progress import Bar
from neaptide.values import IOBinding, OrtMemoryInfo, OrtValue, OrtValueVector

Shape = List[Union[int, str, None]]


class NodeArg:
    """An input or output of a model: ``name``, ``type`` such as ``tensor(float)``, and ``shape``.

    A dimension is a number, a name, or ``None`` where the model leaves it open.
    """

    def __init__(self, name: str, type: str, shape: Shape) -> None:
        self.name = name
        self.type = type
        self.shape = shape

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape!r})"


class ModelMetadata:
    """What the model's maker wrote into it."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.producer_name: str = about["producer_name"]
        self.graph_name: str = about["graph_name"]
        self.domain: str = about["domain"]
        self.description: str = about["description"]
        self.graph_description: str = about["graph_description"]
        self.version: int = about["version"]
        self.custom_metadata_map: Dict[str, str] = dict(about["custom_metadata_map"])


class InferenceSession:
    """A model that is open.

    ``path_or_bytes``
        An ``.onnx`` (with external data beside it, if it has any), a ``.neap``, or the bytes of either. Bytes are
        kept as a file in the cache folder, because weights are read from there while the model runs.
    ``sess_options``
        Among them the memory budget.
    ``providers``, ``provider_options``
        ``("NeaptideExecutionProvider", {"memory_budget": "64MiB"})`` gives a budget, too. Others are said to be
        unknown, and passed over.

    The model is packed when it is opened for the first time, or, where its inputs have open dimensions, when it
    runs for the first time. Later runs may have other shapes: nothing is packed again.
    """

    def __init__(
        self,
        path_or_bytes: Union[str, bytes, "os.PathLike[str]"],
        sess_options: Optional[SessionOptions] = None,
        providers: Optional[Sequence[Union[str, Tuple[str, Dict[Any, Any]]]]] = None,
        provider_options: Optional[Sequence[Dict[Any, Any]]] = None,
        **kwargs: Any,
    ) -> None:
        self._sess_options = sess_options if sess_options is not None else SessionOptions()
        if not isinstance(self._sess_options, SessionOptions):
            raise InvalidArgument(f"sess_options is {sess_options!r}, expected neaptide.SessionOptions")
        if not providers and not provider_options:
            providers = self._sess_options._providers
        # Entries of the configuration say the same as a provider's options, which come first.
        self._provider_options = {
            **self._sess_options._own_entries(),
            **_provider_options(providers, provider_options),
        }
        self._budget = choose(
            self._sess_options.memory_budget, self._provider_options.get("memory_budget"), BUDGET_VARIABLE
        )
        cache_dir = choose(self._sess_options.cache_dir, self._provider_options.get("cache_dir"), CACHE_VARIABLE)
        self._held = None
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            path = _neaptide.kept_model(bytes(path_or_bytes), cache_dir)
            self._held = _neaptide.HeldModel(path)
        else:
            path = os.fspath(path_or_bytes)
            if not os.path.exists(path):
                raise NoSuchFile(f"Load model from {path} failed: File doesn't exist")
        self._path = os.fspath(path)
        self._profile_began_ns = 0
        try:
            self._native = self._open(cache_dir)
        except BudgetError:
            raise
        except Exception:
            if self._held is not None:
                # What cannot be opened is not kept.
                self._held = None
                _neaptide.forget_model(path)
            raise
        inputs, outputs, about = self._signature
        self._inputs = [NodeArg(name, type, shape or []) for name, type, shape in inputs]
        bound = dict(self._native.bound_outputs() or [])
        self._outputs = [
            NodeArg(name, type, _refined(shape, bound.get(name))) for name, type, shape in outputs
        ]
        self._meta = ModelMetadata(about)
        report.note(self)

    def _profile_path(self) -> Optional[str]:
        if not self._sess_options.enable_profiling:
            return None
        self._profile_began_ns = time.time_ns()
        stem = f"{self._sess_options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        names = itertools.chain([stem], (f"{stem}_{number}" for number in itertools.count(2)))
        return next(f"{name}.json" for name in names if not os.path.exists(f"{name}.json"))

    def _open(self, cache_dir: Optional[str]) -> "_neaptide.Session":
        # What is no model says so here, by its own class of error.
        is_packed = self._path.endswith(".neap")
        weights = self._sess_options.weights or self._provider_options.get("weights")
        exact = self._provider_options.get("exact", False)
        threads = self._sess_options.intra_op_num_threads or self._provider_options.get("threads", 0)
        if is_packed and weights not in (None, "exact"):
            raise InvalidArgument(f"weights: {self._path} is packed already, and keeps its weights as they are")
        declared = None if is_packed else _neaptide.signature(self._path)
        shapes = {}
        for name, _, shape in declared[0] if declared else []:
            sizes = [self._sess_options._free_dimensions.get(d, d) if isinstance(d, str) else d for d in shape or [None]]
            if sizes != shape and all(isinstance(size, int) for size in sizes):
                shapes[name] = sizes
        native = _neaptide.Session(
            self._path,
            memory_budget=budget_text(self._budget),
            threads=threads_of(threads),
            cache_dir=cache_dir,
            exact=self._sess_options.exact
            or self._sess_options.use_deterministic_compute
            or truth_of("exact", exact),
            shapes=shapes,
            bounds=self._bounds(),
            weights=weights,
            progress=Bar(os.path.basename(self._path)),
            profile=self._profile_path(),
        )
        self._signature = declared or native.signature()
        return native

    def _bounds(self) -> Optional[Dict[str, int]]:
        for given in (self._sess_options.bounds, self._provider_options.get("bounds")):
            if given is not None:
                return bounds_of(given)
        # The environment speaks to all sessions.
        everywhere = bounds_of(os.environ.get(BOUNDS_VARIABLE))
        return None if everywhere is None else _neaptide.known_bounds(self._path, everywhere)

    def run_async(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        callback: Callable[[List[Any], Any, str], None],
        user_data: Any,
        run_options: Optional[RunOptions] = None,
    ) -> None:
        """Runs on another thread, and calls ``callback(results, user_data, error)`` there when it has ended: ``error`` is
        empty then, or says why there are no results. Runs of one session take turns."""

        def work() -> None:
            results: List[Any] = []
            error = ""
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as failure:
                error = str(failure) or type(failure).__name__
            callback(results, user_data, error)

        threading.Thread(target=work, name="neaptide run_async").start()

    def run_with_ortvaluevector(
        self,
        run_options: Optional[RunOptions],
        feed_names: Sequence[str],
        feeds: Sequence[OrtValue],
        fetch_names: Sequence[str],
        fetches: "OrtValueVector",
        fetch_devices: Any = None,
    ) -> None:
        """Runs on values in the order of their names, and appends the results to ``fetches``."""
        if len(feed_names) != len(feeds):
            raise InvalidArgument(f"{len(feed_names)} names and {len(feeds)} values were given")
        results = self.run_with_ort_values(fetch_names, dict(zip(feed_names, feeds)), run_options)
        fetches[:] = results

    def run(
        self,
        output_names: Optional[Sequence[str]],
        input_feed: Mapping[str, Any],
        run_options: Optional[RunOptions] = None,
    ) -> List[Any]:
        """Runs the model.

        ``output_names`` are the outputs that are wanted, in that order; ``None`` or nothing means all.
        ``input_feed`` has an array for each input, by name. Arrays that are row-major are read where they lie.
        """
        return self._native.run(output_names, input_feed, None, None if run_options is None else run_options._cancel)

    def run_with_ort_values(
        self,
        output_names: Optional[Sequence[str]],
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Optional[RunOptions] = None,
    ) -> List[OrtValue]:
        """As :meth:`run`, with values that share the memory of other libraries' tensors."""
        feed = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue(result) for result in self.run(output_names, feed, run_options)]

    def io_binding(self) -> IOBinding:
        """For inputs and outputs that stay where they are from run to run."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Optional[RunOptions] = None) -> None:
        """Runs on what is bound."""
        iobinding._run(run_options)

    def get_inputs(self) -> List[NodeArg]:
        """Inputs that a caller gives, as the model declares them."""
        return self._inputs

    def get_outputs(self) -> List[NodeArg]:
        """Outputs, as the model declares them; with sizes where the inputs' shapes are fixed."""
        return self._outputs

    def get_overridable_initializers(self) -> List[NodeArg]:
        """None: weights cannot be replaced by inputs."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """What the model's maker wrote into it."""
        return self._meta

    def get_providers(self) -> List[str]:
        """The same for every session."""
        return get_available_providers()

    def get_provider_options(self) -> Dict[str, Dict[str, str]]:
        """Options in force, by provider."""
        options = {} if self._budget is None else {"memory_budget": str(self._budget)}
        return {PROVIDER: options, "CPUExecutionProvider": {}}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Changes the budget, if the options give one. There are no other providers."""
        budget = _provider_options(providers, provider_options).get("memory_budget")
        if budget is not None:
            self.set_memory_budget(budget)

    def get_tuning_results(self) -> List[Any]:
        """None: nothing is tuned."""
        return []

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """Does nothing: nothing is tuned."""

    def get_input_memory_infos(self) -> List[OrtMemoryInfo]:
        """The processor's memory, for each input."""
        return [OrtMemoryInfo.cpu() for _ in self._inputs]

    def get_output_memory_infos(self) -> List[OrtMemoryInfo]:
        """The processor's memory, for each output."""
        return [OrtMemoryInfo.cpu() for _ in self._outputs]

    def get_input_epdevices(self) -> List[Any]:
        """The one device, for each input."""
        return [get_ep_devices()[0] for _ in self._inputs]

    def get_provider_graph_assignment_info(self) -> List[Any]:
        """Nothing: the engine takes the whole graph."""
        return []

    def get_session_options(self) -> SessionOptions:
        """The options that the session was opened with."""
        return self._sess_options

    def disable_fallback(self) -> None:
        """Does nothing: there is nothing to fall back to."""

    def enable_fallback(self) -> None:
        """Does nothing: there is nothing to fall back to."""

    def set_memory_budget(self, memory_budget: Budget) -> None:
        """Runs within another budget from now on. Memory above it is given back before this returns."""
        self._native.set_budget(budget_text(memory_budget))
        self._budget = memory_budget

    def end_profiling(self) -> str:
        """Ends what ``SessionOptions.enable_profiling`` began, and gives the name of the file.

        It is a list of trace events for Perfetto or ``chrome://tracing``: runs, computes, waits, loads and stores.
        """
        path = self._native.end_profile()
        return "" if path is None else os.fspath(path)

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, by the clock of :func:`time.time_ns`; 0 without profiling."""
        return self._profile_began_ns

    def plan(self, memory_budget: Budget = None) -> Optional[Plan]:
        """How the session runs within its budget, or would within another. Nothing is changed.

        ``None`` before the shapes of the inputs are known.
        """
        name = os.path.basename(self._path)
        within = budget_text(memory_budget if memory_budget is not None else self._budget)
        limit = "without a budget" if within in (None, "none") else f"within {within}"
        figures = self._native.plan(f"{name} {limit}", budget_text(memory_budget))
        return None if figures is None else Plan(figures)

    def compare(self, memory_budgets: Sequence[Budget]) -> Optional[Comparison]:
        """How the session would run within each of these budgets, side by side. Nothing is changed.

        ``None`` before the shapes of the inputs are known.
        """
        plans: Dict[str, Union[Plan, int]] = {}
        for budget in memory_budgets:
            text = budget_text("none" if budget is None else budget) or "none"
            try:
                plan = self.plan(text)
            except BudgetError as error:
                plans[text] = error.smallest_bytes or 0
                continue
            if plan is None:
                return None
            plans[text] = plan
        return Comparison(os.path.basename(self._path), plans)

    def _repr_html_(self) -> str:
        plan = self.plan()
        if plan is None:
            name = html.escape(os.path.basename(self._path))
            return f"<p>{name}: it is planned when it runs, because its inputs have open dimensions.</p>"
        return plan._repr_html_()

    def memory(self) -> Optional[Dict[str, Any]]:
        """Where the planned peak goes, in bytes by part, with ``total_bytes`` and ``budget_bytes``.

        ``None`` before the shapes of the inputs are known.
        """
        return self._native.ledger()


def _refined(declared: Optional[Shape], bound: Optional[List[int]]) -> Shape:
    """A declared shape, or what it is bound to where the model says less."""
    if bound is not None and (declared is None or None in declared):
        return list(bound)
    return declared or []


def _provider_options(providers: Any, provider_options: Any) -> Dict[Any, Any]:
    """Options that are given to this engine, under either of its names. Warns of providers that are unknown."""
    found: Dict[Any, Any] = {}
    names = list(providers or [])
    given = list(provider_options or [])
    if given and len(given) != len(names):
        raise ValueError("provider_options and providers must be of the same length")
    for index, provider in enumerate(names):
        options = given[index] if given else {}
        if isinstance(provider, (tuple, list)):
            if len(provider) != 2:
                raise InvalidArgument(f"{provider!r} is no provider: give a name, or a name and a dict of options")
            provider, options = provider
        if provider not in get_available_providers():
            known = ", ".join(get_available_providers())
            warnings.warn(
                f"Specified provider '{provider}' is not in available provider names. Available providers: '{known}'",
                UserWarning,
                stacklevel=3,
            )
        else:
            if provider == PROVIDER:
                unknown = [str(key) for key in options or {} if key not in OWN_OPTIONS]
                if unknown:
                    raise InvalidArgument(f"{PROVIDER} has no option '{unknown[0]}': it has {', '.join(OWN_OPTIONS)}")
            found.update(options or {})
    return found
