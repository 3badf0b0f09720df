# SPDX-License-Identifier: MIT
"""Code that tests/detector/test_train_together.py runs in two processes."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from distributed_worker import branches_trainer

from detops.distributed import gather_objects, is_main, processes, rank
from detops.engine import TrainingError
from detops.engine.stop import StopSignals


def poison(trainer, steps):
    """Makes the losses of one process non-finite at these steps."""
    losses = trainer._losses

    def poisoned(*arguments):
        found = losses(*arguments)
        if rank() == 1 and trainer.step + 1 in steps:
            found["loss_body"] = found["loss_body"] * torch.nan
        return found

    trainer._losses = poisoned


def weights(trainer):
    return [value.flatten().tolist() for value in trainer.model.state_dict().values()]


def skipped(folder):
    trainer = branches_trainer(folder / "skipped")
    poison(trainer, (3, 5))
    finished = trainer.run()
    return {
        "step": trainer.step,
        "done": finished,
        "skipped": trainer.skipped,
        "w": weights(trainer),
    }


def diverged(folder):
    trainer = branches_trainer(folder / "diverged")
    poison(trainer, range(1, 99))
    try:
        trainer.run()
    except TrainingError as error:
        return {"step": trainer.step, "error": str(error)}


def stopped(folder):
    """Sends a signal to one process, which stops both after the same step."""
    trainer = branches_trainer(folder / "stopped")

    def send_signal(record):
        if record["step"] == 2 and rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with StopSignals() as stop, stop.deferred():
        finished = trainer.run(send_signal, should_stop=lambda: stop.received)
    return {"step": trainer.step, "done": finished, "received": stop.received}


if __name__ == "__main__":
    with processes("cpu"):
        folder = Path(sys.argv[1])
        results = {f.__name__: f(folder) for f in (skipped, diverged, stopped)}
        gathered = gather_objects(results)
        if is_main():
            (folder / "results.json").write_text(json.dumps(gathered))
