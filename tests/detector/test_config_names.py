# SPDX-License-Identifier: MIT
"""Data set names as users type them on a command line or write them into a file."""

import pytest

from detops.config import ConfigError, load_config


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("my/train.json", ["my/train.json"]),
        ("[my/train.json]", ["my/train.json"]),
        ("[a.json, b.json]", ["a.json", "b.json"]),
        ("[a.json,b.json,]", ["a.json", "b.json"]),
        ("voc:d?split=train", ["voc:d?split=train"]),
        ("[voc:d?split=train]", ["voc:d?split=train"]),
        (
            "[voc:d?split=train&difficult=use,shapes:test]",
            ["voc:d?split=train&difficult=use", "shapes:test"],
        ),
        ("['voc:d?names=cat,dog']", ["voc:d?names=cat,dog"]),
        ("['a b.json', c.json]", ["a b.json", "c.json"]),
        ("('a', 'b')", ["a", "b"]),
        ("[]", []),
    ],
)
@pytest.mark.parametrize("key", ["TRAIN", "TEST"])
def test_dataset_names_are_parsed_as_users_type_them(key, typed, names, tmp_path):
    assert load_config(None, [f"DATASETS.{key}", typed]).DATASETS[key] == names
    path = tmp_path / "c.yaml"
    path.write_text(f'DATASETS:\n  {key}: "{typed}"\n')
    assert load_config(path).DATASETS[key] == names


@pytest.mark.parametrize("typed", ["", "  ", "[a.json", "5", "a.json, b.json", "(a.json)"])
def test_invalid_dataset_names_are_rejected(typed):
    with pytest.raises(ConfigError, match=r"overrides: DATASETS.TRAIN: expected tuple, got"):
        load_config(None, ["DATASETS.TRAIN", typed])


def test_number_lists_are_parsed_and_reject_words():
    cfg = load_config(None, ["SOLVER.STEPS", "[3, 4]", "MODEL.RPN.ANCHOR_SIZES", "(8, 16)"])
    assert cfg.SOLVER.STEPS == [3, 4] and cfg.MODEL.RPN.ANCHOR_SIZES == [8, 16]
    for typed in ("3, x", "x", "[x"):
        with pytest.raises(ConfigError, match=r"SOLVER\.STEPS"):
            load_config(None, ["SOLVER.STEPS", typed])
