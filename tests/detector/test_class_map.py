# SPDX-License-Identifier: MIT
"""Class maps that rename categories, and category names in another case."""

import json
import pickle

import pytest
import torch
from PIL import Image

from detops import cli
from detops.cli.options import TREE_CROWNS
from detops.data import (
    AnnotationError,
    CocoDetection,
    LvisDetection,
    Shapes,
    VocDetection,
    load_datasets,
    open_dataset,
    read_class_map,
)


@pytest.fixture
def write(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")

    def write(*names, name="data.json", **extra):
        """Writes a dataset with one object per category; category ids are 10, 20, 30..."""
        ids = [10 * number for number in range(1, len(names) + 1)]
        data = {
            "images": [{"id": 7, "file_name": "a.png", "width": 40, "height": 30}],
            "categories": [{"id": id, "name": n} | extra for id, n in zip(ids, names, strict=True)],
            "annotations": [
                {"id": id, "image_id": 7, "category_id": id, "bbox": [1, 2, id / 10, 5]}
                for id in ids
            ],
        }
        path = tmp_path / name
        path.write_text(json.dumps(data))
        return path

    return write


def test_class_map_renames_categories(write):
    (dataset,) = load_datasets(str(write("Tree", "Auto")), class_map={"tree": "oak", "AUTO": "car"})
    assert dataset.names == ("oak", "car") and dataset[0][1]["labels"].tolist() == [1, 2]
    assert [c["name"] for c in dataset.ground_truth()["categories"]] == ["oak", "car"]


def check_merged(dataset):
    assert dataset.names == ("Tree", "plant") and dataset.category_ids == (10, 20)
    target = dataset[0][1]
    assert target["labels"].tolist() == [1, 2, 2, 1]
    assert target["boxes"][:, 2].tolist() == [2, 3, 4, 5]
    truth = dataset.ground_truth()
    assert [a["category_id"] for a in truth["annotations"]] == [10, 20, 20, 10]
    assert [c["id"] for c in truth["categories"]] == [10, 20]


def test_categories_mapped_to_one_name_are_merged(write):
    dataset = CocoDetection(write("Tree", "Moss", "fern", "oak"))
    dataset.rename({"moss": "plant", "Fern": "Plant", "oak": "tree"})
    check_merged(dataset)
    check_merged(pickle.loads(pickle.dumps(dataset)))
    dataset.rename({"plant": "TREE"})
    assert dataset.names == ("Tree",) and dataset[0][1]["labels"].tolist() == [1] * 4


def test_duplicate_category_names_raise_unless_mapped(write):
    path = str(write("red", "blue", "red", "Red"))
    for open_function in (open_dataset, CocoDetection, load_datasets):
        with pytest.raises(AnnotationError, match=r"data\.json: .*, got 'red' for 10 and 30 "):
            open_function(path)
    with pytest.raises(AnnotationError, match="for 10 and 30"):
        load_datasets(path, class_map={"blue": "azure"})
    (dataset,) = load_datasets([path], class_map={"Red": "ruby"})
    assert dataset.names == ("ruby", "blue") and dataset.category_ids == (10, 20)
    assert dataset[0][1]["labels"].tolist() == [1, 2, 1, 1]
    (shapes,) = load_datasets("shapes:train?length=1", class_map={"ring": "disc"})
    assert shapes.names[4] == "disc"


def test_class_map_rejects_names_that_no_dataset_has(write):
    first, second = str(write("Tree", "Auto")), str(write("tree", "car", name="2.json"))
    # A name may occur in only one of the datasets; a name that occurs in none raises.
    datasets = load_datasets([first, second], class_map={"auto": "car"})
    assert [dataset.names for dataset in datasets] == [("Tree", "car"), ("tree", "car")]
    assert load_datasets(second, class_map={"auto": "car"})[0].names == ("tree", "car")
    with pytest.raises(ValueError, match="no category 'bus' to rename to 'van'; it has .*'Auto'"):
        load_datasets([first, second], class_map={"auto": "car", "bus": "van"})
    with pytest.raises(ValueError, match=r"data\.json: no category 'bus' to rename to 'van'"):
        CocoDetection(first).rename({"bus": "van"})


def test_datasets_match_category_names_ignoring_case(write):
    paths = [str(write("Tree", "Auto")), str(write("TREE", "auto", name="2.json"))]
    assert len(load_datasets(paths)) == 2
    with pytest.raises(ValueError, match="differ"):
        load_datasets([paths[0], str(write("Auto", "Tree", name="3.json"))])


def test_class_map_renames_generated_shapes():
    original = Shapes(length=6, size=48)
    mapped = Shapes(length=6, size=48)
    class_map = {"ellipse": "round", "ring": "round"}
    mapped.rename(class_map)
    assert mapped.names == ("round", "rectangle", "triangle", "star", "cross")
    old_names = set()
    for index in range(6):
        old = [original.names[label - 1] for label in original[index][1]["labels"].tolist()]
        new = [mapped.names[label - 1] for label in mapped[index][1]["labels"].tolist()]
        assert new == [class_map.get(name, name) for name in old]
        old_names |= set(old)
    assert {"ellipse", "ring"} & old_names
    names_by_id = {c["id"]: c["name"] for c in mapped.ground_truth()["categories"]}
    truth = [names_by_id[a["category_id"]] for a in mapped.ground_truth()["annotations"]]
    item_names = [
        mapped.names[label - 1] for i in range(6) for label in mapped[i][1]["labels"].tolist()
    ]
    assert truth == item_names


def test_frequency_groups_follow_merged_labels(write):
    dataset = LvisDetection(write("a", "b", "c", frequency="f"))
    assert dataset.frequency_groups == {"r": (), "c": (), "f": (1, 2, 3)}
    dataset.rename({"a": "b"})
    assert dataset.frequency_groups["f"] == (1, 2)


def test_voc_category_names_ignore_case(tmp_path):
    for folder in ("Annotations", "JPEGImages"):
        (tmp_path / folder).mkdir()
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"

    def labels(*names, **options):
        for number, name in enumerate(names):
            Image.new("RGB", (40, 30)).save(tmp_path / "JPEGImages" / f"{number}.jpg")
            (tmp_path / "Annotations" / f"{number}.xml").write_text(
                "<annotation><size><width>40</width><height>30</height></size>"
                f"<object><name>{name}</name>{box}</object></annotation>"
            )
        dataset = VocDetection(tmp_path, **options)
        return dataset.names, [dataset[i][1]["labels"].tolist() for i in range(len(names))]

    names, found = labels("Cat", "dog")
    assert len(names) == 20 and found == [[8], [12]]
    assert labels("oak", "Elm", "Oak") == (("Elm", "Oak"), [[2], [1], [2]])
    assert labels("oak", "Elm", "Oak", names="OAK,elm") == (("OAK", "elm"), [[1], [2], [1]])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tree=tree,Auto=car", {"Tree": "tree", "Auto": "car"}),
        (" a tree = oak , b=c", {"a tree": "oak", "b": "c"}),
    ],
)
def test_class_map_is_parsed_from_text(text, expected):
    assert read_class_map(text) == expected


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m.yaml", "Tree: tree\n'a,b=c': car\n"),
        ("m.json", '\ufeff{"Tree": "tree", "a,b=c": "car"}'),
        ("m=n.yml", "{Tree: tree, 'a,b=c': car}"),
    ],
)
def test_class_map_is_read_from_yaml_and_json(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_class_map(str(tmp_path / name)) == {"Tree": "tree", "a,b=c": "car"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected pairs as in Tree=tree,Auto=car, or a file"),
        ("none.yaml", r"or a file of them, got none\.yaml \(No such file"),
        ("a=b,", "expected names, got '': ''"),
        ("a=", "expected names, got 'a': ''"),
        ("=b", "expected names, got '': 'b'"),
        ("a=b,A=c", "two names for 'A'"),
    ],
)
def test_invalid_class_map_text_is_rejected(text, message):
    with pytest.raises(ValueError, match=f"class map.*{message}"):
        read_class_map(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "expected pairs of names"),
        ("{", "neither YAML nor JSON"),
        ("a: [3]", r"got 'a': \['3'\]"),
    ]
    + [("", "expected pairs of names"), ("\xff", "neither YAML nor JSON")]
    + [
        ("[" * 3000, "neither YAML nor JSON"),
        ("a: !!timestamp 2026-13-45", "neither YAML nor JSON"),
    ]
    + [("a: &b c\nd: *b", "neither YAML nor JSON"), ("a: !!bool b", "neither YAML nor JSON")]
    + [(str(["x" * 9] * 99), r"expected pairs of names, got .{60}\.\.\.$")],
)
def test_invalid_class_map_file_is_rejected(tmp_path, content, message):
    (tmp_path / "m.yaml").write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=rf"class map .*m\.yaml: .*{message}"):
        read_class_map(str(tmp_path / "m.yaml"))


@pytest.mark.slow
def test_train_and_eval_accept_a_class_map(tmp_path, capsys):
    data = json.loads((TREE_CROWNS / "val.json").read_text())
    data["categories"][0]["name"] = "Crown"
    path, results = tmp_path / "val.json", tmp_path / "results.json"
    path.write_text(json.dumps(data))
    command = ["eval", "--data", str(path), "--images", str(TREE_CROWNS), "--device", "cpu"]
    assert cli.main([*command, "--class-map", "crown"]) == 2
    assert "error: class map: expected pairs as in" in capsys.readouterr().err
    assert cli.main([*command, "--class-map", "crowd=tree"]) == 2
    assert "no category 'crowd' to rename to 'tree'; it has ['Crown']" in capsys.readouterr().err
    assert cli.main([*command, "--class-map", "crown=tree", "--output", str(results)]) == 0
    assert json.loads(results.read_text())["AP50"] >= 0.45
    run = ["train", "--output", str(tmp_path / "run"), "--images", str(TREE_CROWNS)]
    run += ["--device", "cpu", "--class-map", "crown=tree", "SOLVER.MAX_ITER", "1"]
    run += ["SOLVER.IMS_PER_BATCH", "1", "DATALOADER.NUM_WORKERS", "0", "DATASETS.TEST", "[]"]
    assert cli.main([*run, "DATASETS.TRAIN", f"['{path}']"]) == 0, capsys.readouterr().err
    weights = torch.load(tmp_path / "run" / "weights.pt", weights_only=True)
    assert weights["names"] == ["tree"]
