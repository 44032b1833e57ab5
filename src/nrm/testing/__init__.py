"""Conformance checks for everyone: the tests that our own maps, rules and ops pass, for yours.

Each check raises ``AssertionError`` with what differs by how much, and returns None if all is well.
"""

from nrm.testing.conformance import check_map, check_measure, check_op, check_rule, materialize

__all__ = ["check_map", "check_measure", "check_op", "check_rule", "materialize"]
