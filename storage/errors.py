"""What storage reports on purpose.

Every class derives from `StorageError`, so one `except` in `app` shows any of them; `hint` is the next step for the user.
"""


class StorageError(Exception):
    """Base of every failure storage reports on purpose.

    Attributes:
        hint: One sentence with what the user can do, or "".
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
