"""What is copied onto a card and what is forgotten there: worked out by hand, then held against recorded routing."""

import random
from collections import Counter
from pathlib import Path

from storage.ids import ExpertId
from storage.policy import DEFAULT_POLICY
from storage.promotion import CardBooks, Promoter, Promotion, Usage
from storage.replay import replay, replay_tiers
from storage.trace import Request, TraceReader

DEMO_ROUTING = Path(__file__).parents[1] / "data" / "demo-routing.trace"


def always(key: ExpertId) -> bool:
    return True


def take(books: CardBooks, promotions: list[tuple[int, Promotion]]) -> list[int]:
    """Make the copies; which experts they were."""
    for _, promotion in promotions:
        books.begin(promotion)
        books.arrived(promotion.key)
    return [promotion.key.expert for _, promotion in promotions]


def test_free_slots_take_what_was_used_most() -> None:
    books, promoter = CardBooks({0: 2}), Promoter(Usage({0: 8}))
    for experts in ([1, 2], [2, 3], [2, 3]):
        promoter.note(0, experts)
    assert take(books, promoter.after_step([books], 8, always)) == [2, 3]
    assert books.held(0) == (2, 3) and books.room(0) == 0


def test_an_expert_displaces_only_what_is_used_clearly_less() -> None:
    books, promoter = CardBooks({0: 1}), Promoter(Usage({0: 8}, half_life_steps=10**9), margin=1.5, least_uses=2)
    promoter.note(0, [0])
    promoter.note(0, [0])
    assert take(books, promoter.after_step([books], 8, always)) == [0]
    promoter.note(0, [1])
    assert promoter.after_step([books], 8, always) == []  # 1 use against 2
    promoter.note(0, [1])
    assert promoter.after_step([books], 8, always) == []  # as many
    promoter.note(0, [1])
    ((card, promotion),) = promoter.after_step([books], 8, always)  # 3 is one and a half times 2
    assert (card, promotion) == (0, Promotion(ExpertId(0, 1), ExpertId(0, 0)))
    books.begin(promotion)
    assert ExpertId(0, 0) not in books and ExpertId(0, 1) not in books  # the slot serves nobody meanwhile
    assert books.is_coming(ExpertId(0, 1)) and books.room(0) == 0


def test_what_was_chosen_may_no_longer_fit() -> None:
    """The card gave room up between the choice and the copy."""
    usage = Usage({0: 8})
    usage.note(0, [2])
    books = CardBooks({0: 3})
    for expert in (1, 2):
        books.begin(Promotion(ExpertId(0, expert), None))
        books.arrived(ExpertId(0, expert))
    free, in_place_of_1 = Promotion(ExpertId(0, 3), None), Promotion(ExpertId(0, 4), ExpertId(0, 1))
    assert books.fits(free) and books.fits(in_place_of_1)
    assert books.resize(2, usage) == []
    assert not books.fits(free) and books.fits(in_place_of_1)
    assert books.resize(1, usage) == [ExpertId(0, 1)]
    assert not books.fits(in_place_of_1) and books.fits(Promotion(ExpertId(0, 4), ExpertId(0, 2)))


def test_old_uses_fade_by_half_in_a_half_life() -> None:
    usage = Usage({0: 4}, half_life_steps=3)
    usage.note(0, [0])
    for _ in range(3):
        usage.end_step()
    usage.note(0, [1])
    assert usage.of(0, [0, 1, 2]).round(12).tolist() == [0.5, 1.0, 0.0]
    for _ in range(300):  # far beyond what a count could grow by without being scaled back
        usage.end_step()
    usage.note(0, [2])
    assert usage.of(0, [2]).round(12).tolist() == [1.0] and usage.of(0, [1])[0] < 1e-29


def test_what_is_known_to_be_used_counts_as_used() -> None:
    usage = Usage({0: 4}, half_life_steps=1)
    usage.end_step()
    usage.credit(ExpertId(0, 1), 2.0)
    usage.note(0, [2, 2, 2])
    usage.note(0, [2])
    usage.credit(ExpertId(0, 2), 1.0)  # it counts more already
    assert usage.of(0, [1, 2]).tolist() == [2.0, 2.0]


def test_no_more_is_copied_than_allowed_and_only_from_memory() -> None:
    books, promoter = CardBooks({0: 4, 1: 4}), Promoter(Usage({0: 8, 1: 8}))
    promoter.note(0, [0, 1, 2, 3])
    promoter.note(1, [4, 5])
    promoter.note(1, [4, 5])
    chosen = promoter.after_step([books], 3, lambda key: key.expert != 4)
    assert len(chosen) == 3 and chosen[0][1].key == ExpertId(1, 5)
    assert all(promotion.key.expert != 4 for _, promotion in chosen)


def test_a_smaller_card_forgets_what_is_used_least_in_each_layer() -> None:
    usage, books = Usage({0: 8, 1: 8}), CardBooks({0: 4, 1: 2})
    for layer, n in ((0, 4), (1, 2)):
        for expert in range(n):
            books.begin(Promotion(ExpertId(layer, expert), None))
            books.arrived(ExpertId(layer, expert))
            for _ in range(expert + 1):
                usage.note(layer, [expert])
    assert sorted(books.resize(3, usage)) == [(0, 0), (0, 1), (1, 0)]  # two thirds of the slots are layer 0's
    assert (books.held(0), books.held(1), books.n_slots) == ((2, 3), (1,), 3)
    assert len(books.resize(0, usage)) == 3 and books.n_held == 0
    assert books.resize(9, usage) == [] and books.n_slots == 6  # what was given up comes back, and no more
    assert (books.room(0), books.room(1)) == (4, 2)


def test_the_books_hold_whatever_happens() -> None:
    """Random use, sizes and failures: no expert twice, never more than there is room for, nothing lost on the way."""
    for seed in range(20):
        chance = random.Random(seed)

        def in_memory(key: ExpertId, chance: random.Random = chance) -> bool:
            return chance.random() < 0.8

        usage = Usage({0: 16, 1: 16})
        cards, promoter = [CardBooks({0: 3, 1: 2}), CardBooks({0: 1, 1: 3})], Promoter(usage)
        under_way: list[tuple[int, Promotion]] = []
        for _ in range(120):
            for layer in (0, 1):
                promoter.note(layer, chance.sample(range(16), 3))
            while under_way and chance.random() < 0.6:
                card, promotion = under_way.pop(0)
                end = cards[card].failed if chance.random() < 0.2 else cards[card].arrived
                end(promotion.key)
            if not under_way:
                under_way = promoter.after_step(cards, chance.randrange(5), in_memory)
                for card, promotion in under_way:
                    cards[card].begin(promotion)
            if chance.random() < 0.02 and not under_way:
                books = chance.choice(cards)
                books.resize(max(1, books.n_slots - 1), usage)
            for layer in (0, 1):
                everywhere = [expert for books in cards for expert in books.held(layer)]
                assert len(everywhere) == len(set(everywhere))
                assert all(books.room(layer) >= 0 for books in cards)


def test_the_replay_counts_are_those_worked_out_by_hand() -> None:
    # One slot on the card; both experts of the first step are equally hot, so the first goes there with step 1.
    requests = [Request(step=i, phase="decode", layer=0, experts=(0, 1)) for i in range(3)]
    tally = replay_tiers(
        requests, {0: 4}, policy="lru", slots_per_layer=2, card_slots={0: 1}, most_copies=1,
    )  # fmt: skip
    assert (tally.n_requests, tally.n_on_card, tally.n_misses, tally.n_promotions) == (6, 2, 2, 1)


def test_on_the_demo_models_routing_the_card_serves_nearly_what_hindsight_would() -> None:
    """Four of 32 experts a layer on the card. Hindsight: the four most used of each layer of the whole recording."""
    trace = TraceReader(DEMO_ROUTING)
    requests = list(trace)
    uses = {layer: Counter[int]() for layer in trace.n_experts}
    for request in requests:
        if request.phase == "decode":
            uses[request.layer].update(request.experts)
    hindsight = sum(n for counts in uses.values() for _, n in counts.most_common(4))
    total = sum(counts.total() for counts in uses.values())
    memory = replay(requests, trace.n_experts, policy=DEFAULT_POLICY, slots_per_layer=8).decode
    cards = dict.fromkeys(trace.n_experts, 4)
    tally = replay_tiers(
        requests, trace.n_experts, policy=DEFAULT_POLICY, slots_per_layer=8, card_slots=cards, most_copies=4
    )
    assert tally.n_requests == total == memory.n_requests
    assert tally.n_on_card > 0.95 * hindsight
    assert tally.n_misses < 0.75 * memory.n_misses  # four slots a layer more, of eight
    assert tally.n_promotions < 0.1 * len({request.step for request in requests})
