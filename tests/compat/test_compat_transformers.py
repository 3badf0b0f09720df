"""Unchanged detectors of transformers and ultralytics on detops."""

import pytest
from peers import requires, run_tests


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("transformers", marks=requires("transformers")),
        pytest.param("ultralytics", marks=requires("ultralytics")),
    ],
)
def test_detectors_give_the_same_results_on_detops(name):
    run_tests(f"peer_{name}.py")
