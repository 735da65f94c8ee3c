"""Conversations to token ids for training, as the engine renders them.

The one thing a reader would get wrong: control tokens are put in by id, so no text can become one; and an earlier
answer of a thinking conversation is shown without its reasoning, as the vendor's recipe does.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from assets.demo_recipe import tokenizer as names

PROMPT_WEIGHT = 0.1
"""Of a prompt token in the loss: the model learns how people ask, but mostly what to answer."""


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation, ready to be trained on."""

    ids: tuple[int, ...]
    weight: tuple[float, ...]
    """Of each id as a target: 1 for what the model writes, less for the rest."""
    topic: int = -1
    """Number of the answer that it ends with, or -1."""

    @property
    def asked(self) -> int:
        """Position of the last id before what the model writes last."""
        return max(i for i, weight in enumerate(self.weight) if weight < 1)

    def beginning(self, n_written: int) -> "Document":
        """The conversation up to the first `n_written` ids of what the model writes last."""
        end = self.asked + 1 + n_written
        return replace(self, ids=self.ids[:end], weight=self.weight[:end])


def effort_line(effort: int) -> str:
    """What a thinking conversation begins with."""
    return f"Reasoning Effort: {effort} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


class Chat:
    """The chat format over one tokenizer."""

    def __init__(self, tokenizer_json: str) -> None:
        content = json.loads(tokenizer_json)
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self._plain = Tokenizer.from_str(json.dumps({**content, "added_tokens": []}))
        self.bos, self.eos, self.pad = (self._id(text) for text in names.FIRST)
        self.noise = self._id(names.NOISE)
        self._user, self._assistant, self._system = map(self._id, (names.USER, names.ASSISTANT, names.SYSTEM))
        self.think, self.end_think = self._id(names.THINK), self._id(names.END_THINK)

    def _id(self, text: str) -> int:
        token = self.tokenizer.token_to_id(text)
        assert token is not None, text
        return int(token)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, control tokens as their spellings."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def document(
        self, past: Sequence[tuple[str, str]], question: str, answer: str, *, reason: str = "", effort: int = 0,
        system: str = "",
    ) -> Document:  # fmt: skip
        """A conversation whose last turn is `question` and `answer`; `effort` 0 is chat mode, without the reason."""
        ids, weight = [self.bos], [PROMPT_WEIGHT]

        def add(part: Sequence[int], each: float) -> None:
            ids.extend(part)
            weight.extend([each] * len(part))

        if effort or system:
            add([self._system, *self.encode((effort_line(effort) if effort else "") + system)], PROMPT_WEIGHT)
        for asked, said in past:
            add([self._user, *self.encode(asked), self._assistant, self.end_think], PROMPT_WEIGHT)
            add([*self.encode(said), self.eos], 1.0)
        opening = self.think if effort else self.end_think
        add([self._user, *self.encode(question), self._assistant, opening], PROMPT_WEIGHT)
        if effort:
            add([*self.encode(reason), self.end_think], 1.0)
        add([*self.encode(answer), self.eos], 1.0)
        return Document(tuple(ids), tuple(weight))
