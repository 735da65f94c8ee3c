"""What the planner reports on purpose.

Every class derives from `PlanError`; `hint` is the next step for the user. `app.exits` gives each its exit code.
"""


class PlanError(Exception):
    """Base of every failure the planner reports on purpose.

    Attributes:
        hint: One sentence with what the user can do, or "".
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class BadWish(PlanError):  # noqa: N818 - named for what is wrong
    """Something was asked for that this model or machine cannot be given in any amount of memory."""


class MissingParts(PlanError):  # noqa: N818 - named for what is wrong
    """The headers do not hold all that a plan has to count."""


class DoesNotFit(PlanError):  # noqa: N818 - named for what is wrong
    """What was asked for takes more memory than it may.

    Attributes:
        needed_bytes: The least that what was asked for takes.
        ceiling_bytes: What it may take.
    """

    def __init__(self, message: str, *, needed_bytes: int, ceiling_bytes: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.needed_bytes = needed_bytes
        self.ceiling_bytes = ceiling_bytes
