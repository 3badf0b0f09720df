"""mmdet detectors, built from mmdet configs, detect and train a step without mmcv ops."""

import json

import pytest
from paths import ROOT
from peers import python, requires, run_tests

SCRIPT = ROOT / "benchmarks" / "mmdet_configs.py"
pytestmark = [
    *requires("mmcv", "mmdet", "scipy"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="needs the source tree"),
]
# They call every op that the common detectors call; benchmarks/mmdet_configs.py tries all configs.
DETECTORS = {
    "Mask R-CNN": "mask_rcnn/mask-rcnn_r50_fpn_1x_coco",
    "RetinaNet": "retinanet/retinanet_r18_fpn_1x_coco",
    "RepPoints": "reppoints/reppoints-moment_r50_fpn_1x_coco",
    "RTMDet": "rtmdet/rtmdet_tiny_8xb32-300e_coco",
    "SOLOv2": "solov2/solov2_r50_fpn_1x_coco",
    "PointRend": "point_rend/point-rend_r50-caffe_fpn_ms-1x_coco",
    "Mask2Former": "mask2former/mask2former_r50_8xb2-lsj-50e_coco",
    "Deformable DETR": "deformable_detr/deformable-detr_r50_16xb2-50e_coco",
    "Guided Anchoring": "guided_anchoring/ga-retinanet_r50-caffe_fpn_1x_coco",
    "DCNv1": "dcn/faster-rcnn_r50-dconv-c3-c5_fpn_1x_coco",
    "DCNv2": "dcnv2/faster-rcnn_r50-mdconv-c3-c5_fpn_1x_coco",
    "CARAFE": "carafe/faster-rcnn_r50_fpn-carafe_1x_coco",
    "DetectoRS": "detectors/cascade-rcnn_r50-rfp_1x_coco",
}


@pytest.mark.exhaustive
def test_mmdet_matchers_give_the_same_matches():
    run_tests("peer_mmdet.py")


@pytest.mark.exhaustive
def test_mmdet_detectors_build_detect_and_train(tmp_path):
    path = tmp_path / "results.json"
    pattern = "^(" + "|".join(DETECTORS.values()).replace("+", r"\+") + r")\.py$"
    python(SCRIPT, "--only", pattern, "--run", "all", "--limit", 900, "--output", path)
    results = json.loads(path.read_text())
    steps = ("build", "infer", "train")
    statuses = {
        name: [results[f"{config}.py"][step] for step in steps]
        for name, config in DETECTORS.items()
    }
    assert statuses == dict.fromkeys(DETECTORS, ["ok", "ok", "ok"])
