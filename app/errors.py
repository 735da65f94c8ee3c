"""What the app reports on purpose.

Every class derives from `AppError`; `hint` is the next step for the user. `exits.py` gives each its exit code.
"""


class AppError(Exception):
    """Base of every failure the app itself reports on purpose.

    Attributes:
        hint: One sentence with what the user can do, or "".
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class TranscriptError(AppError):
    """A transcript cannot be found, opened, written, moved or brought back."""


class TranscriptMissing(TranscriptError):  # noqa: N818 - named for what is wrong
    """No transcript, or more than one, has the id that was given."""


class NoCard(AppError):  # noqa: N818 - named for what is wrong
    """There is no graphics card that torch can compute on."""


class UsageError(AppError):
    """An option, an argument or what came in on stdin cannot be used."""


class SettingsError(AppError):
    """The settings file cannot be read, or has a key or value it must not have."""
