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

BUILD = ROOT / "build" / "planted"
CLEAN, TREE = BUILD / "clean", BUILD / "tree"


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
    result = run("setup.py", "--quiet", "build_ext", "--inplace")
    if result.returncode:
        raise RuntimeError(result.stdout[-3000:] + result.stderr[-3000:])


def prepare() -> None:
    """Builds a clean copy of the project as it is now; an older one saves most of the work."""
    if CLEAN.exists():
        restore()
    shutil.rmtree(TREE / "tests", ignore_errors=True)
    files = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for file in filter(None, files.split("\0")):
        source, target = ROOT / file, TREE / file
        if target.is_symlink() or target.exists() and filecmp.cmp(source, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
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
        raise RuntimeError(f"{bug.name}: {bug.file} must contain the text exactly once")
    (TREE / bug.file).write_text(text.replace(bug.old, bug.new))
    if bug.file.startswith("csrc/"):
        build()


def first_failure(bug: Bug, mark: str) -> str:
    """Returns the first test that failed, or an empty string."""
    folders = [f"tests/{folder}" for folder in bug.folders.split()]
    command = ["-m", "pytest", "-x", "--numprocesses", "2", "--dist", "worksteal", "-m", mark]
    result = run(*command, "-p", "no:cacheprovider", *folders)
    if result.returncode == 0:
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", result.stdout, re.M)
    if found is None:
        raise RuntimeError(result.stdout[-3000:] + result.stderr[-3000:])
    return found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mark", default="not exhaustive", help="of the tests to run")
    parser.add_argument("names", nargs="*", help="parts of the names of bugs; default: all bugs")
    arguments = parser.parse_args()
    names = arguments.names
    selected = [bug for bug in BUGS if not names or any(name in bug.name for name in names)]
    for bug in [bug for bug in selected if bug.isa not in isas()]:
        print(f"{bug.name}: skipped, this processor lacks {bug.isa}")
        selected.remove(bug)
    missed = 0
    prepare()
    for bug in selected:
        restore()
        plant(bug)
        start = time.monotonic()
        test = first_failure(bug, arguments.mark)
        missed += not test
        seconds = time.monotonic() - start
        print(f"{bug.name}: {test or 'NOT FOUND'} ({seconds:.0f} s)", flush=True)
    print(f"{len(selected) - missed} of {len(selected)} found")
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
