"""Runs every check of the CUDA code that needs a GPU.

python benchmarks/gpu_check.py                                    # everything: make gpu-check
python benchmarks/gpu_check.py --only tests --budget 500          # one step, in less than 500 s
python benchmarks/gpu_check.py --only tests,bench --continue      # what earlier runs left

Results go to benchmarks/results/<device>.json, where those of a step replace its earlier ones. A
readable summary goes to <device>.md in the same folder.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from gpu_summary import has_floors, summary

ROOT = Path(__file__).resolve().parent.parent
CUDA_SMOKE = "tests/support/cuda_smoke.py"
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
EMPTY_RESULTS = {"passed": 0, "failed": 0, "skipped": 0, "on_gpu": 0, "reasons": {}, "failures": []}


@dataclass
class Check:
    """State shared by the steps."""

    work: Path  # for logs and output of tools
    deadline: float  # of the step, in time.monotonic()
    earlier: dict[str, Any]  # the step's earlier results, empty to start from scratch
    results: Path  # the file with all results so far
    jobs: int
    runs: int

    def seconds_left(self) -> float:
        """Returns the remaining seconds."""
        return self.deadline - time.monotonic()

    def run(self, log: str, command: list[str | Path], **environment: str) -> int | None:
        """Returns the exit status, or None on timeout; output goes to a file in ``work``."""
        if self.seconds_left() <= 0:
            return None
        python_path = os.environ.get("PYTHONPATH")
        path = f"{ROOT}{os.pathsep}{python_path}" if python_path else str(ROOT)
        with (self.work / f"{log}.log").open("w") as output:
            process = subprocess.Popen(
                [str(argument) for argument in command],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONPATH": path} | environment,
                start_new_session=True,
            )
            try:
                return process.wait(self.seconds_left())
            except subprocess.TimeoutExpired:
                return None
            finally:
                if process.poll() is None:  # with all of its children
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def last_lines(self, log: str) -> list[str]:
        """Returns the last lines of a log."""
        path = self.work / f"{log}.log"
        return path.read_text(errors="replace").splitlines()[-12:] if path.exists() else []


def build(check: Check) -> dict[str, Any]:
    """Builds the extension in place, for the local GPU or for TORCH_CUDA_ARCH_LIST."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    passed = check.run("build", command, FORCE_CUDA="1") == 0
    log = [] if passed else check.last_lines("build")
    if passed:
        script = "import detops._C as c; print(c.cuda_version); assert c.cuda_version"
        passed = check.run("import", [sys.executable, "-c", script]) == 0
        log = [] if passed else check.last_lines("import")
    architectures = os.environ.get("TORCH_CUDA_ARCH_LIST", "the GPU's")
    return {"passed": passed, "architectures": architectures, "log": log}


def read_junit(path: Path) -> dict[str, Any]:
    """Returns test counts, reasons for skipped tests, and failures."""
    found: dict[str, Any] = EMPTY_RESULTS | {"reasons": Counter(), "failures": []}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name')}"
        problem = case.find("failure")
        problem = case.find("error") if problem is None else problem
        skipped = case.find("skipped")
        if problem is not None:
            found["failed"] += 1
            message = (problem.get("message") or "").splitlines() or [""]
            found["failures"].append(f"{name}: {message[0]}"[:300])
        elif skipped is not None:
            found["skipped"] += 1
            found["reasons"][skipped.get("message") or ""] += 1
        else:
            found["passed"] += 1
            found["on_gpu"] += "cuda" in name and "[cpu" not in name
    return found


def runs_every_call(file: Path) -> bool:
    """Returns whether a file tests all of tests/support/calls.py, which takes longest."""
    return "import CALLS" in file.read_text()


def uses_gpu(file: Path) -> bool:
    """Returns whether a test of a file takes a device, or needs a GPU."""
    return bool(re.search(r"NEEDS_GPU|def test\w*\([^)]*\bdevice\b", file.read_text()))


def test_file(check: Check, file: Path) -> dict[str, Any]:
    """Tests one file in a separate process, because a failing kernel aborts the rest of it."""
    results = check.work / f"{file.stem}.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rfEs", "-k", "cuda"]
    command += ["--numprocesses", "4"] if runs_every_call(file) else []
    threads = str(max(1, (os.cpu_count() or 1) // check.jobs))
    status = check.run(
        file.stem, [*command, f"--junitxml={results}", file], OMP_NUM_THREADS=threads
    )
    finished = status is not None and results.exists()
    return (read_junit(results) if finished else EMPTY_RESULTS) | {"finished": finished}


def tests(check: Check) -> dict[str, Any]:
    """Runs the GPU tests of all files that have any."""
    files = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda file: not runs_every_call(file))
    files = [file for file in files if uses_gpu(file)]
    completed = {
        name: result
        for name, result in check.earlier.get("files", {}).items()
        if result["finished"] and not result["failed"]
    }
    missing = [file for file in files if file.name not in completed]
    with ThreadPoolExecutor(check.jobs) as pool:
        results = pool.map(lambda file: test_file(check, file), missing)
        completed |= {file.name: result for file, result in zip(missing, results, strict=True)}
    passed = all(result["finished"] and not result["failed"] for result in completed.values())
    return {"passed": passed, "files": completed}


def calls(check: Check) -> dict[str, Any]:
    """Reports which ops synchronise with the device, and which are reproducible bit for bit."""
    report = check.work / "calls.json"
    report.unlink(missing_ok=True)
    status = check.run(
        "calls",
        [sys.executable, CUDA_SMOKE, "--report", report, "--runs", str(check.runs)],
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
    )
    found = json.loads(report.read_text()) if report.exists() else {}
    return {
        "passed": status == 0,
        "calls": found,
        "log": [] if found else check.last_lines("calls"),
    }


def read_sanitizer(log: str) -> tuple[list[str], int]:
    """Returns first lines of reports on our kernels, and the number of other reports."""
    ours, others = [], 0
    for record in re.split(r"(?m)^========= *$", log):
        lines = re.findall(r"(?m)^========= (.*)$", record)
        lines = [line for line in lines if not re.match(r"COMPUTE-SANITIZER|\w+ SUMMARY", line)]
        if not lines or not lines[0] or lines[0].startswith(" "):
            continue
        # The host backtrace follows, and names our library for kernels of PyTorch as well.
        device_report = re.split(r"Saved host backtrace|Host Frame", "\n".join(lines))[0]
        if "detops::" in device_report:
            ours.append(" ".join(line.strip() for line in lines[:2])[:300])
        else:
            others += 1
    return ours, others


def find_sanitizer() -> str | None:
    """Returns the path of compute-sanitizer, from PATH or the CUDA toolkit."""
    from torch.utils.cpp_extension import CUDA_HOME

    toolkit = Path(CUDA_HOME or "/usr/local/cuda")
    search_path = [
        os.environ.get("PATH", ""),
        str(toolkit / "bin"),
        str(toolkit / "compute-sanitizer"),
    ]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(search_path))


def sanitize(check: Check, program: str, tool: str) -> dict[str, Any]:
    """Runs one sanitizer tool and returns its result."""
    command = [program, "--tool", tool, "--print-limit", "1000"]
    if tool == "memcheck":  # ignore failing API calls inside PyTorch
        command += ["--report-api-errors", "no"]
    # One allocation per tensor makes accesses beyond its end invalid.
    status = check.run(
        tool,
        [*command, sys.executable, CUDA_SMOKE],
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    log = check.work / f"{tool}.log"
    ours, others = read_sanitizer(log.read_text() if log.exists() else "")
    return {
        "passed": status == 0 and not ours,
        "finished": status is not None,
        "ours": len(ours),
        "others": others,
        "first": ours[:5],
    }


def sanitizer(check: Check) -> dict[str, Any]:
    """Runs every call of tests/support/calls.py under each compute-sanitizer tool."""
    program = find_sanitizer()
    if program is None:
        return {"passed": False, "missing": "compute-sanitizer was not found: nothing was checked."}
    tools = dict(check.earlier.get("tools", {}))
    missing = [tool for tool in TOOLS if not tools.get(tool, {}).get("passed")]
    with ThreadPoolExecutor(check.jobs) as pool:
        results = pool.map(lambda tool: sanitize(check, program, tool), missing)
        tools |= dict(zip(missing, results, strict=True))
    return {"passed": all(found["passed"] for found in tools.values()), "tools": tools}


def bench(check: Check) -> dict[str, Any]:
    """Runs every case of detops.bench, those with floors first, and adds to the other results."""
    from gpu_bench import key

    from detops.bench.run import MODULES, module_name

    modules = sorted(MODULES, key=lambda module: not has_floors(module.OPS))
    left = [module_name(module) for module in modules]
    left = [name for name in left if not check.earlier or name in check.earlier["left"]]
    rows: list[dict[str, Any]] = []
    machine: dict[str, Any] = {}
    crashed = []
    output = check.work / "bench.json"
    while left and check.seconds_left() > 0:
        output.unlink(missing_ok=True)
        # Leaves time for the case in progress.
        command = [sys.executable, "benchmarks/gpu_bench.py", ",".join(left), output]
        command += ["--seconds", str(max(0.0, check.seconds_left() - 30))]
        command += ["--done", check.results] if check.earlier else []
        status = check.run("bench", command)
        data = json.loads(output.read_text()) if output.exists() else {}
        rows += data.pop("results", [])
        finished = data.pop("finished", [])
        left = [name for name in left if name not in finished]
        machine |= data
        if status == 0:  # modules that are left ran out of time
            break
        if left and status is not None:  # a failing kernel aborted the rest of the process
            crashed.append(left.pop(0))
    left += crashed
    if check.earlier:
        rows = json.loads(check.results.read_text())["results"] + check.earlier["errors"] + rows
    rows = list({key(row): row for row in rows}.values())  # keeps the last row of each key
    errors = [row for row in rows if "error" in row]
    rows = [row for row in rows if "error" not in row]
    passed = not errors and not left
    section = {"passed": passed, "errors": errors, "left": left}
    return section | {"machine": machine, "results": rows}


STEPS = {"build": build, "calls": calls, "tests": tests, "sanitizer": sanitizer, "bench": bench}


def merge_results(data: dict[str, Any], step: str, section: dict[str, Any]) -> dict[str, Any]:
    """Returns the data with a step's new results in place of its earlier ones."""
    machine, results = section.pop("machine", {}), section.pop("results", data["results"])
    versions = data["versions"] | machine.pop("versions", {})
    check = data["check"] | {step: section}
    order = {name: check[name] for name in STEPS if name in check}
    return data | machine | {"versions": versions, "results": results, "check": order}


def commit() -> str:
    """Returns the checked commit from git, or from DETOPS_COMMIT for a copy without git."""
    if given_commit := os.environ.get("DETOPS_COMMIT"):
        return given_commit
    command = ["git", "describe", "--always", "--dirty"]
    try:
        described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def parse_steps(names: str) -> list[str]:
    """Parses step names, and returns them in the order of STEPS."""
    requested = names.split(",")
    unknown = set(requested) - set(STEPS)
    if unknown:
        expected = ", ".join(STEPS)
        raise argparse.ArgumentTypeError(f"unknown step {', '.join(unknown)}: expected {expected}")
    return [name for name in STEPS if name in requested]


def main(arguments: list[str] | None = None) -> int:
    """Returns 0 if all passed, 1 if not, and 2 if nothing can be checked on this machine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", type=parse_steps, default=list(STEPS), help="comma-separated steps"
    )
    parser.add_argument("--budget", type=float, default=7200, help="seconds for each step")
    parser.add_argument(
        "--continue",
        action="store_true",
        dest="resume",
        help="keep results of earlier runs that passed",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--jobs", type=int, default=max(1, min(6, (os.cpu_count() or 1) // 2)))
    parser.add_argument(
        "--runs", type=int, default=20, help="runs whose results must be bit-identical"
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        reason = (
            "this PyTorch was built without CUDA" if not torch.version.cuda else "no GPU was found"
        )
        print(f"gpu-check: {reason}; make emulate runs the kernels without one", file=sys.stderr)
        return 2

    device = torch.cuda.get_device_name()
    options.output.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    results = options.output / f"{name}.json"
    data: dict[str, Any] = {"device": device, "versions": {}, "results": [], "check": {}}
    if results.exists():
        data |= json.loads(results.read_text())
    data["versions"] |= {"torch": torch.__version__, "CUDA": torch.version.cuda}
    work = ROOT / "build" / "gpu_check"
    work.mkdir(parents=True, exist_ok=True)
    all_passed = True
    for step in options.only:
        print(f"gpu-check: {step}", flush=True)
        began = time.monotonic()
        earlier = data["check"].get(step, {}) if options.resume else {}
        earlier = {} if "error" in earlier else earlier
        deadline = began + options.budget
        check = Check(work, deadline, earlier, results, options.jobs, options.runs)
        try:
            section = STEPS[step](check)
        except Exception as error:  # the other steps can still run
            section = {"passed": False, "error": f"{type(error).__name__}: {error}"}
        section |= {"seconds": time.monotonic() - began, "commit": commit()}
        all_passed = all_passed and section["passed"]
        print(f"gpu-check: {step} {'passed' if section['passed'] else 'FAILED'}", flush=True)
        data = merge_results(data, step, section)
        results.write_text(json.dumps(data, indent=1) + "\n")
    results.with_suffix(".md").write_text(summary(data))
    print(f"gpu-check: {results.with_suffix('.md')}; logs: {work}")
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
