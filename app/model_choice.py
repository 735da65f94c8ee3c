"""Which checkpoint is used, and who said so."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.errors import UsageError
from app.paths import as_named, demo_folder
from app.settings import Settings
from app.slips import no_checkpoint_hint
from engine.errors import ConfigError
from storage.errors import MissingFolder

Origin = Literal["--model", "ARTESIAN_MODEL", "settings", "demo", "the transcript"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model folder."""

    folder: Path
    origin: Origin
    """What named it; "demo" when nothing did."""
    is_demo: bool
    """Whether it is the bundled demo, however it was named."""


def choose_model(option: str | None, settings: Settings, environ: Mapping[str, str] = os.environ) -> ModelChoice:
    """The folder `--model` names, else ARTESIAN_MODEL, else the settings, else the demo's. It may not exist.

    Raises: UsageError for a `--model` that is blank, which a script's unset variable makes.
    """
    if option is not None and not option.strip():
        raise UsageError("--model is empty", hint="Name the model's folder, or leave the option out.")
    named: tuple[tuple[Origin, str | None], ...] = (
        ("--model", option),
        ("ARTESIAN_MODEL", environ.get("ARTESIAN_MODEL")),
        ("settings", settings.model),
    )
    for origin, value in named:
        if value is not None and value.strip():
            folder = as_named(value)
            return ModelChoice(folder=folder, origin=origin, is_demo=folder.resolve() == demo_folder().resolve())
    return ModelChoice(folder=demo_folder(), origin="demo", is_demo=True)


def require_folder(choice: ModelChoice) -> None:
    """Raises: MissingFolder when the chosen folder is not there, with what named it; ConfigError when it holds no
    config, with what it holds instead.
    """
    if not choice.folder.is_dir():
        what = "is not a folder" if choice.folder.exists() else "does not exist"
        raise MissingFolder(
            f"the model's folder {choice.folder} ({choice.origin}) {what}",
            hint="Give the folder that holds config.json and the .safetensors files.",
        )
    require_config(choice.folder)


def holds_config(folder: Path) -> bool:
    """Whether a folder has a config in either place, even one that leads nowhere."""
    return any(path.exists() or path.is_symlink() for path in (folder / "config.json", folder / _INNER_CONFIG))


def require_config(folder: Path) -> None:
    """Raises: ConfigError when a folder has no config, with what it holds instead."""
    if not holds_config(folder):
        raise ConfigError(f"{folder} holds no config.json, so no checkpoint", hint=no_checkpoint_hint(folder))


_INNER_CONFIG = Path("inference", "config.json")
"""The other place of a released config."""
