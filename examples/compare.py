"""Times the same network in Python and in C++: ``python examples/compare.py mlp|lltm``.

Forward and backward are timed separately. The variants take turns of 50 ms, so that other load on
the machine affects all of them equally. Medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import detops

Forward = Callable[[], Tensor]
Variant = tuple[nn.Module, Forward]


class PythonLLTM(nn.Module):
    """Composes the cell from separate ops, with the parameters of detops.LLTM."""

    def __init__(self, input_features: int, state_size: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(3 * state_size, state_size + input_features))
        self.bias = nn.Parameter(torch.empty(3 * state_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(state_size**-0.5), state_size**-0.5)

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        gates = F.linear(torch.cat([h, input], dim=1), self.weights, self.bias)
        i, o, g = gates.chunk(3, dim=1)
        c = c + F.elu(g) * torch.sigmoid(i)
        return torch.tanh(c) * torch.sigmoid(o), c


def mlp(args: argparse.Namespace) -> dict[str, dict[str, Variant]]:
    ours = detops.MLP().to(args.device)
    python = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 1)).to(args.device)
    x = torch.randn(args.batch, 5, device=args.device)
    return {
        f"MLP 5-15-1, batch {args.batch}": {
            "Python": (python, lambda: python(x)),
            "C++": (ours, lambda: ours(x)),
        }
    }


def lltm(args: argparse.Namespace) -> dict[str, dict[str, Variant]]:
    steps, inputs, state = args.steps, args.inputs, args.state
    x = torch.randn(steps, args.batch, inputs, device=args.device)
    start = torch.randn(2, args.batch, state, device=args.device)
    start = (start[0].contiguous(), start[1].contiguous())
    python = PythonLLTM(inputs, state).to(args.device)
    cell = detops.LLTM(inputs, state).to(args.device)
    sequence = detops.LLTMSequence(inputs, state).to(args.device)
    lstm = nn.LSTM(inputs, state).to(args.device)

    def python_sequence() -> Tensor:
        h, c = start
        outputs = []
        for t in range(steps):
            h, c = python(x[t], (h, c))
            outputs.append(h)
        return torch.stack(outputs)

    def add_states(state: tuple[Tensor, Tensor]) -> Tensor:
        return state[0] + state[1]

    sizes = f"batch {args.batch}, {inputs} inputs, {state} states"
    return {
        f"one step, {sizes}": {
            "Python": (python, lambda: add_states(python(x[0], start))),
            "C++": (cell, lambda: add_states(cell(x[0], start))),
        },
        f"{steps} steps, {sizes}": {
            "Python": (python, python_sequence),
            "C++": (sequence, lambda: sequence(x, start)[0]),
            "nn.LSTM": (lstm, lambda: lstm(x)[0]),
        },
    }


def measure(variants: dict[str, Variant], args: argparse.Namespace) -> dict[str, list[float]]:
    """Returns the median microseconds of forward and backward per variant."""

    def now() -> float:
        if args.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def run(module: nn.Module, forward: Forward) -> tuple[float, float]:
        module.zero_grad()
        start = now()
        output = forward()
        middle = now()
        output.sum().backward()
        return middle - start, now() - middle

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    end = time.perf_counter() + args.seconds
    while time.perf_counter() < end:
        for name, (module, forward) in variants.items():
            run(module, forward)  # loads this variant's data into the caches again
            slice_end = time.perf_counter() + 0.05
            while time.perf_counter() < slice_end:
                times[name].append(run(module, forward))
    return {
        name: [1e6 * statistics.median(part) for part in zip(*runs, strict=True)]
        for name, runs in times.items()
    }


def show(title: str, results: dict[str, list[float]]) -> None:
    python = results["Python"]
    print(f"\n{title}: microseconds, and speedup over Python")
    print(f"  {'':8} {'forward':>16} {'backward':>16} {'both':>16}")
    for name, times in results.items():
        columns = [*times, sum(times)]
        ratios = [p / t for p, t in zip([*python, sum(python)], columns, strict=True)]
        cells = [f"{t:9.1f} {r:5.2f}x" for t, r in zip(columns, ratios, strict=True)]
        print(f"  {name:8} " + " ".join(cells))


def plot(all_results: dict[str, dict[str, list[float]]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(all_results), figsize=(5 * len(all_results), 3.2), squeeze=False
    )
    for axis, (title, results) in zip(axes[0], all_results.items(), strict=True):
        forward = [times[0] for times in results.values()]
        backward = [times[1] for times in results.values()]
        axis.barh(list(results), forward, label="forward")
        axis.barh(list(results), backward, left=forward, label="backward")
        axis.invert_yaxis()
        axis.set_xlabel("microseconds")
        axis.set_title(title, fontsize=9)
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    print(f"\nplot: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=["mlp", "lltm"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=100, help="steps of the LLTM's sequence")
    parser.add_argument("--inputs", type=int, default=32, help="inputs of the LLTM")
    parser.add_argument("--state", type=int, default=128, help="states of the LLTM")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="per table")
    parser.add_argument("--plot", default=None, help="an image file; default compare_<network>.svg")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    device_name = (
        torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread"
    )
    print(f"{device_name}, torch {torch.__version__}, detops {detops.__version__}")
    results = {}
    for title, variants in {"mlp": mlp, "lltm": lltm}[args.network](args).items():
        results[title] = measure(variants, args)
        show(title, results[title])
    plot(results, args.plot or f"compare_{args.network}.svg")


if __name__ == "__main__":
    main()
