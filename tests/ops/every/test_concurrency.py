"""Ops in concurrent threads and processes, and while settings change or interrupts arrive."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import raw_calls
import reference
import torch
from calls import CALLS
from fuzz.case import isas
from fuzz.check import MATRIX_PRODUCTS
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

import detops

pytestmark = pytest.mark.skipif(detops._C.emulated, reason="the emulation has one thread")
THREADS = 16
OPS = raw_calls.schema_ops()


def op_results(name):
    """Returns the tensors that the op's call in raw_calls.py returns or writes."""
    args = raw_calls.arguments(name)
    found = getattr(torch.ops.detops, name)(**args)
    return [t for t in tree_leaves([found, args]) if isinstance(t, torch.Tensor)]


def assert_same(found, expected):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def in_threads(work):
    """Calls ``work(i)`` in ``THREADS`` threads at once and reraises their first exception."""
    together = threading.Barrier(THREADS)

    def begin(i):
        together.wait()
        work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(begin, range(THREADS)))


@pytest.fixture(scope="module")
def expected():
    return {name: op_results(name) for name in OPS}


@pytest.mark.slow
def test_ops_give_the_same_results_in_sixteen_threads(expected):
    def work(i):
        for name in random.Random(i).sample(OPS, len(OPS)):
            assert_same(op_results(name), expected[name])

    in_threads(work)


@pytest.mark.slow
def test_calls_give_the_same_results_while_thread_count_changes():
    calls = [call for call in CALLS if not call.name.startswith(MATRIX_PRODUCTS)]
    before = torch.get_num_threads()
    expected_results = [[t.detach() for t in call.forward(call.tensors())] for call in calls]

    def work(i):
        rng = random.Random(i)
        for k in rng.sample(range(len(calls)), 40):
            torch.set_num_threads(rng.choice((1, 2, 3)))
            assert_same(
                [t.detach() for t in calls[k].forward(calls[k].tensors())], expected_results[k]
            )

    try:
        in_threads(work)
    finally:
        torch.set_num_threads(before)


# These run on one thread: each step depends on earlier ones, or PyTorch computes a product.
SINGLE_THREADED = ("soft_nms", "nms_quadri", "mlp, large")


@pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])
def test_small_parallel_loops_give_the_same_results(call, isa):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected_results = call.results(call.tensors())
        torch.set_num_threads(3)
        detops._C.limit_grain(1)
        loops = detops._C.shared_loops()
        found = call.results(call.tensors())
        loops = detops._C.shared_loops() - loops
    finally:
        torch.set_num_threads(before)
        detops._C.limit_grain(2**63 - 1)
    assert (loops == 0) == call.name.startswith(SINGLE_THREADED)
    if not call.name.startswith(MATRIX_PRODUCTS):
        assert_same([t.detach() for t in found], [t.detach() for t in expected_results])


def test_nms_is_stable_while_the_instruction_set_changes():
    boxes, scores = reference.random_boxes(400), torch.rand(400)
    kept = detops.nms(boxes, scores, 0.4)
    stop = threading.Event()

    def change():
        while not stop.is_set():
            for name in isas():
                detops._C.set_cpu_isa(name)

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(300):
            assert torch.equal(detops.nms(boxes, scores, 0.4), kept)
    finally:
        stop.set()
        other.join()
        detops._C.set_cpu_isa("auto")


def test_threads_reuse_arena_memory_of_other_threads():
    """A thread frees results of another thread, and its next results reuse that memory."""
    boxes = reference.random_boxes(600)
    overlaps = detops.box_iou(boxes, boxes)
    pool_of_results, lock = [], threading.Lock()

    def work(i):
        before = detops._C.use_arena(True)
        try:
            for _ in range(30):
                found = detops.box_iou(boxes, boxes)
                with lock:
                    pool_of_results.append(found)
                    result = pool_of_results.pop(random.Random(i).randrange(len(pool_of_results)))
                assert torch.equal(result, overlaps)
        finally:
            detops._C.use_arena(before)

    in_threads(work)
    pool_of_results.clear()
    allocated, free = detops._C.arena_size()
    assert allocated == free > 0
    detops._C.release_arena()
    assert detops._C.arena_size() == (0, 0)


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no GIL"
)
@pytest.mark.parametrize("name", OPS)
def test_op_releases_the_interpreter_lock(name):
    """The switch interval is so long that a thread loses the lock only by releasing it."""
    steps, stop = [0], threading.Event()

    def other():
        while not stop.is_set():
            steps[0] += 1
            time.sleep(0)

    args, op = raw_calls.arguments(name), getattr(torch.ops.detops, name)
    before = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    try:
        sys.setswitchinterval(1000)
        thread.start()
        time.sleep(0.001)
        begun = steps[0]
        for _ in range(2000):
            sum(range(100))
        assert steps[0] == begun
        end = time.monotonic() + 30
        while steps[0] == begun and time.monotonic() < end:
            op(**args)
        assert steps[0] > begun
    finally:
        sys.setswitchinterval(before)
        stop.set()
        thread.join()


class Detections(Dataset):
    """Features of the boxes that NMS keeps, generated from a seed per example."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        boxes = reference.random_boxes(200, generator=generator)
        keep = detops.nms(boxes, torch.rand(200, generator=generator), 0.3)[:5]
        features = torch.rand(1, 3, 40, 40, generator=generator)
        return detops.roi_align(features, [boxes[keep]], 5, 0.4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_data_loader_workers_give_the_same_results(method):
    """The parent first runs ops on several threads, which a forked process does not inherit."""
    data = Detections()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected_results = [data[i] for i in range(len(data))]
        large = reference.random_boxes(2000)
        detops.box_iou(large, large)
        loader = DataLoader(
            data, batch_size=None, num_workers=2, multiprocessing_context=method, timeout=120
        )
        assert_same(list(loader), expected_results)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])
def test_inference_mode_gives_the_same_results(call):
    tensors = call.tensors()
    expected_results = [t.detach() for t in call.forward(tensors)]
    with torch.inference_mode():
        found = call.forward({name: t.clone() for name, t in tensors.items()})
    assert not any(t.requires_grad for t in found)
    assert_same(found, expected_results)


LONG = """
import signal
import torch
import detops
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
boxes = torch.rand(3000, 5) * 100
print("begins", flush=True)
try:
    while True:
        detops.box_iou_rotated(boxes, boxes)
except KeyboardInterrupt:
    kept = detops.nms(boxes[:, :4], boxes[:, 4], 0.5)  # the process is as good as before
    print("stopped", len(kept) > 0, flush=True)
"""


@pytest.mark.slow
def test_interrupt_is_raised_after_the_op_returns():
    command = [sys.executable, "-c", LONG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "begins\n"
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=120)
        finally:  # otherwise a failure would block on the running process
            process.kill()
    assert out == "stopped True\n" and process.returncode == 0


FORKED = """
import os, signal, torch, detops
torch.set_num_threads(2)
boxes = torch.rand(3000, 4).cumsum(1)
x, rois = torch.rand(2, 64, 100, 100), torch.rand(200, 5).cumsum(1)
rois[:, 0] = 0
calls = (lambda: detops.box_iou(boxes, boxes), lambda: detops.roi_align(x, rois, 7),
         lambda: detops.nms(boxes, boxes[:, 0].contiguous(), 0.5))
before = detops._C.shared_loops()
expected = [call() for call in calls]
assert detops._C.shared_loops() > before, "the parent used no threads"
child = os.fork()
if child == 0:
    signal.alarm(30)  # a loop that waits for threads would wait forever
    found = [call() for call in calls]
    torch.set_num_threads(1)  # for PyTorch's comparison
    same = all(map(torch.equal, found, expected))
    os._exit(0 if same else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_runs_large_calls():
    run = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.strip() == "0", run.stdout + run.stderr
