"""Base class of the public modules."""

from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from torch import nn

if TYPE_CHECKING:
    Parameters = ParamSpec("Parameters")
    Result = TypeVar("Result", covariant=True)

    class _Forward(Protocol[Parameters, Result]):
        def forward(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result: ...


class Module(nn.Module):
    """An ``nn.Module`` whose call has the types of its ``forward``.

    In PyTorch's declaration, a call accepts and returns anything.
    """

    if TYPE_CHECKING:

        def __call__(
            self: "_Forward[Parameters, Result]",
            *args: Parameters.args,
            **kwargs: Parameters.kwargs,
        ) -> Result:
            """Runs the hooks and ``forward``."""
            ...
