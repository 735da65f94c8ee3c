"""What the engine reports on purpose.

Every class derives from `EngineError`, so one `except` in `app` shows any of them; `hint` is the next step for the
user.
"""


class EngineError(Exception):
    """Base of every failure the engine reports on purpose.

    Attributes:
        hint: One sentence with what the user can do, or "".
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(EngineError):
    """A config file is missing, unreadable, contradictory, or names a geometry the engine cannot run."""


class FormatError(EngineError):
    """A tensor's dtype, shape or bytes are not what the model's formats allow."""


class TokenizerError(EngineError):
    """The tokenizer is missing, unreadable, or does not fit the config."""


class PromptError(EngineError):
    """A conversation cannot be rendered, or its tokens cannot be run."""


class ContextOverflow(PromptError):  # noqa: N818 - named for what is wrong
    """A prompt that leaves no place for an answer in the model's context.

    Attributes:
        prompt_tokens: Tokens of the prompt; the least it can have when it was refused unread.
        context_tokens: Positions there are.
    """

    def __init__(self, message: str, *, hint: str = "", prompt_tokens: int, context_tokens: int) -> None:
        super().__init__(message, hint=hint)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class SavedStateError(EngineError):
    """A saved state cannot be written, or does not belong here: it is damaged, or of another model, mode or version."""


class DamagedState(SavedStateError):  # noqa: N818 - named for what is wrong
    """The file of a saved state is not what was written; no try will make it whole."""


class SamplerSettingsError(EngineError):
    """A sampling setting is out of its range."""


class LogitsError(EngineError):
    """The model's output holds no distribution: a NaN, an infinity, or nothing that may be drawn."""


class KernelError(EngineError):
    """The kernels asked for cannot run here, or were handed tensors they cannot read."""


class CardFull(EngineError):  # noqa: N818 - named for what is wrong
    """A card has no memory left for what is computed there."""


class GoldenError(EngineError):
    """A golden folder is missing, unreadable, or does not belong to the checkpoint."""


class Stopped(EngineError):  # noqa: N818 - an outcome the user asked for, not an error
    """The user asked to stop; the state is at the last token boundary."""
