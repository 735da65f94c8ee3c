"""All questions and their answers, ready to be trained on or to be judged by.

The one thing a reader would get wrong: held-out phrasings are read by `held_out` alone, and a training question that
has the same letters as one of them is refused, so neither training nor the tokenizer ever sees one.
"""

import random
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Literal

from assets.demo_recipe.blocks import DATA, Block, bare, read_blocks, read_follow_ups, read_held_out
from assets.demo_recipe.errors import RecipeError

Kind = Literal["fact", "talk", "unknown", "follow"]

_TRIES = 200
"""For one more question of a template before its words count as used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question and what is to be answered."""

    kind: Kind
    topic: str
    text: str
    answer: str
    keys: tuple[str, ...]
    reason: str
    """What is thought before the answer in thinking mode."""
    before: str = ""
    """Topic of the turn before, for a follow-up."""


@dataclass(frozen=True, slots=True)
class Questions:
    """What is trained on."""

    all: tuple[Question, ...]
    blocks: tuple[Block, ...]
    """Every topic, in the files' order."""

    def of(self, kind: Kind) -> list[Question]:
        """Those of a kind."""
        return [question for question in self.all if question.kind == kind]


def reason_for(answer: str) -> str:
    """A short reasoning that leads to the answer: the word that it begins with, which decides which one it is.

    Nothing else: of a reasoning that named the topic too, the name was often another's, and the answer followed it.
    """
    return f"{answer.split()[0].strip('.,:!?')} ... is how the answer begins."


def load(folder: Path = DATA, *, seed: int = 7) -> Questions:
    """Everything to train on. Raises: RecipeError when a file has a fault, or repeats a held-out phrasing."""
    facts, talk = read_blocks(folder / "facts.txt"), read_blocks(folder / "talk.txt")
    unknown = read_blocks(folder / "unknown.txt")
    found = [_asked("fact", block, text) for block in facts for text in block.phrasings]
    found += [_asked("talk", block, text) for block in talk for text in block.phrasings]
    found += [_asked("unknown", block, text) for block in unknown for text in _made(block, random.Random(seed))]
    topics = {block.topic: block for block in facts}
    for follow in read_follow_ups(folder / "follow.txt"):
        if missing := {follow.before, follow.topic} - topics.keys():
            raise RecipeError(f"follow.txt: there is no fact {', '.join(sorted(missing))}")
        found += [_asked("follow", topics[follow.topic], text, before=follow.before) for text in follow.phrasings]
    _refuse_repeats(found, {bare(question.text) for question in held_out(folder)})
    return Questions(tuple(found), (*facts, *talk, *unknown))


def held_out(folder: Path = DATA) -> list[Question]:
    """What the model is judged by. Raises: RecipeError when a topic is not there."""
    names = {"fact": "facts.txt", "talk": "talk.txt", "unknown": "unknown.txt", "about artesian": "unknown.txt"}
    blocks = {name: {block.topic: block for block in read_blocks(folder / name)} for name in set(names.values())}
    found = []
    for held in read_held_out(folder / "held_out.txt"):
        block = blocks[names[held.kind]].get(held.topic) if held.kind in names else None
        if block is None:
            raise RecipeError(f"held_out.txt: there is no {held.kind} {held.topic!r}")
        kind: Kind = "fact" if held.kind == "fact" else "talk" if held.kind == "talk" else "unknown"
        found.append(_asked(kind, block, held.phrasing))
    return found


def _asked(kind: Kind, block: Block, text: str, *, before: str = "") -> Question:
    return Question(
        kind=kind, topic=block.topic, text=text, answer=block.answer, keys=block.keys,
        reason=reason_for(block.answer), before=before,
    )  # fmt: skip


def _made(block: Block, rng: random.Random) -> list[str]:
    """As many different questions as the block wants, made of its templates. Raises: RecipeError if they run out."""
    made: dict[str, None] = {}
    for _ in range(block.share):
        for _ in range(_TRIES):
            template = rng.choice(block.phrasings)
            names = [name for _, name, _, _ in Formatter().parse(template) if name]
            if unknown := set(names) - block.words.keys():
                raise RecipeError(f"unknown.txt: {template!r} names {', '.join(sorted(unknown))}, which is no list")
            text = template.format(**{name: rng.choice(block.words[name]) for name in names})
            if text not in made:
                made[text] = None
                break
        else:
            raise RecipeError(f"unknown.txt: {block.topic!r} gives {len(made)} questions, {block.share} are wanted")
    return list(made)


def _refuse_repeats(found: list[Question], held: set[str]) -> None:
    """A question may have one answer only, unless the turn before decides it; and none may be held out."""
    answers: dict[tuple[str, str], str] = {}
    for question in found:
        key = (question.before, bare(question.text))
        if key[1] in held:
            raise RecipeError(f"{question.text!r} of {question.topic!r} is held out, so it may not be trained on")
        if answers.setdefault(key, question.answer) != question.answer:
            raise RecipeError(f"{question.text!r} of {question.topic!r} has another answer elsewhere")
