"""In-place operators (`x += y`), as NumPy and PyTorch have them. Mixed into Tensor."""

from __future__ import annotations

from typing import Any

from aril.ops import OpGroup, Ops
from aril.tensor_memory import is_writable_view


class InPlaceMixin:
    """`x op= y` changes the tensor that `x` names, for all who hold it; `x = x op y` makes another.

    >>> x = y = Tensor([1, 2])
    >>> x += 1
    >>> y.tolist()
    [2, 3]
    """

    __slots__ = ()

    def __iadd__(self, x: Any) -> Any:
        return self._become(self + x, "+=")

    def __isub__(self, x: Any) -> Any:
        return self._become(self - x, "-=")

    def __imul__(self, x: Any) -> Any:
        return self._become(self * x, "*=")

    def __itruediv__(self, x: Any) -> Any:
        return self._become(self / x, "/=")

    def __ifloordiv__(self, x: Any) -> Any:
        return self._become(self // x, "//=")

    def __imod__(self, x: Any) -> Any:
        return self._become(self % x, "%=")

    def __ipow__(self, x: Any) -> Any:
        return self._become(self**x, "**=")

    def __imatmul__(self, x: Any) -> Any:
        return self._become(self @ x, "@=")

    def __iand__(self, x: Any) -> Any:
        return self._become(self & x, "&=")

    def __ior__(self, x: Any) -> Any:
        return self._become(self | x, "|=")

    def __ixor__(self, x: Any) -> Any:
        return self._become(self ^ x, "^=")

    def __ilshift__(self, x: Any) -> Any:
        return self._become(self << x, "<<=")

    def __irshift__(self, x: Any) -> Any:
        return self._become(self >> x, ">>=")

    def _become(self: Any, value: Any, name: str) -> Any:
        """`assign`, but what is only computed so far stays so: there is no memory to write to yet, and none is needed.

        Errors: ValueError, TypeError where the result has another shape or dtype than this tensor.
        """
        if value.shape != self.shape:
            raise ValueError(f"{name}: the result has shape {value.shape}, not {self.shape}; write x = x op y")
        if value.dtype is not self.dtype:
            raise TypeError(
                f"{name}: the result is {value.dtype.name}, not {self.dtype.name}; cast, or write x = x op y"
            )
        start = self.uop
        while start.op in OpGroup.MOVEMENT:
            start = start.src[0]
        # a constant (`Tensor.zeros`) is state that begins there, and so is what is marked as a parameter
        if self._is_param is not None or start.op is Ops.CONST or is_writable_view(self.uop):
            return self.assign(value)
        return self.replace(value)
