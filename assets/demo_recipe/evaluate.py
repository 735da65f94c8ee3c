"""What an exported checkpoint does, run by the engine: held-out questions, drafts, use of experts, engram on and off.

The one thing a reader would get wrong: answers come from the engine on the files, losses from the training forward on
rounded weights, and `agreement` is the largest difference between the two.
"""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from assets.demo_recipe.chat import Chat, Document
from assets.demo_recipe.judge import Judge
from assets.demo_recipe.questions import Question, Questions
from assets.demo_recipe.rounding import Reader
from assets.demo_recipe.rows import RowIds
from assets.demo_recipe.train_trunk import measure
from assets.demo_recipe.trunk import Trunk
from engine.config import load_config
from engine.draft.drafter import Drafter
from engine.draft.settings import DraftSettings
from engine.events import TokenDrawn, TurnDone, TurnStats
from engine.generate import generate
from engine.model import Model
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint

THINKING_EFFORT = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """How much is judged beside all held-out questions."""

    thinking: int = 20
    """Held-out facts asked in thinking mode too."""
    later: int = 64
    """Held-out facts asked after `turns_before` turns of other topics too."""
    turns_before: int = 3
    follow_ups: int = 30
    """Follow-ups, which are trained on: of two turns none is held out."""
    agreement: int = 8
    """Documents on which engine and training forward are compared."""
    seen: int = 300
    """Documents that were trained on, for the losses."""
    most_tokens: int = 160
    """Of a reply."""


class Served:
    """The engine on a checkpoint folder, greedy, always drafting, its requests for experts counted."""

    def __init__(self, model: Model, chat: Chat) -> None:
        self.model, self._chat = model, chat
        self._sampler = Sampler(SamplerSettings(temperature=0))
        self.drafter: Drafter | None = None
        if model.head is not None:
            settings = DraftSettings(mode="on")
            self.drafter = Drafter(model.head, settings, block_size=model.config.dspark_block_size)

    def answer(self, prompt: Sequence[int], *, most_tokens: int) -> tuple[list[int], TurnStats | None]:
        """The ids of a reply, reasoning included, and its figures."""
        if self.drafter is not None:
            self.drafter.begin_turn()
        ids: list[int] = []
        stats: TurnStats | None = None
        events = generate(
            self.model, self.model.new_state(), prompt, sampler=self._sampler, max_tokens=most_tokens,
            stop_ids={self._chat.eos}, drafter=self.drafter,
        )  # fmt: skip
        for event in events:
            if isinstance(event, TokenDrawn):
                ids.append(event.token)
            elif isinstance(event, TurnDone):
                stats = event.stats
        return ids, stats


@contextmanager
def served(folder: Path, chat: Chat, traffic: dict[int, Counter[int]]) -> Iterator[Served]:
    """A checkpoint folder opened in the engine; requests for experts are added to `traffic`, by layer."""

    def observe(layer: int, experts: Sequence[int], _: str) -> None:
        traffic[layer].update(experts)

    config = load_config(folder).config
    with Checkpoint.open(folder) as files:
        settings = StreamSettings(slots_per_layer=config.n_routed_experts)
        model = Model.open(files, config, streams=settings, drafts=True, observers=[observe])
        try:
            yield Served(model, chat)
        finally:
            model.close()


def prompt_of(chat: Chat, question: Question, past: Sequence[tuple[str, str]], effort: int) -> list[int]:
    """The ids up to where the model writes."""
    document = chat.document(past, question.text, "", effort=effort)
    return list(document.ids[: -2 if effort else -1])  # without the end, and in thinking mode without `</think>`


def evaluate(
    folder: Path, trunk: Trunk, row_ids: RowIds, chat: Chat, questions: Questions, held: Sequence[Question],
    scope: Scope = Scope(),
) -> dict[str, Any]:  # fmt: skip
    """Everything that is judged, as JSON has it. `trunk` must hold its stored values."""
    judge, traffic = Judge(questions.blocks), defaultdict[int, Counter[int]](Counter)
    results: dict[str, Any] = {}
    drafted, accepted, rounds, tokens, forwards = Counter[int](), Counter[int](), 0, 0, 0
    answers: list[dict[str, Any]] = []
    with served(folder, chat, traffic) as engine:
        results["no_drafts"] = engine.model.no_drafts
        for name, question, past, effort in _asked(questions, held, scope):
            ids, stats = engine.answer(prompt_of(chat, question, past, effort), most_tokens=scope.most_tokens)
            reason, text = _parts(chat, ids, effort)
            answers.append(
                {
                    **{"group": name, "topic": question.topic, "question": question.text, "answer": text},
                    **({"reason": reason} if effort else {}),
                    "right": judge.is_right(question, text),
                }
            )
            if stats is not None and stats.draft is not None:
                drafted.update(dict(enumerate(stats.draft.drafted_by_position)))
                accepted.update(dict(enumerate(stats.draft.accepted_by_position)))
                rounds += stats.draft.rounds
                tokens += len(ids) + 1
                forwards += stats.draft.forwards
        results["agreement"] = _agreement(engine.model, trunk, row_ids, questions, chat, scope.agreement)
    results["right"] = _shares(answers)
    results["drafts"] = {
        "accepted_by_position": [round(accepted[i] / max(drafted[i], 1), 3) for i in sorted(drafted)],
        "mean_accepted": round(sum(accepted.values()) / max(rounds, 1), 3),
        "tokens_a_forward": round(tokens / max(forwards, 1), 3),
        "rounds": rounds,
    }
    layers = range(trunk.config.n_layers)
    results["top_quarter_traffic"] = [_top_quarter(traffic[i], trunk.config.n_routed_experts) for i in layers]
    results["losses"] = _losses(trunk, row_ids, chat, questions, held, scope.seen)
    results["answers"] = answers
    return results


def _asked(
    questions: Questions, held: Sequence[Question], scope: Scope
) -> Iterator[tuple[str, Question, list[tuple[str, str]], int]]:
    """Group, question, the turns before, effort."""
    for question in held:
        group = question.kind
        yield ("about artesian" if "Artesian" in question.topic and group == "unknown" else group), question, [], 0
    drawing = random.Random(1)
    facts = [question for question in held if question.kind == "fact"]
    for question in drawing.sample(facts, min(scope.thinking, len(facts))):
        yield "thinking", question, [], THINKING_EFFORT
    talked = [question for question in questions.all if not question.before]
    for question in drawing.sample(facts, min(scope.later, len(facts))):
        past = [(earlier.text, earlier.answer) for earlier in drawing.sample(talked, scope.turns_before)]
        yield "fact after other turns", question, past, 0
    blocks = {block.topic: block for block in questions.blocks}
    follow_ups = questions.of("follow")
    for question in drawing.sample(follow_ups, scope.follow_ups):
        before = blocks[question.before]
        yield "follow-up, seen", question, [(before.phrasings[0], before.answer)], 0


def _parts(chat: Chat, ids: list[int], effort: int) -> tuple[str, str]:
    """Reasoning and answer."""
    if not effort or chat.end_think not in ids:
        return "", chat.decode(ids)
    cut = ids.index(chat.end_think)
    return chat.decode(ids[:cut]), chat.decode(ids[cut + 1 :])


def _shares(answers: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        groups[answer["group"]].append(answer["right"])
    return {name: {"n": len(hits), "right": sum(hits), "share": sum(hits) / len(hits)} for name, hits in groups.items()}


def _top_quarter(counts: Counter[int], n_experts: int) -> float:
    ordered = sorted(counts.values(), reverse=True)
    return round(sum(ordered[: n_experts // 4]) / max(sum(ordered), 1), 3)


@torch.no_grad()
def _agreement(model: Model, trunk: Trunk, row_ids: RowIds, questions: Questions, chat: Chat, n: int) -> float:
    """The largest difference of a logit between the engine's prefill and the training forward."""
    worst = 0.0
    for question in random.Random(2).sample(questions.of("fact"), n):
        ids = torch.tensor([chat.document((), question.text, question.answer).ids])
        ours = trunk(ids, row_ids(ids.numpy()), Reader(rounded=False)).logits[0]
        state = model.new_state()
        theirs = model.forward(state, ids[0].tolist(), "prefill", n_logits=ids.shape[1]).logits
        worst = max(worst, float((ours - theirs).abs().max()))
    return worst


def _losses(
    trunk: Trunk, row_ids: RowIds, chat: Chat, questions: Questions, held: Sequence[Question], n_seen: int
) -> dict[str, dict[str, float]]:
    def documents(asked: Sequence[Question]) -> list[Document]:
        return [chat.document((), q.text, q.answer) for q in asked]

    seen = random.Random(3).sample(questions.of("fact"), n_seen)
    groups = {"seen": documents(seen), "held out": documents([q for q in held if q.kind == "fact"])}
    read = Reader(rounded=False)
    return {
        f"{name}, engram {'on' if engram else 'off'}": asdict(
            measure(trunk, row_ids, group, chat.pad, read, engram=engram)
        )
        for name, group in groups.items()
        for engram in (True, False)
    }


def write(path: Path, results: dict[str, Any]) -> None:
    """The results as a JSON file."""
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
