"""From boxes to feature vectors."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ...poolers import Pooler
from ...registry import ROI_BOX_FEATURE_EXTRACTORS


@ROI_BOX_FEATURE_EXTRACTORS.register("FPN2MLPFeatureExtractor")
class FPN2MLPFeatureExtractor(nn.Module):
    """Pooling and two fully connected layers: "Feature Pyramid Networks", section 4.2."""

    def __init__(self, *, in_channels: int, pooler: Pooler, hidden_features: int) -> None:
        super().__init__()
        self.pooler = pooler
        self.fc6 = nn.Linear(in_channels * pooler.output_size**2, hidden_features)
        self.fc7 = nn.Linear(hidden_features, hidden_features)
        for layer in (self.fc6, self.fc7):
            nn.init.kaiming_uniform_(layer.weight, a=1)
            nn.init.zeros_(layer.bias)
        self.out_features = hidden_features

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        """Levels and per image ``[L, 4]``, to ``[K, hidden_features]``."""
        x = self.pooler(features, boxes).flatten(1)
        return F.relu_(self.fc7(F.relu_(self.fc6(x))))
