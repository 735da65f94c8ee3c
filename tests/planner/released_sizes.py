"""What the released model takes, worked out once for all tests of a process: 96,000 names take a second."""

from functools import cache

from app.planning import expected_places
from planner.footprint import Footprint, footprint
from tests.engine.released import RELEASED


@cache
def released_sizes() -> Footprint:
    """From the config alone."""
    return footprint(RELEASED, expected_places(RELEASED))
