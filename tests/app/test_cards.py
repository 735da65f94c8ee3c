"""A backend whose plan uses cards, which the processor stands in for: what is said is the same, to the last bit."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from app.backends.base import TurnRequest
from app.backends.local import LocalBackend
from app.paths import demo_folder
from app.reading import Reading
from engine.draft.settings import DraftSettings
from engine.events import Notice, TokenDrawn, TurnDone
from engine.prompt import UserMessage
from engine.sampler_settings import SamplerSettings
from engine.tiers.tiers import CardFigures
from planner.facts import Gpu
from planner.plan import Size, Wishes

MB = 1_000_000
QUESTION = UserMessage(parts=("How do I add a second drive?",))


@pytest.fixture(autouse=True)
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cards of 1 GB in the facts, and the processor for a device of each."""
    cards = tuple(Gpu(name=f"made up {i}", total_bytes=1000 * MB, free_bytes=1000 * MB) for i in range(2))
    monkeypatch.setattr("app.planning.may_have_gpu", lambda: True)
    monkeypatch.setattr("app.planning.find_gpus", lambda: (cards, ""))
    monkeypatch.setattr("app.backends.local.card_devices", lambda: (torch.device("cpu"),) * 2)


@contextmanager
def opened(folder: Path, wishes: Wishes, draft: DraftSettings, notices: list[str]) -> Iterator[LocalBackend]:
    backend = LocalBackend(
        folder, numerics="exact", index_owner="published", reading=Reading(), token_map_cache=None, profiles=None,
        wishes=wishes, draft=draft,
    )  # fmt: skip
    backend.open(lambda event: notices.append(event.text) if isinstance(event, Notice) else None, lambda: False)
    try:
        yield backend
    finally:
        backend.close()


def answer(backend: LocalBackend, n_tokens: int) -> tuple[list[int], TurnDone]:
    sampling = SamplerSettings(temperature=0, seed=1)
    asked = TurnRequest(messages=(QUESTION,), effort=None, sampling=sampling, max_tokens=n_tokens, replay=True)
    events = list(backend.generate(asked, lambda: False))
    done = events[-1]
    assert isinstance(done, TurnDone)
    return [event.token for event in events if isinstance(event, TokenDrawn)], done


SIZES: Mapping[str, tuple[Wishes, bool]] = {
    "no card": (Wishes(), False),
    "some layers and experts": (Wishes(vram=Size(n_bytes=9 * MB), slots=2), True),
    "all layers and some experts": (Wishes(vram=Size(n_bytes=15 * MB), slots=4), True),
    "everything on cards": (Wishes(vram=Size(share=0.9)), True),
}


def test_the_demo_says_the_same_wherever_its_experts_lie() -> None:
    said: dict[str, list[int]] = {}
    for name, (wishes, on_cards) in SIZES.items():
        with opened(demo_folder(), wishes, DraftSettings(mode="off"), []) as backend:
            said[name], done = answer(backend, 8)
            if name == "all layers and some experts":
                again, done = answer(backend, 8)  # with what the first turn brought onto cards
                assert again == said[name]
            assert bool(_figures(backend)) is on_cards and bool(done.stats.card_hits) is on_cards
            assert done.stats.card_hits <= done.stats.expert_hits
    assert all(tokens == said["no card"] for tokens in said.values())


def test_drafts_are_verified_over_tiers_as_without_them() -> None:
    """The draft stages' experts stay in memory, the backbone's lie on two cards."""
    wishes = Wishes(vram=Size(n_bytes=15 * MB), slots=4)
    with opened(demo_folder(), wishes, DraftSettings(mode="off"), []) as backend:
        plain, _ = answer(backend, 8)
    with opened(demo_folder(), wishes, DraftSettings(mode="on"), []) as backend:
        drafted, done = answer(backend, 8)
        assert done.stats.draft is not None and done.stats.draft.drafted > 0
        assert sum(card.n_served for card in _figures(backend)) > 0
    assert drafted == plain


def test_the_plan_says_that_no_card_has_run_it_and_a_turn_teaches_nothing_of_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(demo_folder(), Wishes(vram=Size(n_bytes=14 * MB)), DraftSettings(mode="off"), []) as backend:
        assert backend.planned is not None and backend._keeper is not None
        rates = backend.planned.facts.rates
        learnt: list[object] = []
        monkeypatch.setattr(backend._keeper._book, "note_factors", lambda **factors: learnt.append(factors))
        answer(backend, 8)
        assert learnt == [] and backend.planned.facts.rates.answer_factor == rates.answer_factor
        plan = backend.planned.plan
        assert [card.ceiling_bytes for card in plan.cards] == [14 * MB, 14 * MB]
        assert any("No card has run this version" in note for note in plan.notes)
    with opened(demo_folder(), Wishes(), DraftSettings(mode="off"), []) as backend:
        assert backend.planned is not None and backend.planned.plan.cards == ()


def _figures(backend: LocalBackend) -> tuple[CardFigures, ...]:
    assert backend._model is not None
    cards = backend._model.streams.cards
    return () if cards is None else cards.figures()
