"""Notices a reply that says the same over and over."""

_WINDOW = 1_600
"""Characters looked at."""
_LONGEST_PERIOD = 300
_LEAST_REPEATED = 240
"""Characters that must be a repetition before it is called one: a rule of dashes or a short list is none."""
_LEAST_TIMES = 4


class RepetitionWatch:
    """Told the text as it comes; says once when its end repeats itself."""

    def __init__(self) -> None:
        self._recent = ""
        self._since = 0
        self._said = False

    def push(self, text: str) -> bool:
        """Whether it is now seen for the first time that the text repeats itself."""
        self._recent = (self._recent + text)[-_WINDOW:]
        self._since += len(text)
        if self._said or self._since < _LEAST_REPEATED // 4:
            return False
        self._since = 0
        self._said = repeats(self._recent)
        return self._said


def repeats(text: str) -> bool:
    """Whether the end of `text` is the same piece at least four times, and enough of it.

    A piece of blanks and one other kind of character is drawing (rules, tables), not talking.
    """
    for period in range(1, min(_LONGEST_PERIOD, len(text) // _LEAST_TIMES) + 1):
        length = max(period * _LEAST_TIMES, _LEAST_REPEATED)
        if length > len(text):
            break
        end = text[-length:]
        if end[period:] == end[:-period] and len(set(end) - set(" \n")) > 1:
            return True
    return False
