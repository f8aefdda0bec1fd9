"""The cache: packed forms of models, and models that were given as bytes. All of it may be removed at any time."""

from __future__ import annotations

import os
from typing import List, NamedTuple, Optional

from neaptide import _neaptide
from neaptide.options import CACHE_VARIABLE


class CachedFile(NamedTuple):
    """A file of the cache."""

    path: str
    bytes: int


def cache_list(folder: Optional["os.PathLike[str] | str"] = None) -> List[CachedFile]:
    """The files of the cache in a folder: by default ``NEAPTIDE_CACHE_DIR``, else the user's cache folder. Packed forms that
    lie beside their models are found in the models' folder."""
    return _files(_neaptide.cache_list(_folder(folder)))


def cache_clear(folder: Optional["os.PathLike[str] | str"] = None) -> List[CachedFile]:
    """Removes what :func:`cache_list` lists, and gives it. Sessions that are open go on; models are packed again."""
    return _files(_neaptide.cache_clear(_folder(folder)))


def _folder(folder: Optional["os.PathLike[str] | str"]) -> Optional["os.PathLike[str] | str"]:
    return folder if folder is not None else os.environ.get(CACHE_VARIABLE) or None


def _files(listed: List[tuple]) -> List[CachedFile]:
    return [CachedFile(os.fspath(path), size) for path, size in listed]
