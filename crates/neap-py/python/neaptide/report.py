"""What the sessions of a program were planned to take, said when it ends."""

from __future__ import annotations

import atexit
import os
import resource
import sys
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from neaptide.session import InferenceSession

_sessions: "List[InferenceSession]" = []
_is_wanted = False


def at_exit() -> None:
    """Asks for the report. Sessions are then kept until the end."""
    global _is_wanted
    if not _is_wanted:
        _is_wanted = True
        atexit.register(_tell)


def note(session: "InferenceSession") -> None:
    """Hears of a new session."""
    if _is_wanted:
        _sessions.append(session)


def _tell() -> None:
    for session in _sessions:
        memory = session.memory()
        name = os.path.basename(session._path)
        if memory is None:
            print(f"neaptide: {name}: never ran", file=sys.stderr)
            continue
        budget = memory["budget_bytes"]
        limit = "no budget" if budget is None else f"budget {budget / 2**20:.1f} MiB"
        print(f"neaptide: {name}: {limit}, planned {memory['total_bytes'] / 2**20:.1f} MiB", file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"neaptide: the process took at most {peak:.1f} MiB", file=sys.stderr)
