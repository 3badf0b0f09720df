"""Trains LLTMSequence on the adding problem: ``python examples/train_sequence.py``.

Hochreiter & Schmidhuber, "Long Short-Term Memory" (1997), section 5.4: each step of a sequence has
a random number and a mark. Two steps are marked, and the target after the last step is the sum of
their numbers. A model that ignores the marks cannot beat an error of 1/6, the variance of that sum.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor, nn

import detops


class Adder(nn.Module):
    """Applies one linear layer to the state after the last step."""

    def __init__(self, state_size: int) -> None:
        super().__init__()
        self.sequence = detops.LLTMSequence(2, state_size)
        self.head = nn.Linear(state_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, _) = self.sequence(x)
        return self.head(h).squeeze(1)


def batch(steps: int, rows: int, device: str) -> tuple[Tensor, Tensor]:
    """Returns sequences ``[T, B, 2]`` of numbers and marks, and the sums ``[B]``."""
    numbers = torch.rand(steps, rows, device=device)
    marks = torch.zeros(steps, rows, device=device)
    first = torch.randint(0, steps // 2, (1, rows), device=device)
    second = torch.randint(steps // 2, steps, (1, rows), device=device)
    marks.scatter_(0, first, 1.0).scatter_(0, second, 1.0)
    return torch.stack([numbers, marks], dim=2), (numbers * marks).sum(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=50, help="length of a sequence")
    parser.add_argument("--state", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    model = Adder(args.state).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    start, running = time.perf_counter(), 1 / 6
    for iteration in range(1, args.iterations + 1):
        x, target = batch(args.steps, args.batch, args.device)
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running += 0.02 * (loss.item() - running)
        if iteration == 1 or iteration % (args.iterations // 10 or 1) == 0:
            bar = "#" * round(50 * min(1.0, running * 6))
            print(f"{iteration:5d}  loss {running:.5f}  {bar}")
    x, target = batch(args.steps, 2000, args.device)
    with torch.inference_mode():
        error = nn.functional.mse_loss(model(x), target).item()
    seconds = time.perf_counter() - start
    print(f"error on new sequences {error:.5f}, of 0.16667 for a constant; {seconds:.0f} s")


if __name__ == "__main__":
    main()
