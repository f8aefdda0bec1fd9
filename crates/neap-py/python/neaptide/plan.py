"""How a session runs within a budget, or within several: figures, and pictures for notebooks."""

from __future__ import annotations

import html
import os
from typing import Any, Dict, List, Mapping, Optional, Union

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


class Comparison:
    """What :meth:`neaptide.InferenceSession.compare` gives. In a notebook it draws itself: a table, and each plan's page behind it."""

    def __init__(self, name: str, plans: Mapping[str, Union[Plan, int]]) -> None:
        self.name = name
        #: By the budget as it was written: its plan.
        self.plans: Dict[str, Plan] = {budget: plan for budget, plan in plans.items() if isinstance(plan, Plan)}
        #: Budgets that are too small, with the smallest one in bytes.
        self.refused: Dict[str, int] = {budget: least for budget, least in plans.items() if isinstance(least, int)}
        self._order = list(plans)

    def rows(self) -> List[Dict[str, Any]]:
        """The table: a dict for each budget, in the order in which they were given."""
        return [_row(budget, self.plans.get(budget), self.refused.get(budget)) for budget in self._order]

    def __repr__(self) -> str:
        table = [list(_COLUMNS.values()), *([_shown(row, key) for key in _COLUMNS] for row in self.rows())]
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(cells, widths)) for cells in table]
        return "\n".join([self.name, *lines])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(title)}</th>" for title in _COLUMNS.values())
        body = ""
        for row in self.rows():
            cells = "".join(f"<td>{html.escape(_shown(row, key))}</td>" for key in _COLUMNS)
            body += f"<tr>{cells}</tr>"
        drawn = "".join(
            f"<details><summary>{html.escape(budget)}</summary>{plan._repr_html_()}</details>"
            for budget, plan in self.plans.items()
        )
        title = html.escape(self.name)
        return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{drawn}"


#: Of a comparison's table: what a column is called.
_COLUMNS = {
    "budget": "budget",
    "total_bytes": "at most, MiB",
    "resident_bytes": "weights that stay, MiB",
    "loaded_bytes_per_run": "read per run, MiB",
    "latency_ms": "predicted, ms",
    "stall_ms": "of them waiting, ms",
    "smallest_bytes": "too small: smallest, MiB",
}


def _row(budget: str, plan: Optional[Plan], smallest_bytes: Optional[int]) -> Dict[str, Any]:
    row: Dict[str, Any] = {key: None for key in _COLUMNS}
    row.update(budget=budget, smallest_bytes=smallest_bytes)
    if plan is not None:
        row.update(
            total_bytes=plan.memory["total_bytes"],
            resident_bytes=plan.resident_bytes,
            loaded_bytes_per_run=plan.loaded_bytes_per_run,
            latency_ms=plan.latency_ms,
            stall_ms=plan.stall_ms,
        )
    return row


def _shown(row: Mapping[str, Any], key: str) -> str:
    value = row[key]
    if value is None:
        return ""
    if key.endswith("_ms"):
        return f"{value:.2f}"
    return f"{value / 2**20:.2f}" if "bytes" in key else value
