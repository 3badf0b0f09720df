# SPDX-License-Identifier: MIT
"""The best weights of a training run, and early stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..config import ConfigError
from ..distributed import is_main, on_main
from .checkpoint import DamagedCheckpointError, load_checkpoint, save_weights, writing

FILE_NAME = "best.pt"


def mean_average_precision(evaluation: Mapping[str, Any]) -> float | None:
    """Returns the mean box AP over the datasets, or None if none of them has objects.

    Args:
        evaluation: metrics by dataset name, each a result of :func:`detops.engine.evaluate`.

    >>> mean_average_precision({"a": {"AP": 0.25}, "b": {"AP": 0.75}, "c": {"AP": None}})
    0.5
    """
    values = [metrics["AP"] for metrics in evaluation.values() if metrics["AP"] is not None]
    return sum(values) / len(values) if values else None


def check_patience(cfg: Any) -> None:
    """Rejects SOLVER.PATIENCE if no evaluations are scheduled.

    Raises:
        ConfigError: SOLVER.PATIENCE is set without SOLVER.TEST_PERIOD or DATASETS.TEST.
    """
    if cfg.SOLVER.PATIENCE and not (cfg.SOLVER.TEST_PERIOD and cfg.DATASETS.TEST):
        raise ConfigError(
            "SOLVER.PATIENCE: expected 0 without SOLVER.TEST_PERIOD and DATASETS.TEST, got "
            f"{cfg.SOLVER.PATIENCE}"
        )


class BestWeights:
    """`best.pt` in a training folder: the weights of the evaluation with the highest AP.

    The file stores its own step and AP. It stays valid however often training is killed and
    resumed, even from a checkpoint that is older than the file.

    Args:
        folder: the training folder.
        resume: continue from the existing file; otherwise it is deleted.
        warn: called with one line if that file is damaged; it is then treated as missing.

    Attributes:
        step: step of the weights, 0 if there are none.
        ap: AP of the weights, None if there are none.
    """

    def __init__(self, folder: Path, resume: bool, warn: Callable[[str], Any]) -> None:
        self.path = folder / FILE_NAME
        self.step: int = 0
        self.ap: float | None = None
        if resume:
            self.step, self.ap = on_main(lambda: self._read(warn))
        elif is_main():
            with writing(self.path):
                self.path.unlink(missing_ok=True)

    def _read(self, warn: Callable[[str], Any]) -> tuple[int, float | None]:
        if not self.path.is_file():
            return 0, None
        try:
            found = load_checkpoint(self.path)
        except DamagedCheckpointError as error:
            warn(f"{error}: skipped")
            return 0, None
        return found.get("step", 0), found.get("AP")

    def update(
        self,
        step: int,
        evaluation: Mapping[str, Any],
        model: nn.Module,
        config: str,
        names: list[str],
        half: bool = False,
    ) -> None:
        """Writes the weights if their AP is higher than the best so far.

        Must be called by all processes, with the same evaluation.

        Raises:
            OutputError: the file cannot be written; the previous one is intact.
        """
        ap = mean_average_precision(evaluation)
        if ap is None or (self.ap is not None and ap <= self.ap):
            return
        self.step, self.ap = step, ap
        if is_main():
            about = {"step": step, "AP": ap}
            save_weights(self.path, model.state_dict(), config, names, half, about)

    def patience_exhausted(self, step: int, solver: Any) -> bool:
        """Returns whether SOLVER.PATIENCE evaluations have passed without a higher AP.

        SOLVER.PATIENCE 0 means never.
        """
        # A run resumed without the file has no best AP to compare with yet.
        if self.ap is None:
            return False
        return 0 < solver.PATIENCE * solver.TEST_PERIOD <= step - self.step
