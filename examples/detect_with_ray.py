"""Detects objects in the images of a folder with Ray Data, on one machine or a cluster.

    python examples/detect_with_ray.py photographs --output found --detectors 2

Ray reads the files, keeps the requested number of detectors on the available machines, sends each
its batches, restarts failed detectors, and writes the results as Parquet, one row per image.
"""

import argparse

import numpy as np
import ray
import torch

from detops.cli.options import DEFAULT_WEIGHTS
from detops.data import ImageError
from detops.engine.detect import open_detector
from detops.engine.formats import image_entry
from detops.engine.sources import Source


class DetectorWorker:
    """A detector in a separate process, loaded once."""

    def __init__(self, weights, device, threads, score_threshold):
        torch.set_num_threads(threads)
        self.detector = open_detector(weights, device=device)
        self.score_threshold = score_threshold

    def __call__(self, batch):
        rows = [self.row(*each) for each in zip(batch["path"], batch["bytes"], strict=True)]
        # Lists of varying length require object arrays.
        columns = {key: np.empty(len(rows), object) for key in ("detections", "problem")}
        for i, (entry, problem) in enumerate(rows):
            columns["detections"][i] = entry["detections"]
            columns["problem"][i] = problem
        return {"path": batch["path"]} | columns

    def row(self, path, content):
        try:
            pixels = Source(path, content=content).read()
        except ImageError as error:  # a bad image must not stop the run
            return {"detections": []}, str(error)
        found = self.detector.detect(pixels, self.score_threshold)
        return image_entry(path, pixels.shape, found), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--weights", default=str(DEFAULT_WEIGHTS))
    parser.add_argument("--output", default="found")
    parser.add_argument("--detectors", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each detector")
    parser.add_argument("--device", default="cpu", help="cpu or cuda, one GPU for each detector")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--score-threshold", type=float, default=0.5)
    arguments = parser.parse_args()

    images = ray.data.read_binary_files(arguments.folder, include_paths=True)
    found = images.map_batches(
        DetectorWorker,
        fn_constructor_args=(
            arguments.weights,
            arguments.device,
            arguments.threads,
            arguments.score_threshold,
        ),
        batch_size=arguments.batch,
        concurrency=arguments.detectors,
        num_cpus=arguments.threads,
        num_gpus=1 if arguments.device == "cuda" else 0,
    )
    found.write_parquet(arguments.output)
    rows = ray.data.read_parquet(arguments.output)
    failed = rows.filter(lambda row: row["problem"] != "").count()
    print(f"{rows.count()} images in {arguments.output}, {failed} of them unreadable")


if __name__ == "__main__":
    main()
