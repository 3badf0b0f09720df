"""The base of the public modules."""

from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from torch import nn
from torch.compiler import is_dynamo_compiling

if TYPE_CHECKING:
    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result", covariant=True)

    class _Forward(Protocol[Parameters, Result]):
        def forward(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result: ...


class Module(nn.Module):
    """An ``nn.Module`` whose call has the types of its ``forward``.

    PyTorch's declaration lets a module's call take and give anything.
    """

    if TYPE_CHECKING:

        def __call__(
            self: "_Forward[Parameters, Result]",
            *args: Parameters.args,
            **kwargs: Parameters.kwargs,
        ) -> Result:
            """Runs the hooks and ``forward``."""
            ...


def parameters_named(*names: str) -> Callable[[nn.Module], tuple[Any, ...]]:
    """Gives a module's parameters in less time than its attributes: of small ops, as much as one.

    It gives what the attributes give, also where that is no parameter: of a parametrized or pruned
    module, and of the replicas of ``DataParallel``.
    """
    parameters, attributes = itemgetter(*names), attrgetter(*names)

    def of(module: nn.Module) -> tuple[Any, ...]:
        if is_dynamo_compiling():  # it knows neither of them
            return tuple(getattr(module, name) for name in names)
        try:
            return parameters(module._parameters)
        except KeyError:
            return attributes(module)

    return of
