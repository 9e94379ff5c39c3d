"""A pin of a stream goes with its last reference, whatever has become of it before."""

from __future__ import annotations

from halocline.txn.core import Pin


def test_a_pin_is_given_back_once() -> None:
    pins: dict[int, int] = {}
    pin = Pin(pins, 7)
    assert list(pins.values()) == [7]
    pin.close()
    pin.close()
    assert not pins


def test_a_pin_whose_constructor_was_interrupted_goes_quietly() -> None:
    del_ = Pin.__new__(Pin).__del__
    del_()
