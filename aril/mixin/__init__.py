"""The operation vocabulary, written once against a few abstract primitives and inherited by Tensor and UOp."""

from aril.mixin.layers import LayersMixin


class OpMixin(LayersMixin):
    """Everything a value can do. `aril/mixin/base.py` lists what a class must bring."""

    __slots__ = ()


__all__ = ["OpMixin"]
