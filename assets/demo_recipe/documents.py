"""Questions as documents to train on: an epoch in random modes, and the plain text that the tokenizer learns from."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from assets.demo_recipe.blocks import bare
from assets.demo_recipe.chat import Chat, Document, effort_line
from assets.demo_recipe.questions import Question, Questions
from assets.demo_recipe.variants import vary

THINKING_SHARE = 0.2
UNRELATED_PAST_SHARE = 0.3
"""Of the documents, those with turns of other topics before."""
_PAST_TURNS = (1, 1, 1, 1, 1, 2, 2, 2, 3, 4)
SYSTEM_SHARE = 0.05
FOLLOW_TIMES = 3
"""Follow-ups are few, so each is seen this often in an epoch."""
FIRST_WORD_TIMES = 3
"""Answers' first words are counted so often more for the tokenizer: each becomes one token, and no two the same."""
UNKNOWN_AN_EPOCH = 4000
SHORTENED = 0.85
"""Share of the trunk's documents that end soon after the answer has begun: the beginning decides which answer it is,
and the rest is learned by heart from the whole ones."""
_BEGINNING = (3, 10)
"""Written tokens that a shortened document keeps, from and to."""
SIMPLE_EPOCHS = 1
"""So many of the trunk's first epochs hold bare questions and the first words of their answers alone: more than twice
the questions in the same time, while the rates are high and cost some of what the head start knew."""
_FIRST_WORDS = (1, 4)
MOST_OF_A_TOPIC = 40
"""Phrasings of one fact in an epoch: facts that many phrasings were found for are not asked more often for that."""
_SYSTEMS = ("You are a helpful assistant.", "You are terse.", "Be brief.", "Answer in one sentence.", "Be kind.")
_EFFORTS = (50, 75, 75, 75, 100)


def tokenizer_texts(questions: Questions, *, seed: int = 3) -> Iterator[str]:
    """What merges are learned from: every question, a casual variant of it, its answer and reasoning."""
    rng = random.Random(seed)
    for question in questions.all:
        yield from (question.text, vary(question.text, rng), question.answer, question.reason)
        yield from [question.answer.split()[0]] * FIRST_WORD_TIMES
    yield from map(effort_line, range(1, 101))


def unrelated_turns(questions: Sequence[Question], rng: random.Random) -> list[tuple[str, str]]:
    """One to four turns, questions with their answers, that what is asked next has nothing to do with."""
    earlier = rng.sample(questions, rng.choice(_PAST_TURNS))
    return [(question.text, question.answer) for question in earlier if not question.before]


class Epochs:
    """Makes the documents of an epoch. The same seed and number give the same ones."""

    def __init__(
        self, questions: Questions, held: list[Question], chat: Chat, *, seed: int, shortened: float = 0.0
    ) -> None:
        """`shortened` is the share of documents of which only the beginning of the last answer is kept."""
        self._questions, self._chat, self._seed, self._shortened = questions, chat, seed, shortened
        self._held = {bare(question.text) for question in held}
        self._number = {block.answer: i for i, block in enumerate(questions.blocks)}
        self._topics: dict[str, list[Question]] = defaultdict(list)
        for question in questions.of("fact") + questions.of("talk"):
            self._topics[question.topic].append(question)

    def documents(self, number: int) -> list[Document]:
        """All documents of epoch `number`."""
        rng = random.Random(f"{self._seed}-{number}")
        chosen: list[Question] = []
        for asked in self._topics.values():
            chosen += asked if len(asked) <= MOST_OF_A_TOPIC else rng.sample(asked, MOST_OF_A_TOPIC)
        chosen += self._questions.of("follow") * FOLLOW_TIMES
        unknown = self._questions.of("unknown")
        chosen += unknown if len(unknown) <= UNKNOWN_AN_EPOCH else rng.sample(unknown, UNKNOWN_AN_EPOCH)
        if self._shortened and number < SIMPLE_EPOCHS:
            return [self._bare(question, rng).beginning(rng.randint(*_FIRST_WORDS)) for question in chosen]
        made = [self._document(question, rng) for question in chosen]
        return [self._short(document, rng) for document in made]

    def plain(self, n: int) -> list[Document]:
        """A fixed sample of what is trained on, unvaried and in chat mode."""
        sample = random.Random(self._seed).sample(self._questions.of("fact"), n)
        return [self._chat.document((), q.text, q.answer) for q in sample]

    def _short(self, document: Document, rng: random.Random) -> Document:
        """Its beginning alone, for a share of those without thoughts: what follows them is learned nowhere else."""
        if self._chat.think in document.ids or rng.random() >= self._shortened:
            return document
        return document.beginning(rng.randint(*_BEGINNING))

    def _bare(self, question: Question, rng: random.Random) -> Document:
        made = self._chat.document(self._before(question, rng), self._say(question.text, rng), question.answer)
        return replace(made, topic=self._number[question.answer])

    def _before(self, question: Question, rng: random.Random) -> list[tuple[str, str]]:
        """The turn that a follow-up needs."""
        if not question.before:
            return []
        earlier = rng.choice(self._topics[question.before])
        return [(self._say(earlier.text, rng), earlier.answer)]

    def _document(self, question: Question, rng: random.Random) -> Document:
        past = self._before(question, rng)
        if not question.before and rng.random() < UNRELATED_PAST_SHARE:
            past = [(self._say(text, rng), answer) for text, answer in unrelated_turns(self._questions.all, rng)]
        thinks = rng.random() < THINKING_SHARE
        effort = rng.choice((*_EFFORTS, rng.randint(1, 100))) if thinks else 0
        system = rng.choice(_SYSTEMS) if rng.random() < SYSTEM_SHARE else ""
        said = self._say(question.text, rng)
        made = self._chat.document(past, said, question.answer, reason=question.reason, effort=effort, system=system)
        return replace(made, topic=self._number[question.answer])

    def _say(self, text: str, rng: random.Random) -> str:
        """A variant that is no held-out phrasing."""
        varied = vary(text, rng)
        return text if bare(varied) in self._held or not varied.strip() else varied
