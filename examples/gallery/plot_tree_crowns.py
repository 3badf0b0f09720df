"""
Tree crowns in an aerial photograph
===================================

The shipped detector finds the crowns in a photograph that it was not trained on.
"""

import matplotlib.pyplot as plt

from detops.data import open_dataset
from detops.engine import Detector
from detops.visualize import draw_detections

# %%
# Open a dataset by its path, and a detector by the path of its weights.
dataset = open_dataset("tree_crowns/val.json")
photograph = dataset.image_path(0)
detector = Detector.from_checkpoint(photograph.with_name("weights.pt"))
found = detector.detect(photograph, score_threshold=0.5)
print(f"{len(found['scores'])} crowns, highest score {found['scores'][0]:.2f}")

# %%
# Detections are yellow; manual annotations are blue.
truth = dataset.target(0)["boxes"]
image = draw_detections(photograph, found["boxes"], found["scores"], ground_truth=truth)
plt.figure(figsize=(6, 9))
plt.imshow(image)
plt.axis("off")
plt.show()
