"""The detectors of transformers and ultralytics, unchanged, on detops."""

import pytest
from peers import needs, run_tests


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("transformers", marks=needs("transformers")),
        pytest.param("ultralytics", marks=needs("ultralytics")),
    ],
)
def test_results_are_equal(name):
    run_tests(f"peer_{name}.py")
