"""Stops at random moments of a small model; `python -m tests.engine.stop_matrix` takes a hundred."""

from pathlib import Path

from engine.sampler_settings import SamplerSettings
from tests.engine.stop_matrix import run


def test_stopped_at_random_moments_a_reply_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    place = run(tmp_path / "model", 12, seed=1, sampling=SamplerSettings(temperature=0.8, seed=1))
    assert sum(place.where.values()) == 12
    assert place.where["too late"] < 6
