"""Unchanged mmcv ops on detops."""

import pytest
from peers import requires, run_tests

pytestmark = requires("mmcv")


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", ["peer_mmcv.py", "peer_mmcv_maps.py"])
def test_mmcv_functions_give_the_expected_results(file):
    run_tests(file, "mmcv")
