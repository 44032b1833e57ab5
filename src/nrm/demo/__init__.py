"""A trained network on embedded digits, to try everything on: ``nrm demo``, or any command with ``nrm.demo:digits``."""

from nrm.demo.digits import LEARNED as LEARNED, DigitNet, digits, picture, read_digits, save_weights, train

__all__ = ["DigitNet", "digits", "picture", "read_digits", "save_weights", "train"]
