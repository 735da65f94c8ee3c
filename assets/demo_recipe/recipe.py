"""The whole recipe in a folder: tokenizer, trunk, draft head, checkpoint, evaluation, each where the last run stopped.

The one thing a reader would get wrong: the trunk is rounded to its stored values before the draft head is trained on
it, so the head learns what the shipped trunk writes.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from assets.demo_recipe import evaluate as judging
from assets.demo_recipe.chat import Chat
from assets.demo_recipe.documents import SHORTENED, Epochs, tokenizer_texts, unrelated_turns
from assets.demo_recipe.draft import Draft
from assets.demo_recipe.export import export, round_in_place
from assets.demo_recipe.geometry import DEMO, Geometry, complete, config_of
from assets.demo_recipe.head_start import FirstLayers, begun, learned, start
from assets.demo_recipe.questions import Question, Questions, held_out, load
from assets.demo_recipe.rounding import ROUND, Reader, round_fp4
from assets.demo_recipe.rows import RowIds
from assets.demo_recipe.run import Budget, Training, say
from assets.demo_recipe.tokenizer import token_classes, train_tokenizer
from assets.demo_recipe.train_draft import draft_optimiser, draft_step
from assets.demo_recipe.train_trunk import Pupil, trunk_optimiser, trunk_step
from assets.demo_recipe.trunk import Trunk
from engine.config import ModelConfig

TRUNK_SHARE = 0.88
"""Of the time; the draft head learns in an eighth of what the trunk needs."""
LATER_SHARE = 0.2
"""Questions that the head start learns after turns of other topics too, as a share of all."""
EVALUATION_S = 300.0
"""Set aside for export and evaluation."""


@dataclass(slots=True)
class Recipe:
    """One run in a folder.

    Attributes:
        questions, held, chat, geometry, config, row_ids: What was made of the data; see their types.
    """

    folder: Path
    sizes: Geometry = field(default_factory=lambda: DEMO)
    seed: int = 1
    positions: int = 1600
    """Padded positions of a step."""
    compiled: bool = False
    questions: Questions = field(init=False)
    held: list[Question] = field(init=False)
    chat: Chat = field(init=False)
    geometry: dict[str, Any] = field(init=False)
    config: ModelConfig = field(init=False)
    row_ids: RowIds = field(init=False)
    _tokenizer: str = field(init=False)

    def __post_init__(self) -> None:
        """Read the data; learn the tokenizer, or take the one that the folder has."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.questions, self.held = load(), held_out()
        path = self.folder / "tokenizer.json"
        if not path.exists():
            path.write_text(train_tokenizer(tokenizer_texts(self.questions), self.sizes["vocab_size"]), "utf-8")
        self._tokenizer = path.read_text(encoding="utf-8")
        self.chat = Chat(self._tokenizer)
        classes = token_classes(self.chat.tokenizer)
        self.geometry = complete(self.sizes, classes, self.chat.noise)
        self.config = config_of(self.geometry)
        self.row_ids = RowIds(self.config, classes)

    def _readers(self) -> tuple[Reader, Reader]:
        rounding = dict(ROUND)
        if self.compiled:
            rounding["fp4"] = torch.compile(round_fp4, dynamic=False)
        return Reader(rounded=False), Reader(rounded=True, rounding=rounding)

    def _training(
        self, name: str, module: Pupil | Draft, optim: torch.optim.AdamW, seed: int, *, shortened: float = 0.0
    ) -> Training:
        epochs = Epochs(self.questions, self.held, self.chat, seed=seed, shortened=shortened)
        return Training(self.folder / f"{name}.pt", module, optim, epochs, seed=seed)

    def train_trunk(self, budget: Budget) -> Trunk:
        """Train the trunk to the end; it then holds its stored values."""
        began = time.monotonic()
        torch.manual_seed(self.seed)
        trunk = Trunk(self.config)
        pupil = Pupil(trunk, len(self.questions.blocks))
        if not (self.folder / "trunk.pt").exists():
            self._give_head_start(pupil)
            budget = replace(budget, seconds=max(budget.seconds - (time.monotonic() - began), 1.0))
        optim = trunk_optimiser(pupil, begun(pupil))
        training = self._training("trunk", pupil, optim, self.seed, shortened=SHORTENED)
        training.run(
            trunk_step(pupil, optim, self.row_ids, self._readers()), budget,
            positions=self.positions, pad=self.chat.pad,
        )  # fmt: skip
        round_in_place(trunk)
        return trunk.requires_grad_(False)

    def _give_head_start(self, pupil: Pupil) -> None:
        number = {block.answer: i for i, block in enumerate(self.questions.blocks)}
        path = self.folder / "head_start.pt"
        if path.exists():
            first = FirstLayers(self.config, len(number))
            first.load_state_dict(torch.load(path, weights_only=True))
        else:
            asked = [question for question in self.questions.all if not question.before]
            asked += self.questions.of("unknown") + self.questions.of("talk")  # twice, so that facts do not drown them
            rng = random.Random(self.seed)
            pasts: list[list[tuple[str, str]]] = [[] for _ in asked]
            asked += (later := rng.sample(asked, round(len(asked) * LATER_SHARE)))
            pasts += [unrelated_turns(self.questions.all, rng) for _ in later]
            rows = [self.chat.document(past, q.text, "").ids[:-1] for past, q in zip(pasts, asked, strict=True)]
            topics = [number[question.answer] for question in asked]
            say(f"a head start from {len(rows):,} questions")
            first = learned(self.config, rows, topics, len(number), self.row_ids, seed=self.seed)
            torch.save(first.state_dict(), path)
        start(pupil, first, [self.chat.encode(block.answer)[0] for block in self.questions.blocks])

    def train_draft(self, trunk: Trunk, budget: Budget) -> Draft:
        """Train the draft head of a trunk to the end; it then holds its stored values."""
        torch.manual_seed(self.seed + 1)
        draft = Draft(self.config)
        optim = draft_optimiser(draft)
        training = self._training("draft", draft, optim, self.seed + 1)
        training.run(
            draft_step(trunk, draft, optim, self.row_ids, self._readers(), self.chat.pad), budget,
            positions=self.positions, pad=self.chat.pad,
        )  # fmt: skip
        round_in_place(draft)
        return draft

    def export(self, trunk: Trunk, draft: Draft) -> Path:
        """Write the checkpoint; its folder."""
        folder = self.folder / "checkpoint"
        n_bytes = export(folder, trunk, draft, self.geometry, self._tokenizer)
        say(f"{folder}: {n_bytes / 1e6:.1f} MB")
        return folder

    def evaluate(self, checkpoint: Path, trunk: Trunk) -> dict[str, Any]:
        """Judge the checkpoint; written to `evaluation.json` too."""
        results = judging.evaluate(checkpoint, trunk, self.row_ids, self.chat, self.questions, self.held)
        judging.write(self.folder / "evaluation.json", results)
        return results


def everything(
    recipe: Recipe, minutes: float, *, steps: Sequence[int] | None = None, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Train, export and judge within `minutes`; `steps` are those of trunk and draft head instead. The results."""
    ends = clock() + minutes * 60 - EVALUATION_S
    left = max(ends - clock(), 1.0)
    trunk_steps, draft_steps = steps if steps is not None else (None, None)
    trunk = recipe.train_trunk(Budget(seconds=left * TRUNK_SHARE, steps=trunk_steps))
    draft = recipe.train_draft(trunk, Budget(seconds=max(ends - clock(), 1.0), steps=draft_steps))
    return recipe.evaluate(recipe.export(trunk, draft), trunk)
