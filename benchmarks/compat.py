"""Times detectors of transformers and ultralytics, alone and on detops, in one process.

python benchmarks/compat.py --size 640 --rounds 5

Models have random weights and their default sizes. Times are median CPU milliseconds of one thread
for one image; both versions run in turn.
"""

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable

warnings.filterwarnings("ignore")
os.environ["HF_HUB_OFFLINE"] = os.environ["YOLO_OFFLINE"] = "1"

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from detops.compat import provide  # noqa: E402


def hugging_face(build: Callable) -> Callable[[Tensor], Callable[[], object]]:
    def prepare(image: Tensor) -> Callable[[], object]:
        import transformers

        model = build(transformers).eval()
        return lambda: model(pixel_values=image)

    return prepare


def deformable_detr(hf):
    backbone = hf.ResNetConfig(out_features=["stage2", "stage3", "stage4"])
    return hf.DeformableDetrForObjectDetection(hf.DeformableDetrConfig(backbone_config=backbone))


def rt_detr(hf):
    return hf.RTDetrForObjectDetection(hf.RTDetrConfig(num_denoising=0))


def mask2former(hf):
    return hf.Mask2FormerForUniversalSegmentation(hf.Mask2FormerConfig())


def yolo_rt_detr(image: Tensor) -> Callable[[], object]:
    from ultralytics.nn.tasks import RTDETRDetectionModel

    model = RTDETRDetectionModel("rtdetr-resnet50.yaml", verbose=False).eval()
    return lambda: model(image)


def yolo_nms(image: Tensor) -> Callable[[], object]:
    import torchvision  # noqa: F401
    from ultralytics.utils.nms import non_max_suppression

    boxes = torch.rand(1, 4, 8400) * 600
    boxes[:, 2:] /= 4
    prediction = torch.cat([boxes, torch.rand(1, 80, 8400) ** 30], 1)
    return lambda: non_max_suppression(prediction.clone(), 0.25, 0.7)


CASES = {
    ("transformers", "Deformable DETR, ResNet-50"): hugging_face(deformable_detr),
    ("transformers", "RT-DETR, ResNet-50"): hugging_face(rt_detr),
    ("transformers", "Mask2Former, Swin-T"): hugging_face(mask2former),
    ("ultralytics", "RT-DETR, ResNet-50"): yolo_rt_detr,
    ("ultralytics", "non_max_suppression, 8400 boxes, 80 classes"): yolo_nms,
}


def once(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return (time.process_time() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    image = torch.randn(1, 3, args.size, args.size)
    print(f"| {args.size} x {args.size} | unmodified, ms | on detops, ms | speedup |")
    print("|---|---:|---:|---:|")
    for (package, title), prepare in CASES.items():
        with torch.inference_mode():
            run = prepare(image)
            times: tuple[list[float], list[float]] = ([], [])
            for k in range(args.rounds + 1):
                before = once(run)
                with provide(package):
                    after = once(run)
                if k:  # the first round warms up
                    times[0].append(before)
                    times[1].append(after)
        theirs, ours = map(statistics.median, times)
        print(
            f"| {package}: {title} | {theirs:.0f} | {ours:.0f} | {theirs / ours:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
