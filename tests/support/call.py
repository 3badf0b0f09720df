"""A small call of an op, forward and backward."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Call:
    """A function and its tensor arguments by name."""

    name: str
    function: Callable
    make: Callable[[torch.Generator], Tensors]
    differentiable: tuple[str, ...] = ()  # the tensors with gradients
    synchronisations: int = 0  # 1 if the size of the result depends on values

    def tensors(self, device="cpu", seed=0) -> Tensors:
        """Returns the tensors; another seed changes their values, not their shapes."""
        tensors = self.make(torch.Generator().manual_seed(seed))
        return {
            name: t.to(device).requires_grad_(name in self.differentiable)
            for name, t in tensors.items()
        }

    def forward(self, tensors: Tensors) -> list[Tensor]:
        """Returns a list of the outputs."""
        outputs = self.function(**tensors)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    def backward(self, tensors: Tensors, outputs: list[Tensor]) -> list[Tensor]:
        """Returns the gradients of ``differentiable``, for output gradients from -1 to 1."""
        if not self.differentiable:
            return []
        grads = [
            torch.linspace(-1, 1, o.numel(), device=o.device).view(o.shape).to(o.dtype)
            for o in outputs
        ]
        return list(
            torch.autograd.grad(outputs, [tensors[name] for name in self.differentiable], grads)
        )

    def results(self, tensors: Tensors) -> list[Tensor]:
        """Returns outputs and gradients."""
        outputs = self.forward(tensors)
        return [o.detach() for o in outputs] + self.backward(tensors, outputs)
