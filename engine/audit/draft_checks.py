"""Checks on the draft head: what its first and last stage have of their own, and what none may have."""

from collections.abc import Iterator

from engine.audit.check import Check, demands, having
from engine.audit.records import Finding
from engine.audit.view import View

_HEADS = ("markov_head.", "confidence_head.")
_PROJECTION = ("main_proj.", "main_norm.")


def _own_part(view: View, roles: tuple[str, ...]) -> Iterator[Finding]:
    """These roles are where the config puts them, in shape, and in no other stage."""
    _, tensors = demands(view)
    names = having(view, lambda role: role.startswith(roles), stage=True)
    yield from view.demand(names)
    for name in names:
        if not name.endswith(".scale"):
            yield from view.shape(name, tensors[name].shape)
    for name, place in view.extras.items():
        if place is not None and place.stage and place.role.startswith(roles):
            yield view.unexpected(name)


def _stages(view: View) -> Iterator[Finding]:
    config, _ = demands(view)
    judged_elsewhere = (*_HEADS, *_PROJECTION, "ffn.experts.")
    yield from view.demand(having(view, lambda role: not role.startswith(judged_elsewhere), stage=True))
    for name, place in view.extras.items():
        if place is None or not place.stage or place.number >= config.n_mtp_layers:
            continue
        if place.expert is None and not place.role.startswith((*_HEADS, *_PROJECTION)):
            yield view.unexpected(name)


CHECKS = (
    Check(
        name="draft.heads",
        title="Markov and confidence heads only on the last stage, in shape",
        judge=lambda view: _own_part(view, _HEADS),
    ),
    Check(
        name="draft.projection",
        title="target projection only on the first stage, as wide as the targets",
        judge=lambda view: _own_part(view, _PROJECTION),
    ),
    Check(name="draft.stages", title="every stage has attention and FFN, no compression, no engram", judge=_stages),
)
