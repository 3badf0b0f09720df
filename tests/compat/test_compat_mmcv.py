"""mmcv's ops, unchanged, on detops."""

import pytest
from peers import needs, run_tests

pytestmark = needs("mmcv")


@pytest.mark.parametrize("file", ["peer_mmcv.py", "peer_mmcv_maps.py"])
def test_mmcvs_own_functions(file):
    run_tests(file, "mmcv")
