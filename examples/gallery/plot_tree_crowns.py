"""
Tree crowns in an aerial photograph
===================================

The shipped detector, on a photograph that its training has not seen.
"""

import matplotlib.pyplot as plt

from detops.data import open_dataset
from detops.engine import Detector
from detops.visualize import draw_detections

# %%
# A data set is opened by its path, a detector by that of its weights.
dataset = open_dataset("tree_crowns/val.json")
photograph = dataset.image_path(0)
detector = Detector.from_checkpoint(photograph.with_name("weights.pt"))
found = detector.detect(photograph, score_threshold=0.5)
print(f"{len(found['scores'])} crowns, the surest with a score of {found['scores'][0]:.2f}")

# %%
# In yellow what was found, in blue what people marked.
truth = dataset.target(0)["boxes"]
picture = draw_detections(photograph, found["boxes"], found["scores"], ground_truth=truth)
plt.figure(figsize=(6, 9))
plt.imshow(picture)
plt.axis("off")
plt.show()
