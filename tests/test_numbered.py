"""Enumerations as graphs use them: as IntEnum, and read at the price of a class attribute."""

import copy
import enum
import pickle

import pytest

from aril.numbered import Numbered, auto


class Colour(Numbered):
    RED = auto()
    GREEN = auto()
    BLUE = auto()

    def bright(self):
        return f"bright {self.name}"


class Reference(enum.IntEnum):
    RED = enum.auto()
    GREEN = enum.auto()
    BLUE = enum.auto()


def test_members_are_those_of_an_int_enum():
    assert [(c.name, c.value, int(c)) for c in Colour] == [(c.name, c.value, int(c)) for c in Reference]
    assert len(Colour) == 3 and list(Colour) == sorted(Colour, key=int)
    assert Colour.GREEN is Colour["GREEN"] is Colour(2) and Colour.GREEN == 2 and Colour.RED < Colour.BLUE
    assert hash(Colour.BLUE) == hash(Reference.BLUE) and {Colour.BLUE: 1}[3] == 1
    assert Colour.RED in Colour and Reference.RED not in Colour and Colour.RED.bright() == "bright RED"
    assert str(Colour.RED) == str(Reference.RED) == "1" and repr(Colour.RED) == "Colour.RED"


def test_members_stay_themselves():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Colour.BLUE, protocol)) is Colour.BLUE
    assert copy.copy(Colour.RED) is Colour.RED and copy.deepcopy([Colour.RED])[0] is Colour.RED


@pytest.mark.parametrize("number", [0, 4, -1])
def test_other_numbers_are_refused(number):
    with pytest.raises(ValueError, match="no Colour; they are 1 to 3"):
        Colour(number)
    with pytest.raises(KeyError):
        Colour["bright"]


def test_reading_a_member_runs_no_python():
    meta = type(Colour)
    assert "__getattr__" not in dir(meta) and meta.__getattribute__ is type.__getattribute__
