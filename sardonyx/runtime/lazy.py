"""Modules that are imported at their first use, for what takes long to import and is seldom needed."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class _LazyModule(ModuleType):
    """Stands for a module until an attribute of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def lazy_module(name: str) -> Any:
    """The module of this name, imported when its first attribute is asked for.

    Args:
        name: the full name of the module.
    """
    return _LazyModule(name)
