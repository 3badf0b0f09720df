"""A `detops train` run of seconds on generated shapes."""

from detops import cli
from detops.cli.options import PACKAGE

NETWORK = [
    *("MODEL.RESNETS.STEM_OUT_CHANNELS", "16", "MODEL.RESNETS.RES2_OUT_CHANNELS", "16"),
    *("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", "16", "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", "32"),
    *("MODEL.ROI_MASK_HEAD.CONV_LAYERS", "[16]", "DTYPE", "float32"),
    *("INPUT.MIN_SIZE_TRAIN", "[48]", "INPUT.MIN_SIZE_TEST", "48"),
]
SHORT = [
    *("DATASETS.TRAIN", '["shapes:train?length=12&size=48"]', "DATASETS.TEST", "[]"),
    *("SOLVER.IMS_PER_BATCH", "2", "SOLVER.MAX_ITER", "6", "SOLVER.CHECKPOINT_PERIOD", "2"),
]


def arguments(output, *overrides):
    config = PACKAGE / "configs" / "shapes.yaml"
    base = ["--config", config, "--output", output, "--device", "cpu"]
    options = [c for c in overrides if str(c).startswith("--")]
    key_values = [c for c in overrides if not str(c).startswith("--")]
    return [str(a) for a in ["train", *base, *options, *NETWORK, *SHORT, *key_values]]


def train(output, *overrides):
    """Runs the command and returns its status."""
    return cli.main(arguments(output, *overrides))
