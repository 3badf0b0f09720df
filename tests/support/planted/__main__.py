"""Plants one bug after the other into a copy of the project and runs tests until one fails.

Prints a line per bug: whether it was found, by which test, and after how long.

python -m planted                     # every bug, by the tests of `make test`
python -m planted --mark "" NaN       # bugs with NaN in their names, by all tests
"""

import argparse
import filecmp
import os
import re
import shutil
import subprocess
import sys
import time

from fuzz.case import isas
from paths import ROOT

from .bugs import BUGS, Bug

COPIES = ROOT / "build" / "planted"
CLEAN, TREE = COPIES / "clean", COPIES / "tree"


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(TREE), "MAX_JOBS": "2", "FORCE_CUDA": "0"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=TREE,
        env=environment | variables,
        capture_output=True,
        text=True,
    )


def build() -> None:
    done = run("setup.py", "--quiet", "build_ext", "--inplace")
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])


def prepare() -> None:
    """Builds a clean copy of the project as it is now; an older one saves most of the work."""
    if CLEAN.exists():
        restore()
    shutil.rmtree(TREE / "tests", ignore_errors=True)
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for file in filter(None, files.split("\0")):
        new, old = ROOT / file, TREE / file
        if old.is_symlink() or old.exists() and filecmp.cmp(new, old, shallow=False):
            continue
        old.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(new, old, follow_symlinks=False)
    build()
    shutil.rmtree(CLEAN, ignore_errors=True)
    shutil.copytree(TREE, CLEAN, symlinks=True)


def restore() -> None:
    """Resets the tree to the clean copy, in place because build files contain the tree's path."""
    shutil.rmtree(TREE, ignore_errors=True)
    shutil.copytree(CLEAN, TREE, symlinks=True)


def plant(bug: Bug) -> None:
    text = (ROOT / bug.file).read_text()
    if text.count(bug.old) != 1:
        raise RuntimeError(f"{bug.name}: {bug.file} must have the text once")
    (TREE / bug.file).write_text(text.replace(bug.old, bug.new))
    if bug.file.startswith("csrc/"):
        build()


def first_failure(bug: Bug, mark: str) -> str:
    """Returns the first test that failed, or an empty string."""
    rooms = [f"tests/{room}" for room in bug.rooms.split()]
    command = ["-m", "pytest", "-x", "--numprocesses", "2", "--dist", "worksteal", "-m", mark]
    done = run(*command, "-p", "no:cacheprovider", *rooms)
    if done.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, re.M)
    if found is None:
        raise RuntimeError(done.stdout[-3000:] + done.stderr[-3000:])
    return found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mark", default="not exhaustive", help="of the tests to run")
    parser.add_argument("names", nargs="*", help="parts of the names of bugs; default: all bugs")
    arguments = parser.parse_args()
    names = arguments.names
    chosen = [bug for bug in BUGS if not names or any(name in bug.name for name in names)]
    for bug in [bug for bug in chosen if bug.isa not in isas()]:
        print(f"{bug.name}: not tried, this processor lacks {bug.isa}")
        chosen.remove(bug)
    missed = 0
    prepare()
    for bug in chosen:
        restore()
        plant(bug)
        began = time.monotonic()
        test = first_failure(bug, arguments.mark)
        missed += not test
        seconds = time.monotonic() - began
        print(f"{bug.name}: {test or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
