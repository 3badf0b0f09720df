import json
import re
import sys
import time

import pytest
import torch
from paths import ROOT

import detops.bench.run as bench_run
from detops.bench import deform_conv2d, demo_ops, ms_deform_attn, roi_align
from detops.bench.run import MODULES

sys.path.insert(0, str(ROOT / "benchmarks"))

import gpu_bench  # noqa: E402
import gpu_check  # noqa: E402
from gpu_summary import FLOORS, bandwidth, floors, has_floors, summary  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_without_a_gpu_exits_with_2(capsys):
    assert gpu_check.main([]) == 2
    assert re.match("gpu-check: .* make emulate", capsys.readouterr().err)


def test_unknown_step_is_rejected(capsys):
    with pytest.raises(SystemExit) as caught:
        gpu_check.main(["--only", "tests,soup"])
    assert caught.value.code == 2
    assert "unknown step soup: expected build, calls, tests" in capsys.readouterr().err


def row(op, case, ours, theirs, layout="", dtype="float32", **more):
    names = dict(op=op, case=case, layout=layout, dtype=dtype, bytes=0, flops=0)
    times = dict(detops={"1": ours}, torchvision={"1": theirs} if theirs else {}, pytorch={})
    return names | times | {"limit": {"1": 0.0}} | more


def test_every_floor_matches_a_benchmark_case(monkeypatch):
    monkeypatch.setattr(roi_align, "CHANNELS", 1)
    monkeypatch.setattr(deform_conv2d, "SIZES", deform_conv2d.SIZES[:1])
    monkeypatch.setattr(demo_ops, "LLTM_SIZES", ((2, 3, 4, 5),))
    monkeypatch.setattr(ms_deform_attn, "SHAPES", ((2, 3),))
    cases = [
        dict(op=case.op, case=case.name, layout=case.layout, dtype=case.dtype)
        for module in MODULES
        if has_floors(module.OPS)
        for case in module.cases(torch.device("cpu"))
        if case.torchvision or case.pytorch
    ]
    for floor in FLOORS:
        on_a_gpu = floor.seconds or "cuDNN" in floor.case
        assert on_a_gpu or any(floor.matches(case) for case in cases), floor.name
    assert not has_floors(["soft_nms", "gdh"])


def test_floors_are_compared_with_measured_speedups():
    data = {
        "results": [
            row("nms", "10,000 clustered, 0.7", 1.0, 5.0),
            row("nms", "10,000 uniform, 0.5", 1.0, 4.9),
            row("nms", "10,000 identical, 0.5", 1.0, 1.0),
            row("nms", "500,000 clustered, 0.7", 0.3, None),
            row("roi_align forward", "500 RoIs 7x7, 256", 1.0, 2.1, "channels_last", "float16"),
            row("roi_align forward", "500 RoIs 7x7, 256", 1.0, 1.0, "channels_last", "bfloat16"),
            row("lltm both", "9 steps, PyTorch: nn.LSTM", 1.0, None, pytorch={"1": 0.8}),
        ]
    }
    found = {(r[0], r[2]): r[-2:] for r in floors(data)}
    assert found["nms, 10,000 boxes", "10,000 clustered, 0.7"] == ["5.00x", "yes"]
    assert found["nms, 10,000 boxes", "10,000 uniform, 0.5"] == ["4.90x", "**no**"]
    assert found["nms, half a million boxes", "500,000 clustered, 0.7"] == ["0.3 s", "**no**"]
    assert found["roi_align, channels_last", "500 RoIs 7x7, 256"] == ["2.10x", "yes"]
    assert found["LLTM, nn.LSTM", "9 steps, PyTorch: nn.LSTM"] == ["0.80x", "yes"]
    assert found["nms, 100,000 boxes", "-"] == ["not measured", "**no**"]
    assert len(found) == len(FLOORS) + 1


def test_bandwidth_below_80_percent_fails():
    results = [
        row("axpy", "9", 1.0, None, bytes=80, bandwidth=True),
        row("gdh", "9", 1.0, None, bytes=79, bandwidth=True),
        row("nms", "9", 1.0, None, bytes=1, bandwidth=False),
    ]
    rows = bandwidth({"results": results, "bandwidth_bytes_per_second": {"1": 100.0}})
    assert [r[-2:] for r in rows] == [["80%", "yes"], ["79%", "**no**"]]


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_nms" name="test_a[cuda]"/>
<testcase classname="tests.test_nms" name="test_a[cpu]"/>
<testcase classname="tests.test_cuda" name="test_b[cpu-nms]"/>
<testcase classname="tests.test_cuda" name="test_c"><skipped message="needs two GPUs"/></testcase>
<testcase classname="tests.test_nms" name="test_d"><failure message="assert 1&#10;more"/></testcase>
<testcase classname="tests.test_nms" name="test_e"><error message="lost"/></testcase>
</testsuite></testsuites>"""


def test_junit_report_is_summarized(tmp_path):
    (tmp_path / "x.xml").write_text(JUNIT)
    assert gpu_check.read_junit(tmp_path / "x.xml") == {
        "passed": 3,
        "failed": 2,
        "skipped": 1,
        "on_gpu": 1,
        "reasons": {"needs two GPUs": 1},
        "failures": ["tests.test_nms.test_d: assert 1", "tests.test_nms.test_e: lost"],
    }


SANITIZER = """========= COMPUTE-SANITIZER
83 calls
========= Invalid __global__ read of size 4 bytes
=========     at void detops::cuda::<unnamed>::axpy_kernel<float>(T1)+0x90
=========     by thread (0,0,0) in block (0,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: detops::cuda::axpy_forward in _C.so
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at void at::native::vectorized_elementwise_kernel<int>(T1)+0x10
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: detops::cuda::nms in _C.so
=========
========= Error: Race reported between Write access at void detops::cuda::k()+0x1
=========     and Read access at void detops::cuda::k()+0x2 [8 hazards]
=========
========= ERROR SUMMARY: 3 errors
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_sanitizer_report_separates_our_errors_from_others():
    ours, others = gpu_check.read_sanitizer(SANITIZER)
    assert others == 1 and len(ours) == 2
    assert ours[0].startswith("Invalid __global__ read of size 4 bytes at void detops::cuda")
    clean = "========= COMPUTE-SANITIZER\n83 calls\n========= ERROR SUMMARY: 0 errors\n"
    assert gpu_check.read_sanitizer(clean) == ([], 0)


def make_check(folder, seconds=60.0, earlier=None):
    deadline = time.monotonic() + seconds
    return gpu_check.Check(folder, deadline, earlier or {}, folder / "x.json", 2, 2)


def test_check_runs_a_program_until_the_deadline(tmp_path):
    check = make_check(tmp_path)
    assert check.run("a", [sys.executable, "-c", "import sys; print(1); sys.exit(3)"]) == 3
    assert check.last_lines("a") == ["1"]
    check = make_check(tmp_path, 0.5)
    slow = [sys.executable, "-c", "import time; print(2, flush=True); time.sleep(60)"]
    assert check.run("b", slow) is None
    assert check.seconds_left() < 0 and check.run("c", slow) is None and check.last_lines("c") == []


def test_run_of_a_test_file_reports_counts_and_crashes(tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text(
        "def test_cuda_a(): pass\ndef test_cuda_b(): assert 0\ndef test_c(): assert 0\n"
    )
    found = gpu_check.test_file(make_check(tmp_path), file)
    assert found["finished"] and (found["passed"], found["failed"]) == (1, 1)
    file.write_text("import os\ndef test_cuda(): os.abort()\n")
    assert not gpu_check.test_file(make_check(tmp_path), file)["finished"]


@pytest.fixture
def fast_bench(monkeypatch):
    monkeypatch.setattr(bench_run, "MIN_SECONDS", 1e-4)
    monkeypatch.setattr(bench_run, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(bench_run, "COPY_SIZE", 1000)
    monkeypatch.setattr(bench_run, "MATMUL_SIDE", 8)


def test_bench_writes_and_continues_the_cases_of_a_module(tmp_path, fast_bench):
    out = tmp_path / "out.json"
    common = ["box_coder", str(out), "--device", "cpu"]
    gpu_bench.main([*common, "--seconds", "-1"])
    data = json.loads(out.read_text())
    assert not data["finished"] and not data["results"] and data["bandwidth_bytes_per_second"]
    gpu_bench.main(common)
    data = json.loads(out.read_text())
    assert data["finished"] == ["box_coder"] and [r["op"] for r in data["results"]] == [
        "encode_boxes",
        "decode_boxes",
    ]
    done = tmp_path / "done.json"
    done.write_text(json.dumps({"results": data["results"][:1]}))
    gpu_bench.main([*common, "--done", str(done)])
    assert [r["op"] for r in json.loads(out.read_text())["results"]] == ["decode_boxes"]


def test_bench_continues_after_a_module_that_crashes(tmp_path, monkeypatch):
    def run(check, log, command, **environment):
        names, output = command[2].split(","), command[3]
        finished = names[: names.index("soft_nms")] if "soft_nms" in names else names
        rows = [row(name, "9", 1.0, None) for name in finished]
        output.write_text(json.dumps({"results": rows, "finished": finished, "device": "a GPU"}))
        return 0 if finished == names else -11

    monkeypatch.setattr(gpu_check.Check, "run", run)
    section = gpu_check.bench(make_check(tmp_path))
    assert section["left"] == ["soft_nms"] and not section["passed"]
    assert len(section["results"]) == len(MODULES) - 1


def test_failed_case_is_recorded():
    def fail():
        raise RuntimeError("not today\nbut tomorrow")

    case = bench_run.Case("nms", "9", fail)
    machine = bench_run.Machine("a GPU", {}, {1: 1.0}, {1: 1.0})
    assert gpu_bench.measure_row(case, machine)["error"] == "not today"


CALLS = {
    "axpy": {"waits_allowed": 0, "waits": 1, "repeats": True, "runs": 20},
    "nms": {"waits_allowed": 1, "waits": 1, "repeats": False, "runs": 20},
    "gdh": {"waits_allowed": 0, "error": "an illegal memory access"},
}
FILES = {
    "test_nms.py": {
        "passed": 3, "failed": 1, "skipped": 2, "on_gpu": 2, "finished": True,
        "reasons": {"needs two GPUs": 2}, "failures": ["tests.test_nms.test_d: assert 1"],
    },
    "test_slow.py": gpu_check.EMPTY_RESULTS | {"finished": False},
}  # fmt: skip


@pytest.fixture
def fake_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU, 80GB")


def test_results_of_separate_runs_are_merged(fake_gpu, monkeypatch, tmp_path, capsys):
    def fail(check):
        raise OSError("no space")

    machine = {
        "versions": {"detops": "0.1"},
        "bandwidth_bytes_per_second": {"1": 1e12},
        "peak_flops_per_second": {"1": 1e13},
    }
    rows = [row("axpy", "9", 1e-3, None, bytes=8 * 10**8, bandwidth=True)]
    errors = [dict(op="nms", case="9", layout="", dtype="float32", error="not today")]
    steps = {
        "build": lambda check: {"passed": True},
        "calls": lambda check: {"passed": False, "calls": CALLS, "log": ["the end"]},
        "tests": lambda check: {"passed": False, "files": FILES},
        "sanitizer": fail,
        "bench": lambda check: {
            "passed": False, "errors": errors, "left": [], "machine": machine, "results": rows,
        },
    }  # fmt: skip
    monkeypatch.setattr(gpu_check, "STEPS", steps)
    assert gpu_check.main(["--output", str(tmp_path), "--only", "bench,build"]) == 1
    assert gpu_check.main(["--output", str(tmp_path), "--only", "build"]) == 0
    assert gpu_check.main(["--output", str(tmp_path), "--only", "calls,tests,sanitizer"]) == 1
    data = json.loads((tmp_path / "a-gpu-80gb.json").read_text())
    assert data["results"] == rows and data["versions"]["detops"] == "0.1"
    assert list(data["check"]) == list(steps)
    text = (tmp_path / "a-gpu-80gb.md").read_text()
    for expected in (
        "# A GPU, 80GB",
        "| build | yes |",
        "| calls | **no** |",
        "3 passed, of which 2 on the GPU; 1 failed; 2 skipped.",
        "- skipped 2: needs two GPUs",
        "- failed: `tests.test_nms.test_d: assert 1`",
        "- `test_slow.py` did not finish",
        "hidden synchronisations: 1.",
        "- synchronises 1 times: axpy",
        "differ in 20 runs: 1.",
        "- differs: nms",
        "- fails: gdh: an illegal memory access",
        "OSError: no space",
        "A copy moves 1,000 GB/s; the floor is 80% of that.",
        "| axpy | 9 | float32 | 80% | yes |",
        "| nms | 9 |  | float32 | not today |",
        "not measured",
        "## Last log lines of calls\n\n```\nthe end",
    ):
        assert expected in text, expected


def test_missing_sanitizer_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "find_sanitizer", lambda: None)
    section = gpu_check.sanitizer(make_check(tmp_path))
    assert not section["passed"] and "was not found" in section["missing"]
    data = {"device": "x", "versions": {}, "results": [], "check": {"sanitizer": section}}
    data["check"]["sanitizer"] |= {"seconds": 0.0, "commit": "abc"}
    assert "compute-sanitizer was not found: nothing was checked." in summary(data)


def test_continued_run_tests_only_unfinished_files(tmp_path, monkeypatch):
    ran = []

    def run(check, file):
        ran.append(file.name)
        return gpu_check.EMPTY_RESULTS | {"finished": True}

    monkeypatch.setattr(gpu_check, "test_file", run)
    files_of_tests = (ROOT / "tests").rglob("test_*.py")
    gpu_files = {f.name for f in files_of_tests if gpu_check.uses_gpu(f)}
    assert {"test_nms.py", "test_cuda.py"} < gpu_files and "test_cli.py" not in gpu_files
    files = {name: gpu_check.EMPTY_RESULTS | {"finished": True} for name in gpu_files}
    files["test_nms.py"]["finished"] = False
    section = gpu_check.tests(make_check(tmp_path, earlier={"files": files}))
    assert ran == ["test_nms.py"] and section["passed"] and set(section["files"]) == gpu_files
