"""
Boxes that learn to overlap
===========================

The overlap losses have gradients everywhere. An optimizer moves boxes onto their targets, even if
they do not overlap at first.
"""

import matplotlib.pyplot as plt
import torch

import detops

# %%
# Rotated boxes (cx, cy, w, h, angle), their targets, and the loss of each step.
targets = torch.tensor([[30.0, 30, 40, 16, 20], [80, 60, 30, 20, -30]])
boxes = torch.tensor([[48.0, 40, 20, 20, 0], [60, 70, 20, 20, 0]], requires_grad=True)
optimizer = torch.optim.Adam([boxes], lr=1.0)
steps, losses = [], []
for step in range(300):
    loss = detops.rotated_iou_loss(boxes, targets, mode="diou", reduction="sum")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 30 == 0:
        steps.append(boxes.detach().clone())
print(f"IoU at the end: {detops.box_iou_rotated(boxes.detach(), targets).diagonal()}")

# %%
# The boxes move from light to dark onto the dashed targets.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
for k, state in enumerate([*steps, targets]):
    last = k == len(steps)
    for corners in detops.box_convert(state, "cxcywhr", "xyxyxyxy").view(-1, 4, 2):
        style = {"linestyle": "--", "color": "#d1495b"} if last else {"alpha": (k + 1) / 10}
        left.add_patch(plt.Polygon(corners, fill=False, **style))
left.set(xlim=(0, 110), ylim=(95, 0), aspect="equal", title="boxes")
right.plot(losses)
right.set(xlabel="step", title="loss")
plt.show()
