"""The operation vocabulary, written once against a few abstract primitives and inherited by Tensor and UOp."""

from aril.mixin.base import OpMixin

__all__ = ["OpMixin"]
