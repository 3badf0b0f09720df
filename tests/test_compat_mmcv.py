"""mmcv's ops, unchanged, on detops."""

from peers import needs, run_tests

pytestmark = needs("mmcv")


def test_mmcvs_own_functions():
    run_tests("peer_mmcv.py", "mmcv")
