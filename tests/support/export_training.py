"""Modules with an op between weights and a loss, and the results of training them.

As a program, this runs in a separate process: it loads the files of a folder, trains each module
for one step, and compares the results with those that the tests stored.
"""

import contextlib
import io
import sys
from pathlib import Path

import torch
from calls import CALLS
from torch import Tensor, nn

import detops

# Leaves out calls in half precision and other layouts, which take the same paths, by name.
TRAINED_CALLS = {
    call.name.replace("/", " "): call
    for call in CALLS
    if call.differentiable
    and not any(word in call.name for word in ("float16", "channels_last", "large"))
}


class WeightedOp(nn.Module):
    """Multiplies the differentiable inputs of an op by weights, and calls the op."""

    def __init__(self, name: str) -> None:
        super().__init__()
        call = TRAINED_CALLS[name]
        self.call, self.names = call, list(call.tensors())
        generator = torch.Generator().manual_seed(1)
        self.weights = nn.ParameterDict(
            {
                # Parameter names must not contain dots, and read better without brackets.
                parameter_name(name): nn.Parameter(1 + torch.rand(1, generator=generator) / 8)
                for name in call.differentiable
            }
        )

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        arguments = dict(zip(self.names, tensors, strict=True))
        for name in self.call.differentiable:
            arguments[name] = arguments[name] * self.weights[parameter_name(name)]
        return self.call.forward(arguments)


def parameter_name(name: str) -> str:
    return name.replace("[", "_").replace("]", "")


def inputs(name: str, seed: int = 0) -> tuple[Tensor, ...]:
    return tuple(x.detach() for x in TRAINED_CALLS[name].tensors(seed=seed).values())


def train_step(module: nn.Module, args: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Returns the results, the gradients of the weights, and the weights after a step.

    Adds the gradients of the gradients if the op has a second derivative.
    """
    found = module(*args)
    found = [found] if isinstance(found, Tensor) else list(found)
    loss = sum(
        (x.float().square() * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum()
        for x in found
        if x.requires_grad
    )
    weights = [p for _, p in sorted(module.named_parameters())]
    grads = torch.autograd.grad(loss, weights, create_graph=True)
    second: list[Tensor | None] = []
    with contextlib.suppress(RuntimeError):  # the op has no second derivative
        sums = sum(g.square().sum() for g in grads)
        second = list(torch.autograd.grad(sums, weights, allow_unused=True))
    for p, g in zip(weights, grads, strict=True):
        p.grad = g.detach()
    torch.optim.SGD(weights, lr=0.1).step()
    state = {f"result {i}": x.detach() for i, x in enumerate(found)}
    state |= {f"grad {i}": g.detach() for i, g in enumerate(grads)}
    state |= {f"weight {i}": p.detach().clone() for i, p in enumerate(weights)}
    return state | {f"second {i}": g for i, g in enumerate(second) if g is not None}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], bound: float = 1e-6) -> None:
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound, equal_nan=True)


def load(path: Path) -> nn.Module:
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    return torch.jit.load(io.BytesIO(path.read_bytes()))


def main(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.suffix in (".pt2", ".ts"):
            name = path.stem.split("@")[0]
            expected = torch.load(folder / f"{name}.expected")
            try:
                # An exported program contains a plain convolution instead.
                is_conv = name.startswith("winograd") and path.suffix == ".pt2"
                assert_same(
                    train_step(load(path), inputs(name)), expected, 2e-4 if is_conv else 1e-6
                )
            except Exception as error:
                print(f"{path.name}: {type(error).__name__}: {str(error)[:500]}")
    print("finished", detops.__version__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
