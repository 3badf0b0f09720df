"""Builder of the views for test-time augmentation."""

from typing import Any

from ...config import ConfigError
from ..views import View


def build_views(cfg: Any) -> list[View]:
    """Returns the views of an image, besides itself, that TEST.BBOX_AUG describes."""
    augmentation = cfg.TEST.BBOX_AUG
    if not augmentation.ENABLED:
        return []
    if cfg.MODEL.RPN_ONLY or cfg.MODEL.RETINANET_ON:
        raise ConfigError(
            "TEST.BBOX_AUG.ENABLED: expected False with MODEL.RPN_ONLY or MODEL.RETINANET_ON, "
            "because the box head merges the views, got True"
        )
    views = []
    if augmentation.H_FLIP:
        views.append(View(cfg.INPUT.MIN_SIZE_TEST, cfg.INPUT.MAX_SIZE_TEST, mirrored=True))
    for size in augmentation.SCALES:
        for mirrored in (False, True) if augmentation.SCALE_H_FLIP else (False,):
            views.append(View(size, augmentation.MAX_SIZE, mirrored))
    return views
