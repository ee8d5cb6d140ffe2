"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

import aril

MODULES = ["aril.transforms"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name):
    module = importlib.import_module(name)
    names = {n: getattr(aril, n) for n in aril.__all__}
    failed, tried = doctest.testmod(module, extraglobs=names)
    assert tried
    assert not failed
