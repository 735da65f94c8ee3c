"""From a plan's cards to devices: which hold experts, and which take what of the trunk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.tiers.card import Card
from engine.tiers.trunk import TrunkPlaces
from planner.plan import CardPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCards:
    """The cards of a plan."""

    experts: Mapping[int, tuple[Card, Mapping[int, int]]]
    """By the plan's number of a card that holds experts: the card, and its room by layer."""
    trunk: TrunkPlaces | None
    """None where nothing of the trunk is on a card."""
    elsewhere: bool
    """Whether any of them is another device than the processor."""


def open_cards(plans: Sequence[CardPlan], devices: Sequence[torch.device]) -> OpenCards:
    """The devices that a plan uses; those the system no longer has are left out."""
    there = [plan for plan in plans if plan.card < len(devices)]
    cards = {
        plan.card: Card(devices[plan.card], plan.name)
        for plan in there
        if plan.layers or plan.head or plan.drafts or any(plan.slots.values())
    }
    layers = {layer: cards[plan.card] for plan in there for layer in plan.layers}
    head = next((cards[plan.card] for plan in there if plan.head), None)
    drafts = next((cards[plan.card] for plan in there if plan.drafts), None)
    return OpenCards(
        experts={plan.card: (cards[plan.card], plan.slots) for plan in there if any(plan.slots.values())},
        trunk=TrunkPlaces(layers, head, drafts) if layers or head else None,
        elsewhere=any(card.device.type != "cpu" for card in cards.values()),
    )
