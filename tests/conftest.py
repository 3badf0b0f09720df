import gc
import os
import signal

import hypothesis
import pytest
import torch
from fuzz.case import isas
from needs import HAS_GPU

import detops

# cuBLAS requires this setting under torch.use_deterministic_algorithms(True).
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# With TF32, cuDNN would multiply 10-bit mantissas, in references too.
torch.backends.cudnn.allow_tf32 = False
# Traced graphs have millions of objects, and a collection visits all of them.
gc.set_threshold(50_000, 20, 50)
# A forked process must not collect its parent's objects: some would wait for threads that were not
# forked.
os.register_at_fork(before=gc.freeze, after_in_parent=gc.unfreeze)
# On a busy machine, any example may be slow.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
# Shells make background jobs ignore interrupts, and all processes of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# In parallel runs, each process and its child programs share one processor.
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
pytest_plugins = ["selection"]


@pytest.fixture(autouse=True)
def fixed_seed():
    # Without a GPU, torch.manual_seed formats a stack trace for each kind of GPU.
    torch.manual_seed(0) if HAS_GPU else torch.default_generator.manual_seed(0)


@pytest.fixture(params=["cpu", "cuda"] if HAS_GPU else ["cpu"])
def device(request):
    return request.param


@pytest.fixture
def values_are_checked(device):
    """Returns whether kernels reject bad values; asynchronous CUDA kernels only make them safe."""
    return device == "cpu" and not detops._C.emulated


def _isa(name):
    # Faults on one instruction set alone are rare enough to leave to the whole suite.
    return pytest.param(name, marks=() if name == detops._C.cpu_isa() else pytest.mark.slow)


@pytest.fixture(params=map(_isa, isas()))
def isa(request):
    detops._C.set_cpu_isa(request.param)
    yield request.param
    detops._C.set_cpu_isa("auto")


@pytest.fixture
def two_threads():
    """Calls a function with one thread and with two, and returns both results.

    An emulated GPU has one thread.
    """
    thread_count = torch.get_num_threads()

    def run(function):
        if detops._C.emulated:
            return [function()] * 2
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(function())
        return results

    yield run
    torch.set_num_threads(thread_count)


@pytest.fixture
def poison():
    """Fills new tensors with NaN, which reveals elements that a kernel leaves unwritten."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
