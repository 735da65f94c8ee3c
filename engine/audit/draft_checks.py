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
    names = having(tensors, lambda tensor: tensor.stage is not None and tensor.role.startswith(roles))
    yield from view.demand(names)
    for name in names:
        if not name.endswith(".scale"):
            yield from view.shape(name, tensors[name].shape)
    for name, place in view.places.items():
        if place.stage and place.role.startswith(roles) and name not in tensors:
            yield view.unexpected(name)


def _stages(view: View) -> Iterator[Finding]:
    config, tensors = demands(view)
    own = (*_HEADS, *_PROJECTION)
    yield from view.demand(
        having(tensors, lambda t: t.stage is not None and t.expert is None and not t.role.startswith(own))
    )
    for name, place in view.places.items():
        in_stage = place.stage and place.number < config.n_mtp_layers
        if in_stage and place.expert is None and not place.role.startswith(own) and name not in tensors:
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
