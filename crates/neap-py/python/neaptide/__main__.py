"""Runs a program that imports onnxruntime, unchanged, on Neaptide.

    python -m neaptide [--memory-budget SIZE] [--cache-dir DIR] [--bounds NAME=N,...] [--report] SCRIPT.py [ARGUMENT...]
    python -m neaptide [options] -m MODULE [ARGUMENT...]
    python -m neaptide [options] -c CODE [ARGUMENT...]

Each session of the program has the budget for itself. ``--report`` says at the end what the sessions were planned to
take, and what the process took at most. Processes of Python that the program starts are covered, too.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import List, NoReturn

from neaptide import _neaptide, options
from neaptide.capi.onnxruntime_pybind11_state import InvalidArgument
from neaptide.compat import install

_VARIABLES = {
    "--memory-budget": options.BUDGET_VARIABLE,
    "--cache-dir": options.CACHE_VARIABLE,
    "--bounds": options.BOUNDS_VARIABLE,
}
_CHECKS = {"--memory-budget": _neaptide.check_budget, "--bounds": _neaptide.parse_bounds}


def main(arguments: List[str]) -> None:
    """Takes its own options, then becomes the program."""
    reports = False
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).partition("=")
        if name == "--report":
            reports = True
        elif name == "--help":
            print(__doc__)
            return
        elif name in _VARIABLES:
            if not value and not arguments:
                _refuse(f"{name} needs a value")
            value = value or arguments.pop(0)
            try:
                _CHECKS.get(name, str)(value)
            except InvalidArgument as error:
                _refuse(f"{name}: {error}")
            os.environ[_VARIABLES[name]] = value
        else:
            _refuse(f"unknown option {name}")
    if not arguments:
        _refuse("a script, -m MODULE or -c CODE is missing")
    install(children=True)
    if reports:
        from neaptide.report import at_exit

        at_exit()
    first = arguments.pop(0)
    if first in ("-m", "-c") and not arguments:
        _refuse(f"{first} needs a value")
    # The program finds what it would find without us: its own folder first.
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *arguments[1:]]
        code = compile(arguments[0], "<string>", "exec")
        exec(code, {"__name__": "__main__", "__builtins__": __builtins__})
    else:
        if not os.path.exists(first):
            _refuse(f"there is no {first}")
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        sys.argv = [first, *arguments]
        runpy.run_path(first, run_name="__main__")


def _refuse(reason: str) -> NoReturn:
    print(f"error: {reason}; python -m neaptide --help says how it is used", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1:])
