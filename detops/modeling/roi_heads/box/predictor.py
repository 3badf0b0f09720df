"""Predictor of class scores and box deltas."""

from torch import Tensor, nn

from ...registry import ROI_BOX_PREDICTOR


# The two predictors of maskrcnn-benchmark differ only in their input: feature maps of a C4 head, or
# vectors.
@ROI_BOX_PREDICTOR.register("FastRCNNPredictor", "FPNPredictor")
class BoxPredictor(nn.Module):
    """Two linear layers, for class scores and box deltas.

    Class 0 is background. Class-agnostic deltas are those of background and of all other classes.
    """

    def __init__(self, in_channels: int, num_classes: int, class_agnostic: bool = False) -> None:
        super().__init__()
        self.cls_score = nn.Linear(in_channels, num_classes)
        self.bbox_pred = nn.Linear(in_channels, 4 * (2 if class_agnostic else num_classes))
        nn.init.normal_(self.cls_score.weight, std=0.01)
        nn.init.normal_(self.bbox_pred.weight, std=0.001)
        for layer in (self.cls_score, self.bbox_pred):
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Maps ``[K, F]`` to logits ``[K, C]`` and deltas ``[K, 4 C]``, both in float32.

        Feature maps ``[K, F, h, w]`` are averaged.
        """
        if x.dim() == 4:
            x = x.mean((2, 3))
        return self.cls_score(x).float(), self.bbox_pred(x).float()
