"""The operation vocabulary, written once against a few abstract primitives and inherited by Tensor and UOp."""

from aril.mixin.habits import accept_other_names
from aril.mixin.image import ImageMixin


class OpMixin(ImageMixin):
    """Everything a value can do. `aril/mixin/base.py` lists what a class must bring."""

    __slots__ = ()


accept_other_names(OpMixin)

__all__ = ["OpMixin"]
