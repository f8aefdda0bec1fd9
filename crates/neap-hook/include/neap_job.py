"""Where a job begins and ends, for programs with deadlines. Without the library under the program nothing happens.

    with neap_job.job():
        model(picture)
"""

import contextlib
import ctypes

_own = ctypes.CDLL(None)
_has_hook = hasattr(_own, "neap_job_begin")


@contextlib.contextmanager
def job():
    """The card is the program's own within; its work is done when it ends."""
    if _has_hook and (status := _own.neap_job_begin()):
        raise RuntimeError(f"the card cannot be used: error {status} of the driver")
    try:
        yield
    finally:
        if _has_hook:
            _own.neap_job_end()
