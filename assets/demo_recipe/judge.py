"""Whether an answer is right: it has the keywords of its topic and is nearer to that answer than to any other.

The one thing a reader would get wrong: declining is one answer in several wordings, so a question that is to be
declined is right with any of them.
"""

from collections.abc import Sequence

from assets.demo_recipe.blocks import Block, bare, has_keys
from assets.demo_recipe.questions import Question


class Judge:
    """Knows every answer that there is."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._words = {block.answer: frozenset(bare(block.answer).split()) for block in blocks}
        self._declines = frozenset(block.answer for block in blocks if block.share)

    def nearest(self, text: str) -> str:
        """The known answer that shares most words with `text`, of all the words in either."""
        have = frozenset(bare(text).split())

        def likeness(answer: str) -> float:
            return len(have & self._words[answer]) / max(len(have | self._words[answer]), 1)

        return max(self._words, key=likeness)

    def is_right(self, question: Question, text: str) -> bool:
        """Whether `text` answers it."""
        if text == question.answer:
            return True
        nearest = self.nearest(text)
        if question.kind == "unknown":
            return nearest in self._declines
        return nearest == question.answer and has_keys(question.keys, text)
