"""How a session runs within a budget: figures, and a picture for notebooks."""

from __future__ import annotations

import html
import os
from typing import Any, Dict, Mapping, Union

#: Of the picture in a notebook, in pixels.
_HEIGHT = 640


class Plan:
    """What :meth:`neaptide.InferenceSession.plan` gives. In a notebook it draws itself."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        #: Where the planned peak goes, in bytes by part, with ``total_bytes`` and ``budget_bytes``.
        self.memory: Dict[str, Any] = figures["memory"]
        #: Predicted time of a run, and how much of it is waiting for weights.
        self.latency_ms: float = figures["latency_ms"]
        self.stall_ms: float = figures["stall_ms"]
        #: Weights that stay in memory, and bytes that are read in each run.
        self.resident_bytes: int = figures["resident_bytes"]
        self.loaded_bytes_per_run: int = figures["loaded_bytes_per_run"]
        #: A page for a browser, which needs nothing else.
        self.page: str = figures["page"]

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the page."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.page)

    def __repr__(self) -> str:
        budget = self.memory["budget_bytes"]
        limit = "no budget" if budget is None else f"a budget of {budget / 2**20:.1f} MiB"
        return (
            f"Plan({limit}: {self.memory['total_bytes'] / 2**20:.1f} MiB at most, {self.latency_ms:.2f} ms predicted, "
            f"{self.stall_ms:.2f} ms of them waiting)"
        )

    def _repr_html_(self) -> str:
        # Its scripts see nothing of the notebook.
        page = html.escape(self.page)
        return (
            f'<iframe srcdoc="{page}" sandbox="allow-scripts" style="width: 100%; height: {_HEIGHT}px; border: 0">'
            "</iframe>"
        )
