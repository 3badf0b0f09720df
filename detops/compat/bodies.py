# SPDX-License-Identifier: MIT
"""Other bodies for functions of other packages."""

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

BODIES: dict[str, Callable[..., Any]] = {}


def _calling(key: str, function: FunctionType) -> CodeType:
    """A body that calls ``BODIES[key]``, under the name and with the parameters of ``function``.

    Its defaults stay where they are, in ``function``; arguments arrive by position. TorchScript
    compiles what stands in the file at the code's first line: the source of ``function``.
    """
    names = ", ".join(inspect.signature(function, follow_wrapped=False).parameters)
    source = (
        f"def {function.__name__}({names}):\n"
        "    from detops.compat.bodies import BODIES\n"
        f"    return BODIES[{key!r}]({names})\n"
    )
    scope: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), scope)
    code: CodeType = scope[function.__name__].__code__
    theirs = function.__code__
    return code.replace(co_filename=theirs.co_filename, co_firstlineno=theirs.co_firstlineno)


class Body:
    """Another body for a function: whoever holds the function, under whatever name, gets it.

    Detectors keep functions in attributes of their own (``roi_heads.box_similarity``), where no
    search through modules would find them. The replacement gets the function as it was, and then
    all of its arguments.
    """

    def __init__(self, module: str, name: str, replacement: Callable[..., Any]) -> None:
        # torchvision wraps some functions; theirs is the body that counts.
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
        BODIES[self.key] = partial(replacement, original)
        self.function.__code__ = _calling(self.key, self.function)

    def restore(self) -> None:
        """Puts the function's own body back."""
        self.function.__code__ = self.code


class Name:
    """Another function under a name of a module, for one that is compiled and has no body."""

    def __init__(self, module: str, name: str, replacement: Callable[..., Any]) -> None:
        self.module, self.name = import_module(module), name
        self.original = getattr(self.module, name)
        setattr(self.module, name, partial(replacement, self.original))

    def restore(self) -> None:
        """Puts the function back."""
        setattr(self.module, self.name, self.original)


class Patch:
    """Other bodies for functions of modules, those that are imported later included.

    With ``torchvision``, also :func:`detops.patch_torchvision` for what calls that package.
    """

    def __init__(
        self, functions: dict[tuple[str, str], Callable[..., Any]], torchvision: bool = False
    ) -> None:
        self.bodies: list[Body | Name] = []
        self.torchvision: Any = None
        self.watched: list[tuple[str, Callable[[], object]]] = []
        for (module, name), replacement in functions.items():
            self._once_imported(module, partial(self._apply, module, name, replacement))
        if torchvision:
            self._once_imported("torchvision", self._patch_torchvision)

    def _once_imported(self, module: str, action: Callable[[], object]) -> None:
        loaded = sys.modules.get(module)
        if loaded is not None and not getattr(loaded.__spec__, "_initializing", False):
            action()
        else:
            FINDER.watch(module, action)
            self.watched.append((module, action))

    def _apply(self, module: str, name: str, replacement: Callable[..., Any]) -> None:
        try:
            compiled = isinstance(attrgetter(name)(import_module(module)), BuiltinFunctionType)
            self.bodies.append((Name if compiled else Body)(module, name, replacement))
        except AttributeError:
            # Another version of the package, which keeps the function elsewhere and needs no other.
            warnings.warn(
                f"detops.compat: {module} has no {name}; it is left as it is", stacklevel=2
            )

    def _patch_torchvision(self) -> None:
        self.torchvision = import_module("detops").patch_torchvision()

    def restore(self) -> None:
        """Puts everything back."""
        for module, action in self.watched:
            FINDER.unwatch(module, action)
        while self.bodies:
            self.bodies.pop().restore()
        if self.torchvision is not None:
            self.torchvision.restore()


def patch_installed(package: str, functions: dict[tuple[str, str], Callable[..., Any]]) -> Patch:
    """Of a package that calls torchvision's ops as well.

    Raises:
        ImportError: it is not installed.
    """
    if find_spec(package) is None:
        raise ImportError(
            f"detops.compat.provide: {package} is not installed; install it with "
            f"pip install {package}"
        )
    return Patch(functions, torchvision=True)
