"""Names for the numbers 1, 2, ..: enumerations as they are compared millions of times while a graph is scheduled.

An `enum.IntEnum` in all but this: until Python 3.12 reading a member of one (`Ops.ADD`) goes through a Python-level
`__getattr__` of its metaclass and takes four times as long as a class attribute does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enum import IntEnum as Numbered
    from enum import auto
else:

    class auto:
        """The next number, under the name it is assigned to."""

    class _Members(type):
        def __iter__(cls) -> Any:
            return iter(cls._members)

        def __len__(cls) -> int:
            return len(cls._members)

        def __contains__(cls, x: object) -> bool:
            return x.__class__ is cls

        def __getitem__(cls, name: str) -> Any:
            found = vars(cls).get(name)
            if found.__class__ is not cls:
                raise KeyError(name)
            return found

    class Numbered(int, metaclass=_Members):
        """Base of an enumeration: `class Color(Numbered): RED = auto()`. `name` and `value` of a member; members in
        order by iteration, by name with `Color["RED"]`, by number with `Color(1)`. Errors: KeyError, ValueError."""

        _members: tuple[Any, ...] = ()

        def __init_subclass__(cls) -> None:
            members = []
            for name, mark in list(vars(cls).items()):
                if mark.__class__ is auto:
                    member = int.__new__(cls, len(members) + 1)
                    member.name, member.value = name, len(members) + 1
                    setattr(cls, name, member)
                    members.append(member)
            cls._members = tuple(members)

        def __new__(cls, number: int) -> Any:
            if not 1 <= number <= len(cls._members):
                raise ValueError(f"{number} is no {cls.__name__}; they are 1 to {len(cls._members)}")
            return cls._members[number - 1]

        def __reduce__(self) -> Any:
            return self.__class__, (int(self),)

        def __copy__(self) -> Any:
            return self

        def __deepcopy__(self, memo: object) -> Any:
            return self

        def __repr__(self) -> str:
            return f"{self.__class__.__name__}.{self.name}"

        def __str__(self) -> str:
            return str(int(self))


__all__ = ["Numbered", "auto"]
