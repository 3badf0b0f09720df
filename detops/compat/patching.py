# SPDX-License-Identifier: MIT
"""Replaces the code of functions in other packages."""

import inspect
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from detops_hook import FINDER

REPLACEMENTS: dict[str, Callable[..., Any]] = {}


def _forwarding_code(key: str, function: FunctionType) -> CodeType:
    """Returns code that calls ``REPLACEMENTS[key]``, with the name and parameters of ``function``.

    The defaults stay in ``function``; arguments are passed by position. TorchScript compiles the
    source at the code's first line in its file: the source of ``function``.
    """
    names = ", ".join(inspect.signature(function, follow_wrapped=False).parameters)
    source = (
        f"def {function.__name__}({names}):\n"
        "    from detops.compat.patching import REPLACEMENTS\n"
        f"    return REPLACEMENTS[{key!r}]({names})\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), scope)
    code: CodeType = scope[function.__name__].__code__
    original = function.__code__
    return code.replace(co_filename=original.co_filename, co_firstlineno=original.co_firstlineno)


class CodePatch:
    """Replaces the code of a function, so that every reference to the function is affected.

    Detectors store functions in attributes such as ``roi_heads.box_similarity``, which a search
    through modules would miss. The replacement receives the original function, followed by all of
    its arguments.
    """

    def __init__(self, module: str, name: str, replacement: Callable[..., Any]) -> None:
        # torchvision wraps some functions; the wrapped function has the code that matters.
        self.function: FunctionType = inspect.unwrap(attrgetter(name)(import_module(module)))
        self.code: CodeType = self.function.__code__
        original = FunctionType(
            self.code,
            self.function.__globals__,
            name,
            self.function.__defaults__,
            self.function.__closure__,
        )
        self.key = f"{module}.{name}"
        REPLACEMENTS[self.key] = partial(replacement, original)
        self.function.__code__ = _forwarding_code(self.key, self.function)

    def restore(self) -> None:
        """Restores the function's original code."""
        self.function.__code__ = self.code


class AttributePatch:
    """Replaces a module attribute, for compiled functions that have no Python code."""

    def __init__(self, module: str, name: str, replacement: Callable[..., Any]) -> None:
        self.module, self.name = import_module(module), name
        self.original = getattr(self.module, name)
        setattr(self.module, name, partial(replacement, self.original))

    def restore(self) -> None:
        """Restores the original function."""
        setattr(self.module, self.name, self.original)


class Patch:
    """Replaces functions of modules, including modules imported later.

    With ``torchvision``, also applies :func:`detops.patch_torchvision`.
    """

    def __init__(
        self, functions: dict[tuple[str, str], Callable[..., Any]], torchvision: bool = False
    ) -> None:
        self.patches: list[CodePatch | AttributePatch] = []
        self.torchvision: Any = None
        self.watched: list[tuple[str, Callable[[], object]]] = []
        for (module, name), replacement in functions.items():
            self._when_imported(module, partial(self._apply, module, name, replacement))
        if torchvision:
            self._when_imported("torchvision", self._patch_torchvision)

    def _when_imported(self, module: str, action: Callable[[], object]) -> None:
        loaded = sys.modules.get(module)
        if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
            action()
        else:
            FINDER.watch(module, action)
            self.watched.append((module, action))

    def _apply(self, module: str, name: str, replacement: Callable[..., Any]) -> None:
        try:
            compiled = isinstance(attrgetter(name)(import_module(module)), BuiltinFunctionType)
            self.patches.append(
                (AttributePatch if compiled else CodePatch)(module, name, replacement)
            )
        except AttributeError:
            # Another version of the package keeps the function elsewhere and needs no replacement.
            warnings.warn(
                f"detops.compat: {module} has no {name}; it is not replaced", stacklevel=2
            )

    def _patch_torchvision(self) -> None:
        self.torchvision = import_module("detops").patch_torchvision()

    def restore(self) -> None:
        """Restores all originals."""
        for module, action in self.watched:
            FINDER.unwatch(module, action)
        while self.patches:
            self.patches.pop().restore()
        if self.torchvision is not None:
            self.torchvision.restore()


def patch_installed(package: str, functions: dict[tuple[str, str], Callable[..., Any]]) -> Patch:
    """Patches the functions of a package that also calls torchvision ops.

    Raises:
        ImportError: the package is not installed.
    """
    if find_spec(package) is None:
        raise ImportError(
            f"detops.compat.provide: {package} is not installed; install it with "
            f"pip install {package}"
        )
    return Patch(functions, torchvision=True)
