"""Tests which config files of mmdet build, detect and train on detops, without mmcv's ops.

python benchmarks/mmdet_configs.py --output benchmarks/results/mmdetection.json
python benchmarks/mmdet_configs.py --only faster_rcnn/ --run all --output some.json
python benchmarks/mmdet_configs.py --output some.json --page docs/mmdetection.md

Every config is built. One small config per folder and model class also detects objects in a noise
image and runs a training step with two images, from random weights on CPU. Results are appended to
--output immediately; configs already in it are skipped. Each attempt is a separate process with one
thread. Requires mmcv-lite, mmengine, mmdet and scipy. Some configs also require fairscale, lap,
motmetrics and scikit-learn (all without their dependencies).
"""

import argparse
import copy
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ["HF_HUB_OFFLINE"] = "1"  # do not download language models

import numpy  # noqa: E402
import torch  # noqa: E402

import detops.compat  # noqa: E402

detops.compat.provide("mmcv")

import mmdet  # noqa: E402
from mmdet.registry import MODELS  # noqa: E402
from mmdet.testing._utils import (  # noqa: E402
    demo_mm_inputs,
    demo_mm_proposals,
    demo_track_inputs,
)
from mmdet.utils import register_all_modules  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.logging import MessageHub  # noqa: E402
from mmengine.registry import init_default_scope  # noqa: E402

CONFIGS = Path(mmdet.__file__).parent / ".mim" / "configs"
# Necks with weights that stay uninitialized until init_weights, or overflow unless they are zero.
UNINITIALIZED = ("SSDNeck", "RFP")
PAGE = """# Run mmdetection

    pip install "mmcv-lite<2.2" mmengine mmdet detops

mmdet 3.3.0 refuses mmcv 2.2. detops provides the compiled half that `mmcv-lite` lacks
([how](from-mmcv.md)), so you need no compiler. Put two lines before your program:

    import detops.compat

    detops.compat.provide("mmcv")

    from mmdet.apis import DetInferencer

    inferencer = DetInferencer("faster-rcnn_r50_fpn_1x_coco", device="cpu")  # downloads the weights
    inferencer("photo.jpg", out_dir="detections")

The result is `detections/vis/photo.jpg`. Without a network, put the `.pth` file that the log names
into `~/.cache/torch/hub/checkpoints`. Or pass a config file instead of the name, such as
`mmdet/.mim/configs/faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py` in site-packages: the weights are
then random, and all scores below the threshold of the config.

If a checkpoint of your own raises `UnpicklingError: Weights only load failed`, set
`TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`: mmengine 0.10 stores more than tensors in it. Do so only with
files that you trust.

To leave programs unchanged, run `detops compat enable mmcv` once. The command line requires
`pip install "detops[detector]"`.

## What works

`benchmarks/mmdet_configs.py` tests which configs work, with PyTorch {torch} on CPU. Of the {files}
config files in the wheel of mmdet {version}, {models} describe a model.

- **Built**: {built} of {models}, with random weights.
- **Run**: one config per folder and model class detects objects in a small image and runs a
  training step with two images. {run} of {tried} do both.

"""


def nodes(config):
    """Yields every dict in a config."""
    if isinstance(config, dict):
        yield config
        config = list(config.values())
    if isinstance(config, (list, tuple)):
        for item in config:
            yield from nodes(item)


def kind(name, model):
    """Returns the group of a config: its folder and model class."""
    kind = model["type"]
    return f"{name.split('/')[0]} {kind if isinstance(kind, str) else kind.__name__}"


def without_weights(model):
    for node in nodes(model):
        for key in ("init_cfg", "pretrained", "checkpoint", "teacher_ckpt"):
            if node.get(key) and not isinstance(node[key], bool):
                node[key] = None
    return model


def small(model):
    """Pads to the actual image size where the config pads images to 1024 pixels."""
    for node in nodes(model):
        if node.get("type") == "BatchFixedSizePad":
            node["size"] = (image_size(model), image_size(model))
    return model


def load(name):
    init_default_scope("mmdet")
    with torch.random.fork_rng():
        config = Config.fromfile(CONFIGS / name)
    model = config.get("model")
    return small(without_weights(model)) if model and model.get("type") else None


def image_size(config):
    if "SSD" in config["type"] or "SSD" in str(config.get("backbone")):
        return 320
    # Two-stage transformers select their queries among the pixels of all levels.
    return 256 if max(n.get("num_queries") or 0 for n in nodes(config)) > 300 else 128


def data(model, config, train):
    """Returns noise images with boxes, masks and stuff."""
    counts = [
        n[k] for n in nodes(config) for k in ("num_classes", "num_things_classes") if n.get(k)
    ]
    classes = min([c for c in counts if isinstance(c, int)], default=1)
    size = image_size(config)
    options = dict(
        image_shapes=(3, size, size),
        num_classes=min(max(classes, 2), 255),  # stored as bytes
        with_mask=any("pad_mask" in n or "mask_head" in n for n in nodes(config)),
        batch_size=2 if train else 1,  # masked convolutions accept one image at a time
    )
    if "detector" in config and "tracker" in config or "track_head" in config:
        batch = demo_track_inputs(num_frames=2, key_frames_inds=[0], **options)
    else:
        batch = demo_mm_inputs(with_semantic=True, sem_seg_output_strides=1, **options)
    for sample in batch["data_samples"]:
        for frame in getattr(sample, "video_data_samples", [sample]):
            frame.gt_instances.labels %= classes
            if "rpn_head" not in config and "roi_head" in config:
                frame.proposals = demo_mm_proposals([options["image_shapes"]], 20)[0]
    if train and "semi_train_cfg" in config:
        for sample in batch["data_samples"]:
            sample.set_metainfo({"homography_matrix": numpy.eye(3, dtype="float32")})
        branches = ("sup", "unsup_teacher", "unsup_student")
        batch = {key: {b: copy.deepcopy(part) for b in branches} for key, part in batch.items()}
    return model.data_preprocessor(batch, train)


def infer(model, config):
    model.eval()
    with torch.no_grad():
        results = model(**data(model, config, False), mode="predict")
    if not len(results):
        raise RuntimeError("no results")


def train(model, config):
    model.train()
    # Some losses and augmentations read these from the training loop.
    MessageHub.get_current_instance().update_info_dict({"iter": 1, "epoch": 0, "max_iters": 10})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    losses = model(**data(model, config, True), mode="loss")
    loss, _ = model.parse_losses(losses)
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    if not grads or not loss.isfinite() or not any(bool((g != 0).any()) for g in grads):
        raise RuntimeError(f"loss {loss.item()} with {len(grads)} gradients")
    optimizer.step()


def reason(error):
    return short(f"{type(error).__name__}: {' '.join(str(error).split())}")


def attempt(name, run, connection):
    """Tries one config, in a separate process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.disable(logging.WARNING)  # hides the log of parameter initialization
    result = {}
    try:
        config = load(name)
        if config is None:
            result["build"] = "no model"
            return
        result["kind"] = kind(name, config)
        if not run:  # skips random values that are never used
            for initial in ("uniform_", "normal_", "kaiming_uniform_", "trunc_normal_"):
                setattr(torch.nn.init, initial, lambda tensor, *_, **__: tensor)
        if "MMSyncBN" in str(config):
            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        model = MODELS.build(config)
        result["build"] = "ok"
        if run and any(neck in str(config.get("neck")) for neck in UNINITIALIZED):
            model.init_weights()
        for title, action in (("infer", infer), ("train", train)) if run else ():
            try:
                action(model, config)
                result[title] = "ok"
            except Exception as error:
                result[title] = reason(error)
    except Exception as error:
        result["build"] = reason(error)
    finally:
        connection.send(result)
        connection.close()


class Workers:
    """Runs at most ``count`` attempts at a time, each for at most ``limit`` seconds."""

    def __init__(self, count, limit):
        self.count, self.limit = count, limit
        self.running = {}

    def collect(self, max_running):
        """Yields finished attempts, until at most ``room`` are running."""
        while len(self.running) > max_running:
            ready = multiprocessing.connection.wait(list(self.running), timeout=1)
            for connection in list(self.running):
                name, process, start = self.running[connection]
                if connection in ready:
                    try:
                        result = connection.recv()
                    except EOFError:
                        result = {"build": "the process died"}
                elif time.monotonic() - start > self.limit:
                    os.kill(process.pid, signal.SIGKILL)
                    result = {"build": f"longer than {self.limit} s"}
                else:
                    continue
                process.join()
                del self.running[connection]
                yield name, result

    def start(self, name, run):
        receiver, sender = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=attempt, args=(name, run, sender)
        )
        process.start()
        sender.close()
        self.running[receiver] = (name, process, time.monotonic())


def sweep(names, run, results, save, workers):
    for name in names:
        for finished in workers.collect(workers.count - 1):
            save(results, *finished)
        workers.start(name, run)
    for finished in workers.collect(0):
        save(results, *finished)


def config_size(name):
    """Sorts small configs first."""
    large = re.findall(r"swin-[bl]|x101|r101|s101|_l_|_x_|res2net|ms-|lsj|amp|_base_", name)
    return len(large), len(name), name


def representatives(results):
    """Returns one config of each kind, preferring those that have run before."""
    first = {}
    built = {n: r for n, r in results.items() if r["build"] == "ok" and "_base_" not in n}
    for name in sorted(built, key=lambda name: ("infer" not in built[name], *config_size(name))):
        first.setdefault(built[name]["kind"], name)
    return sorted(first.values())


# Replacements for reasons that contain addresses and paths.
KNOWN_REASONS = {
    "huggingface": "requires a language model from the network",
    "fairscale": "fairscale is not installed",
    "mmpretrain": "mmpretrain cannot be imported with transformers 5",
    "sklearn": "scikit-learn is not installed",
    "lap is not": "lap is not installed",
    "motmetrics": "motmetrics is not installed",
    "Detectron2": "detectron2 is not installed",
    "(No such file|does not exist)": "refers to a config file that the wheel lacks",
}


def short(text):
    """Returns a reason without machine-specific parts."""
    for pattern, replacement in KNOWN_REASONS.items():
        if re.search(pattern, text):
            return replacement
    text = re.sub(r"(/[\w.\-]+){2,}/", "", text).replace("|", "/").replace("`", "'")
    return text if len(text) < 110 else text[:107] + "..."


def page(results):
    models = {n: r for n, r in results.items() if "_base_" not in n and r["build"] != "no model"}
    attempted = {n: r for n, r in models.items() if "infer" in r}
    passed = [n for n, r in attempted.items() if r["infer"] == r["train"] == "ok"]
    built = [n for n, r in models.items() if r["build"] == "ok"]
    lines = [
        PAGE.format(
            files=len(results),
            models=len(models),
            built=len(built),
            tried=len(attempted),
            run=len(passed),
            version=mmdet.__version__,
            torch=torch.__version__.split("+")[0],
        ),
        "| folder | configs | built | run | tried |",
        "|---|---:|---:|---:|---:|",
    ]
    folders = defaultdict(list)
    for name in models:
        folders[name.split("/")[0]].append(name)
    for folder, names in sorted(folders.items()):
        counts = [len([n for n in names if n in group]) for group in (built, passed, attempted)]
        lines.append(f"| {folder} | {len(names)} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "## Configs that do not build", "", "| configs | reason |", "|---|---|"]
    reasons = Counter(r["build"] for r in models.values() if r["build"] != "ok")
    lines += [f"| {count} | `{text}` |" for text, count in reasons.most_common()]
    lines += ["", "## Configs that do not run", "", "| config | step | reason |", "|---|---|---|"]
    for name, result in sorted(attempted.items()):
        for step in ("infer", "train"):
            if result[step] != "ok":
                lines.append(f"| `{name}` | {step} | `{result[step]}` |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file to read and extend")
    parser.add_argument(
        "--only", default="", help="configs whose path matches this regular expression"
    )
    parser.add_argument("--run", choices=("some", "all", "none"), default="some")
    parser.add_argument("--page", type=Path, help="page to write, without running any config")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit", type=float, default=180, help="seconds for one config")
    args = parser.parse_args()
    results = json.loads(args.output.read_text()) if args.output.exists() else {}
    if args.page:
        args.page.write_text(page(results))
        return

    def save(results, name, result):
        results[name] = {**results.get(name, {}), **result}
        shown = {k: v for k, v in result.items() if k != "kind"}
        print(f"{len(results)} {name} {shown}", flush=True)
        args.output.write_text(json.dumps(results, indent=0, sort_keys=True) + "\n")

    register_all_modules(init_default_scope=False)  # once here instead of in each process
    names = sorted(str(p.relative_to(CONFIGS)) for p in CONFIGS.rglob("*.py"))
    names = [n for n in names if re.search(args.only, n)]
    workers = Workers(args.workers, args.limit)
    if args.run == "all":
        sweep([n for n in names if "infer" not in results.get(n, {})], True, results, save, workers)
        return
    sweep([n for n in names if n not in results], False, results, save, workers)
    if args.run == "some":
        selected = [n for n in representatives(results) if "infer" not in results[n] and n in names]
        sweep(selected, True, results, save, workers)


if __name__ == "__main__":
    sys.exit(main())
