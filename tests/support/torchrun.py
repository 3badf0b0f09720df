"""Runs programs in two processes with torchrun."""

import subprocess
import sys

from paths import environment


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", "2", *map(str, arguments)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=600,
    )
