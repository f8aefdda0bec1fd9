"""For processes that a program under ``python -m neaptide`` starts: they get this package for ``onnxruntime``, too.

It stands first on their path, and loads nothing before onnxruntime is imported.
"""

import importlib.machinery
import importlib.util
import os
import sys


class _Finder:
    """Answers the first import of onnxruntime."""

    def find_spec(self, name, path=None, target=None):
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        try:
            import neaptide
        except ImportError as error:
            line = f"neaptide: {error}: onnxruntime runs in process {os.getpid()} without a budget"
            print(line, file=sys.stderr)
            return None
        neaptide.install()
        # The import asks the module that is there already for its spec, and that for a loader.
        made = sys.modules[name]
        made.__spec__ = importlib.machinery.ModuleSpec(name, self, origin=made.__file__, is_package=True)
        made.__spec__.submodule_search_locations = made.__path__
        return made.__spec__

    def create_module(self, spec):
        return sys.modules[spec.name]

    def exec_module(self, module):
        pass


def _next():
    """What this file hides: the sitecustomize that would have been found without it."""
    own = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or ".") != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("NEAPTIDE_CHILDREN"):
    sys.meta_path.insert(0, _Finder())
_next()
