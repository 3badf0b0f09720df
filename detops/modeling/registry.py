"""Registries of the factories that the config names."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


class Registry:
    """Maps names to factories of one kind of part."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., Any]] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Returns a decorator that registers a class or function under one or more names."""

        def add(factory: T) -> T:
            for name in names:
                if name in self._factories:
                    raise ValueError(f"{self.kind} {name!r} is already registered")
                self._factories[name] = factory
            return factory

        return add

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """Returns the factory of that name.

        Raises:
            ValueError: the name is not registered; the message lists those that are.
        """
        try:
            return self._factories[name]
        except KeyError:
            known = ", ".join(sorted(self._factories))
            raise ValueError(f"unknown {self.kind} {name!r}; known: {known}") from None


BACKBONES = Registry("MODEL.BACKBONE.CONV_BODY")
RPN_HEADS = Registry("MODEL.RPN.RPN_HEAD")
ROI_BOX_FEATURE_EXTRACTORS = Registry("MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR")
ROI_BOX_PREDICTOR = Registry("MODEL.ROI_BOX_HEAD.PREDICTOR")
ROI_MASK_FEATURE_EXTRACTORS = Registry("MODEL.ROI_MASK_HEAD.FEATURE_EXTRACTOR")
ROI_MASK_PREDICTOR = Registry("MODEL.ROI_MASK_HEAD.PREDICTOR")
ROI_KEYPOINT_FEATURE_EXTRACTORS = Registry("MODEL.ROI_KEYPOINT_HEAD.FEATURE_EXTRACTOR")
ROI_KEYPOINT_PREDICTOR = Registry("MODEL.ROI_KEYPOINT_HEAD.PREDICTOR")
