"""Changes single values of the settings file and leaves everything else in it as the user wrote it.

The one thing a reader would get wrong: the file is checked as a whole before it is written. A change that would leave
settings that cannot be used is refused, and the file stays as it was.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from app.errors import SettingsError
from app.private_files import write_whole
from app.settings import Settings, check_settings, load_settings

Value = str | int | float | bool | Sequence[str] | Mapping[str, str] | None


def edit_settings(path: Path, changes: Mapping[str, Value]) -> Settings:
    """Set the keys of `changes` in the settings file, or take out those that are None; what then holds.

    Comments, order and spelling of all else stay. A file that is not there is made, for the user's eyes only.
    Raises: SettingsError when the file cannot be used as it is, a value cannot be, or it cannot be written.
    """
    load_settings(path)  # first, so that what was wrong before is not blamed on the change
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        document = tomlkit.parse(text)
    except (OSError, ValueError, TOMLKitError) as error:
        raise SettingsError(f"{path}: the settings cannot be read: {error}") from error
    for key, value in changes.items():
        if value is None:
            document.pop(key, None)
        else:
            document[key] = list(value) if isinstance(value, tuple) else value
    made = check_settings(document.unwrap(), source=str(path))
    try:
        write_whole(path, tomlkit.dumps(document))
    except OSError as error:
        raise SettingsError(
            f"{path}: the settings cannot be written: {error.strerror or error}",
            hint="Check that its folder exists and that you may write there.",
        ) from error
    return made
