"""
Suppressing duplicate boxes
===========================

A detector finds each object many times. :func:`detops.nms` keeps the best box of each object.
:func:`detops.soft_nms` lowers the scores of the others instead.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle

import detops

# %%
# Forty boxes around five objects. Boxes with higher scores are closer to their objects.
generator = torch.Generator().manual_seed(0)
objects = torch.tensor([[20.0, 20], [60, 25], [95, 60], [30, 70], [70, 75]])
scores = torch.rand(40, generator=generator)
noise = torch.randn(40, 4, generator=generator) * (6 * (1 - scores[:, None]))
centre = objects.repeat(8, 1)
boxes = torch.cat([centre - 14, centre + 14], 1) + noise

# %%
# All three results in one figure. More opaque boxes have higher scores.
keep = detops.nms(boxes, scores, 0.4)
soft, lowered = detops.soft_nms(boxes, scores, method="gaussian", min_score=0.1)

figure, axes = plt.subplots(1, 3, figsize=(11, 3.6))
for axis, title, indices, values in (
    (axes[0], "all boxes", torch.arange(40), scores),
    (axes[1], f"nms keeps {len(keep)}", keep, scores[keep]),
    (axes[2], f"soft_nms keeps {len(soft)}", soft, lowered),
):
    for (x1, y1, x2, y2), value in zip(boxes[indices].tolist(), values.tolist(), strict=True):
        rectangle = {"xy": (x1, y1), "width": x2 - x1, "height": y2 - y1}
        axis.add_patch(Rectangle(**rectangle, fill=False, edgecolor="#1b6ca8", alpha=value))
    axis.set(xlim=(-5, 120), ylim=(100, -5), title=title, aspect="equal")
plt.show()
