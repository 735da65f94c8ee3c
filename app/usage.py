"""Where a model's usage profile is and what it counts. Without the profile itself, which takes numpy to read."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from app.model_choice import ModelChoice
from app.paths import cache_dir
from engine.config import ModelConfig
from storage.fingerprint import Marked, fingerprint


def usage_dir(choice: ModelChoice) -> Path | None:
    """The folder of usage profiles; None for the demo, which leaves nothing behind."""
    return None if choice.is_demo else cache_dir() / "usage"


def watched_layers(config: ModelConfig) -> dict[int, int]:
    """Experts of each layer whose requests are watched: the backbone's, and the draft stages' behind them.

    The stages are among them whether drafts are made or not: a profile belongs to a checkpoint, not to a way of using
    it.
    """
    stages = range(config.n_layers, config.n_layers + config.n_mtp_layers)
    backbone = dict.fromkeys(range(config.n_layers), config.n_routed_experts)
    return backbone | dict.fromkeys(stages, config.dspark_n_routed_experts)


def profile_file(folder: Path, headers: Mapping[str, Marked], configs: Sequence[Path]) -> tuple[Path, str]:
    """The usage profile's file in `folder` for the checkpoint of these headers and config files, and its fingerprint.

    Raises: OSError when a config can no longer be read.
    """
    mark = fingerprint(headers, [path.read_bytes() for path in configs])
    return folder / f"{mark[:32]}.usage", mark
