"""A bar for packing, where tqdm is installed and it takes long enough to wonder."""

from __future__ import annotations

import sys
import time
from typing import Any, Optional

#: Work that ends sooner shows nothing.
PATIENCE_SECONDS = 1.0


class Bar:
    """Hears how far work is, and shows it on standard error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kind: Optional[str] = None
        self._began = 0.0
        self._bar: Any = None

    def __call__(self, kind: str, done: int, total: int) -> None:
        if kind != self._kind:
            self.close()
            self._kind, self._began = kind, time.monotonic()
        if self._bar is None and time.monotonic() - self._began > PATIENCE_SECONDS and done < total:
            self._bar = _bar(f"{kind} {self._name}", total)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            if done >= total:
                self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(title: str, total: int) -> Any:
    try:
        # In a notebook it is a widget, where those are installed.
        from tqdm.auto import tqdm
    except ImportError:
        return None
    is_seen = "ipykernel" in sys.modules or sys.stderr.isatty()
    return tqdm(total=total, desc=title, unit="B", unit_scale=True, unit_divisor=1024, leave=False, disable=not is_seen)
