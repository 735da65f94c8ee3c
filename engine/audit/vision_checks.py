"""Checks on the image tower, the aligner and the span vectors. A text engine reads none of them."""

from collections.abc import Iterator

from engine.audit.check import Check, demands
from engine.audit.records import Finding, Note
from engine.audit.view import View
from engine.inventory import is_place_holder_tower, place_holder_shapes, vision_tensors

_PREFIXES = ("vision.", "aligner.", "image_")


def _present(view: View) -> Iterator[Finding]:
    config, _ = demands(view)
    if config.vision_n_layers == 0:
        yield Note(text="the config has no image tower")
    known = vision_tensors(config)
    if is_place_holder_tower(view.names):
        yield Note(text="the image tower is a place holder: only what is there is checked, images cannot be read")
        known_names = set(place_holder_shapes(config))
    else:
        known_names = set(known)
        yield from view.demand(known)
    for name in sorted(view.names):
        if name.startswith(_PREFIXES) and name not in known_names:
            yield view.unexpected(name)


def _shapes(view: View) -> Iterator[Finding]:
    config, _ = demands(view)
    if is_place_holder_tower(view.names):
        for name, shapes in place_holder_shapes(config).items():
            if name in view.names:
                yield from view.shape(name, *shapes)
    else:
        for name, tensor in vision_tensors(config).items():
            yield from view.shape(name, tensor.shape)


CHECKS = (
    Check(
        name="vision.blocks", title="all blocks of the image tower, aligner and span vectors are there", judge=_present
    ),
    Check(name="vision.shapes", title="image tower, aligner and span vectors have the config's shapes", judge=_shapes),
)
