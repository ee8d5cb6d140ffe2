"""Stub until the mixins land."""


class OpMixin:
    __slots__ = ()
