"""The golden checkpoint, opened once for the tests that need a real model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import ModelConfig, load_config
from engine.model import Model
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint

TINY = Path(__file__).parent.parent / "data" / "tiny-a"


@pytest.fixture(scope="session")
def tiny_config() -> ModelConfig:
    """The config of the golden checkpoint."""
    return load_config(TINY / "checkpoint").config


@pytest.fixture(scope="session")
def tiny_model(tiny_config: ModelConfig) -> Iterator[Model]:
    """The golden checkpoint, opened in `exact`."""
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        model = Model.open(
            checkpoint, tiny_config, streams=StreamSettings(slots_per_layer=tiny_config.n_routed_experts)
        )
        yield model
        model.close()
