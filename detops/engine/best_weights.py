# SPDX-License-Identifier: MIT
"""The best weights of a training, and how long it has not come to better ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..config import ConfigError
from ..distributed import is_main, on_main
from .checkpoint import DamagedCheckpointError, load_checkpoint, save_weights, writing

NAME = "best.pt"


def mean_average_precision(evaluation: Mapping[str, Any]) -> float | None:
    """The mean of the data sets' AP of boxes; None if none of them has objects.

    Args:
        evaluation: metrics by data set, of each the result of :func:`detops.engine.evaluate`.

    >>> mean_average_precision({"a": {"AP": 0.25}, "b": {"AP": 0.75}, "c": {"AP": None}})
    0.5
    """
    values = [metrics["AP"] for metrics in evaluation.values() if metrics["AP"] is not None]
    return sum(values) / len(values) if values else None


def check_patience(cfg: Any) -> None:
    """Refuses to wait for evaluations that are not made.

    Raises:
        ConfigError: SOLVER.PATIENCE is given without SOLVER.TEST_PERIOD or DATASETS.TEST.
    """
    if cfg.SOLVER.PATIENCE and not (cfg.SOLVER.TEST_PERIOD and cfg.DATASETS.TEST):
        raise ConfigError(
            "SOLVER.PATIENCE: expected 0 without SOLVER.TEST_PERIOD and DATASETS.TEST, got "
            f"{cfg.SOLVER.PATIENCE}"
        )


class BestWeights:
    """`best.pt` in a training's folder: the weights of the evaluation with the highest AP.

    The file itself says what step and AP it is of, so that it means the same however often the
    training was killed and resumed: a checkpoint that is older than the file costs nothing.

    Args:
        folder: of the training.
        resume: go on from the file that is there; otherwise it is removed.
        tell: called with a line if that file is damaged, which counts as none.

    Attributes:
        step: of the weights, 0 if there are none.
        ap: theirs, None if there are none.
    """

    def __init__(self, folder: Path, resume: bool, tell: Callable[[str], Any]) -> None:
        self.path = folder / NAME
        self.step: int = 0
        self.ap: float | None = None
        if resume:
            self.step, self.ap = on_main(lambda: self._read(tell))
        elif is_main():
            with writing(self.path):
                self.path.unlink(missing_ok=True)

    def _read(self, tell: Callable[[str], Any]) -> tuple[int, float | None]:
        if not self.path.is_file():
            return 0, None
        try:
            found = load_checkpoint(self.path)
        except DamagedCheckpointError as error:
            tell(f"{error}: passed over")
            return 0, None
        return found.get("step", 0), found.get("AP")

    def offer(
        self,
        step: int,
        evaluation: Mapping[str, Any],
        model: nn.Module,
        config: str,
        names: list[str],
        half: bool = False,
    ) -> None:
        """Writes the weights if their AP is higher than that of the best so far.

        Called by all processes with the same evaluation.

        Raises:
            OutputError: the file cannot be written; the one that was there is whole.
        """
        ap = mean_average_precision(evaluation)
        if ap is None or (self.ap is not None and ap <= self.ap):
            return
        self.step, self.ap = step, ap
        if is_main():
            about = {"step": step, "AP": ap}
            save_weights(self.path, model.state_dict(), config, names, half, about)

    def waited(self, step: int, solver: Any) -> bool:
        """Whether SOLVER.PATIENCE evaluations have passed without a higher AP; 0 is never."""
        # A run that is resumed without the file has nothing yet that could be bettered.
        if self.ap is None:
            return False
        return 0 < solver.PATIENCE * solver.TEST_PERIOD <= step - self.step
