import pytest
import torch

import detops

CUDA = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(
        not (torch.cuda.is_available() and detops._C.cuda_version), reason="needs a GPU"
    ),
)


def pytest_collection_modifyitems(items):
    """Emulated kernels are tested by what would run on a GPU."""
    if detops._C.emulated:
        for item in items:
            if "device" not in item.fixturenames:
                item.add_marker(pytest.mark.skip(reason="does not concern the CUDA kernels"))


@pytest.fixture(autouse=True)
def same_random_numbers_every_run():
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", CUDA])
def device(request):
    return request.param


@pytest.fixture
def values_are_checked(device):
    """The CPU's kernels refuse what the CUDA kernels, which nobody waits for, only make safe."""
    return device == "cpu" and not detops._C.emulated


def _isas():
    found = []
    for name in ("baseline", "avx2", "avx512"):
        try:
            detops._C.set_cpu_isa(name)
        except ValueError:
            marks = pytest.mark.skip(reason=f"this processor has no {name}")
            found.append(pytest.param(name, marks=marks))
        else:
            found.append(pytest.param(name))
    detops._C.set_cpu_isa("auto")
    return found


@pytest.fixture(params=_isas())
def isa(request):
    detops._C.set_cpu_isa(request.param)
    yield request.param
    detops._C.set_cpu_isa("auto")


@pytest.fixture
def two_threads():
    """Calls a function with one thread and with two; gives both results."""
    before = torch.get_num_threads()

    def run(function):
        results = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(function())
        return results

    yield run
    torch.set_num_threads(before)


@pytest.fixture
def poison():
    """Fresh tensors hold NaN, so that what a kernel forgets to write shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
