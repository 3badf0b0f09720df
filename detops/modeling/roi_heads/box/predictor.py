"""From features to class scores and box deltas."""

from torch import Tensor, nn

from ...registry import ROI_BOX_PREDICTOR


# The family's two differ only in what they are fed with: maps of a C4 head, vectors.
@ROI_BOX_PREDICTOR.register("FastRCNNPredictor", "FPNPredictor")
class BoxPredictor(nn.Module):
    """Two linear layers. Class 0 is background; class-agnostic deltas are background and rest."""

    def __init__(self, in_channels: int, num_classes: int, class_agnostic: bool = False) -> None:
        super().__init__()
        self.cls_score = nn.Linear(in_channels, num_classes)
        self.bbox_pred = nn.Linear(in_channels, 4 * (2 if class_agnostic else num_classes))
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        for layer in (self.cls_score, self.bbox_pred):
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``[K, F]`` to logits ``[K, C]`` and deltas ``[K, 4 C]``; half precision is left here.

        Maps ``[K, F, h, w]`` are averaged.
        """
        if x.dim() == 4:
            x = x.mean((2, 3))
        return self.cls_score(x).float(), self.bbox_pred(x).float()
