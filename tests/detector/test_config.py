import math

import pytest
from omegaconf import OmegaConf

from detops.config import DEFAULTS, SAMPLE_ITEMS, ConfigError, dump_config, load_config
from detops.ranges import RANGE_BY_KEY, RANGES, Range, violated_range


def write(path, text):
    file = path / "config.yaml"
    file.write_text(text)
    return file


def test_defaults_match_maskrcnn_benchmark():
    cfg = load_config()
    assert cfg.MODEL.RPN.NMS_THRESH == 0.7
    assert cfg.MODEL.ROI_HEADS.DETECTIONS_PER_IMG == 100
    assert tuple(cfg.MODEL.ROI_HEADS.BBOX_REG_WEIGHTS) == (10, 10, 5, 5)
    assert cfg.SOLVER.WARMUP_FACTOR == pytest.approx(1 / 3)


def test_file_and_overrides_replace_the_defaults(tmp_path):
    file = write(
        tmp_path,
        """
MODEL:
  BACKBONE: {CONV_BODY: "R-50-FPN"}
  RPN:
    ANCHOR_STRIDE: (4, 8, 16, 32, 64)
    NMS_THRESH: 1
SOLVER: {BASE_LR: 1e-3, STEPS: "(60000, 80000)"}
""",
    )
    overrides = ["MODEL.MASK_ON", "true", "SOLVER.MAX_ITER", "7", "OUTPUT_DIR", "12"]
    cfg = load_config(file, overrides)
    assert cfg.MODEL.BACKBONE.CONV_BODY == "R-50-FPN"
    assert list(cfg.MODEL.RPN.ANCHOR_STRIDE) == [4, 8, 16, 32, 64]
    assert cfg.MODEL.RPN.NMS_THRESH == 1.0 and isinstance(cfg.MODEL.RPN.NMS_THRESH, float)
    assert cfg.SOLVER.BASE_LR == 1e-3 and list(cfg.SOLVER.STEPS) == [60000, 80000]
    assert cfg.MODEL.MASK_ON is True and cfg.SOLVER.MAX_ITER == 7 and cfg.OUTPUT_DIR == "12"


def test_shipped_configs_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = load_config("configs/shapes.yaml", ["SOLVER.MAX_ITER", 7])
    assert cfg.SOLVER.MAX_ITER == 7 and cfg == load_config(
        DEFAULTS.with_name("shapes.yaml"), ["SOLVER.MAX_ITER", 7]
    )
    for name in ("configs/none.yaml", "shapes.yaml", "configs/../config.py"):
        with pytest.raises(ConfigError, match=f"^{name}: cannot be read: No such file"):
            load_config(name)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "shapes.yaml").write_text("SOLVER: {MAX_ITER: 3}")
    cfg = load_config("configs/shapes.yaml")  # A local file takes precedence.
    assert cfg.SOLVER.MAX_ITER == 3 and cfg.DATASETS == load_config().DATASETS


def test_nested_lists_are_converted_to_the_default_item_type(tmp_path):
    file = write(tmp_path, "MODEL: {RPN: {ANCHOR_SIZES: '((8, 16), (32,))', ASPECT_RATIOS: [1]}}")
    cfg = load_config(file, ["MODEL.RPN.ANCHOR_STRIDE", "(8, 16)", "SOLVER.STEPS", "()"])
    assert cfg.MODEL.RPN.ANCHOR_SIZES == [[8.0, 16.0], [32.0]]
    assert isinstance(cfg.MODEL.RPN.ASPECT_RATIOS[0], float) and cfg.SOLVER.STEPS == []
    # The type comes from the default, even after a file has replaced the value.
    cfg = load_config(file, ["MODEL.RPN.ANCHOR_SIZES", (4, 8), "MODEL.RPN.ANCHOR_SIZES", ((2, 3),)])
    assert cfg.MODEL.RPN.ANCHOR_SIZES == [[2.0, 3.0]]
    assert load_config(None, ["DATASETS.TRAIN", ("a",)]).DATASETS.TRAIN == ["a"]


def test_config_round_trips_and_is_read_only(tmp_path):
    cfg = load_config(None, ["SOLVER.MAX_ITER", 5])
    assert load_config(write(tmp_path, dump_config(cfg))) == cfg
    with pytest.raises(Exception, match="read-only"):
        cfg.SOLVER.MAX_ITER = 6
    assert load_config().SOLVER.MAX_ITER == 40000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MODEL: {RPN: {NMS_TRESH: 0.5}}", "config.yaml: unknown key MODEL.RPN.NMS_TRESH; known"),
        ("MODEL: {MASK_ON: 1}", "config.yaml: MODEL.MASK_ON: expected bool, got int 1"),
        ("SOLVER: {MAX_ITER: 1.5}", "config.yaml: SOLVER.MAX_ITER: expected int, got float 1.5"),
        ("SOLVER: {MAX_ITER: true}", "SOLVER.MAX_ITER: expected int, got bool True"),
        ("SOLVER: {STEPS: many}", "SOLVER.STEPS: expected tuple, got str 'many'"),
        ("SOLVER: 3", "config.yaml: SOLVER: expected keys and values, got 3"),
        ("MODEL: {WEIGHT: 3}", "MODEL.WEIGHT: expected str, got int 3"),
        ("SOLVER: {STEPS: '(1, x)'}", "SOLVER.STEPS: expected tuple, got str '.1, x.'"),
        ("SOLVER: {STEPS: [1, x]}", r"config.yaml: SOLVER.STEPS\[1\]: expected int, got str 'x'"),
        ("SOLVER: {STEPS: [[1]]}", r"SOLVER.STEPS\[0\]: expected int, got list"),
        (
            "MODEL: {RESNETS: {STAGE_WITH_DCN: '(0, 1, 1, 1)'}}",
            r"MODEL.RESNETS.STAGE_WITH_DCN\[0\]: expected bool, got int 0",
        ),
        ("MODEL: {RPN: {ANCHOR_SIZES: [[8, a]]}}", r"RPN.ANCHOR_SIZES\[0\]\[1\]: expected float"),
        ("MODEL: {RPN: {ANCHOR_SIZES: [[[8]]]}}", r"RPN.ANCHOR_SIZES\[0\]\[0\]: expected float"),
        ("MODEL: {RPN: {ANCHOR_STRIDE: 16}}", "MODEL.RPN.ANCHOR_STRIDE: expected tuple, got int"),
        ("MODEL: {ROI_BOX_HEAD: 7}", "MODEL.ROI_BOX_HEAD: expected keys and values, got 7"),
        ("MODEL: {ROI_BOX_HEAD: {X: {Y: 1}}}", "unknown key MODEL.ROI_BOX_HEAD.X; known keys: FEA"),
        ("MODEL: {RPN: {NMS_THRESH: {A: 1}}}", "MODEL.RPN.NMS_THRESH: expected float, got dict"),
        ("DATASETS: {TRAIN: (coco_2014_train)}", "DATASETS.TRAIN: expected tuple, got str"),
        ("DATASETS: {TRAIN: [3]}", r"DATASETS.TRAIN\[0\]: expected str, got int 3"),
        ("TEST: {BBOX_AUG: {SCALES: [4.5]}}", r"TEST.BBOX_AUG.SCALES\[0\]: expected int"),
        ("{[1]: 2}", "config.yaml: not YAML"),
        (
            "SOLVER: {BASE_LR: .nan}",
            "config.yaml: SOLVER.BASE_LR: expected a finite number, got nan",
        ),
        (
            "SOLVER: {BASE_LR: .inf}",
            "config.yaml: SOLVER.BASE_LR: expected a finite number, got inf",
        ),
        ("SOLVER: {BASE_LR: -0.1}", "config.yaml: SOLVER.BASE_LR: expected at least 0, got -0.1"),
        ("SOLVER: {MAX_ITER: -3}", "config.yaml: SOLVER.MAX_ITER: expected at least 1, got -3"),
        ("SOLVER: {STEPS: [1, -2]}", "SOLVER.STEPS: expected at least 0, got .1, -2."),
        (
            "SOLVER: {EMA_DECAY: 1.0}",
            "SOLVER.EMA_DECAY: expected at least 0 and less than 1, got 1",
        ),
        ("INPUT: {PIXEL_MEAN: [1, .inf, 1]}", "INPUT.PIXEL_MEAN: expected a finite number, got"),
        ("INPUT: {PIXEL_STD: [1, 0, 1]}", "INPUT.PIXEL_STD: expected more than 0, got .1.0, 0.0"),
        ("MODEL: {RETINANET: {PRIOR_PROB: 1}}", "expected more than 0 and less than 1, got 1"),
        ("INPUT: {MIN_SIZE_TRAIN: []}", "INPUT.MIN_SIZE_TRAIN: expected at least one value, got"),
        (
            "OUTPUT_DIR: '${oc.env:HOME}'",
            "config.yaml: OUTPUT_DIR: placeholders are not supported, got",
        ),
        (
            "MODEL: {WEIGHT: 'a${MODEL.DEVICE}'}",
            "MODEL.WEIGHT: placeholders are not supported, got 'a",
        ),
        (
            "DATASETS: {TRAIN: ['${oc.env:HOME}']}",
            r"TRAIN\[0\]: placeholders are not supported, got",
        ),
        ("OUTPUT_DIR: ???", "OUTPUT_DIR: placeholders are not supported, got '...'"),
        (
            "SOLVER:\n  MAX_ITER: 1\n  MAX_ITER: 2",
            "config.yaml:3: duplicate key MAX_ITER, first set in line 2",
        ),
        (
            "SOLVER: {MAX_ITER: 1, MAX_ITER: 1}",
            "config.yaml:1: duplicate key MAX_ITER, first set in line 1",
        ),
        (
            "MODEL: {}\nSOLVER: {}\nMODEL: {}",
            "config.yaml:3: duplicate key MODEL, first set in line 1",
        ),
        ("1: 2", "config.yaml: unknown key 1; known keys: MODEL"),
        ("MODEL:", "config.yaml: MODEL: expected keys and values, got None"),
        ("- a", "config.yaml: expected keys and values, got list"),
        ("a: [", "config.yaml: not YAML"),
        ("a: " + "[" * 3000, "config.yaml: not YAML: maximum recursion depth"),
        ("a: 2026-13-45", "config.yaml: not YAML: month must be in"),
        ("a: !!bool foo", "config.yaml: not YAML: a value does not match its tag"),
        ("a: !!timestamp foo", "config.yaml: not YAML: a value does not match its tag"),
        ("a: !!int ''", "config.yaml: not YAML: a value does not match its tag"),
        ("a: !!float ''", "config.yaml: not YAML: a value does not match its tag"),
        ("a: !!int [1]", "config.yaml: not YAML: expected a number of at most 100"),
        ("a: " + "9" * 400, "config.yaml: not YAML: expected a number of at most 100"),
        ("a: 1" + ":1" * 100_000, "config.yaml: not YAML: expected a number of at most 100"),
        (
            f"SOLVER: {{BASE_LR: '{'9' * 400}'}}",
            "config.yaml: SOLVER.BASE_LR: expected a 64-bit number, got an integer of 1329 bits",
        ),
        (f"SOLVER: {{MAX_ITER: '0x{'f' * 9999}'}}", "MAX_ITER: expected a 64-bit number, got"),
        (f"SOLVER: {{BASE_LR: '{'9' * 5000}'}}", "BASE_LR: expected float, got str '9999"),
        ("SOLVER: {BASE_LR: '{[]: 1}'}", r"SOLVER.BASE_LR: expected float, got str '{\[\]: 1}'"),
        (f"SOLVER: {{BASE_LR: '{'-' * 100_000}1'}}", "SOLVER.BASE_LR: expected float, got str"),
        (f"SOLVER: {{BASE_LR: '{'1+' * 100_000}1'}}", "SOLVER.BASE_LR: expected float, got str"),
        ("TEST: {EXPECTED_RESULTS: [[2026-01-01]]}", r"RESULTS\[0\]: expected strings and numbers"),
        (
            "TEST: {EXPECTED_RESULTS: [[a, '${b}']]}",
            r"RESULTS\[0\]: placeholders are not supported",
        ),
        (
            "a: &b [1]\nc: *b",
            r"config.yaml: not YAML: aliases are not supported, got \*b",
        ),
    ],
)
def test_errors_name_key_and_file(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message) as error:
        load_config(write(tmp_path, text))
    assert "\n" not in str(error.value)


def leaves(section, prefix=""):
    for key, value in section.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_every_number_has_a_range_that_contains_its_default():
    numbers = set()
    for key, value in leaves(OmegaConf.to_container(load_config())):
        first = value[0] if isinstance(value, list) and value else SAMPLE_ITEMS.get(key, value)
        if type(first) in (int, float):
            numbers.add(key)
            assert violated_range(key, value) is None, key
    assert numbers == set(RANGE_BY_KEY) and len(numbers) > 100
    assert len(RANGE_BY_KEY) == sum(map(len, RANGES.values()))


@pytest.mark.slow
@pytest.mark.parametrize("key", RANGE_BY_KEY)
def test_numbers_outside_their_range_are_rejected(key):
    default = OmegaConf.select(load_config(), key)
    is_tuple = OmegaConf.is_list(default)
    item = default[0] if is_tuple and default else SAMPLE_ITEMS.get(key, default)
    bounds = RANGE_BY_KEY[key]
    invalid = [math.nan, math.inf, -math.inf] if isinstance(item, float) else []
    step = 1 if isinstance(item, int) else 0.5
    for bound, outside_value, is_exclusive in (
        (bounds.minimum, bounds.minimum - step, bounds.exclusive_minimum),
        (bounds.maximum, bounds.maximum + step, bounds.exclusive_maximum),
    ):
        if math.isfinite(bound):
            invalid += [type(item)(outside_value)] + [type(item)(bound)] * is_exclusive
    assert invalid or bounds == Range()
    for value in invalid:
        with pytest.raises(ConfigError, match=f"^overrides: {key}: expected (more|at|less|a fin)"):
            load_config(None, [key, (value,) if is_tuple else value])
    for bound, is_exclusive in (
        (bounds.minimum, not bounds.exclusive_minimum),
        (bounds.maximum, not bounds.exclusive_maximum),
    ):
        if math.isfinite(bound) and is_exclusive:
            value = type(item)(bound)
            load_config(None, [key, (value,) if is_tuple else value])


def test_invalid_overrides_raise_config_errors():
    with pytest.raises(ConfigError, match="DATASETS.TEST: expected tuple, got str 'a.json, b'"):
        load_config(None, ["DATASETS.TEST", "a.json, b"])
    with pytest.raises(ConfigError, match="overrides: unknown key MODEL.MASKON"):
        load_config(None, ["MODEL.MASKON", True])
    with pytest.raises(ConfigError, match="overrides: SOLVER.MAX_ITER: expected int, got str 'x'"):
        load_config(None, ["SOLVER.MAX_ITER", "x"])
    with pytest.raises(ConfigError, match="expected pairs of key and value"):
        load_config(None, ["SOLVER.MAX_ITER"])
    with pytest.raises(ConfigError, match="nowhere.yaml: cannot be read"):
        load_config("nowhere.yaml")
