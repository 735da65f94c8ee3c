"""Checks on the config files alone."""

from collections.abc import Iterator

from engine.audit.check import Check
from engine.audit.records import Fault, Finding, Note, Waiting
from engine.audit.view import View
from engine.config import verify
from engine.config_layouts import FIELDS

_TITLES = {
    "config.ratios-length": "one compression ratio per layer and draft stage",
    "config.draft-ratios": "draft stages compress nothing",
    "config.source-order": "source layers are distinct, ascending and inside the backbone",
    "config.kv-subset": "KV sources are index sources",
    "config.source-ratios": "every source layer compresses",
    "config.index-over-kv": "every index source has a KV source at or below it",
    "config.readers": "every compressing layer has sources of its own ratio at or below it",
    "config.candidate-source": "the candidate source is the first index source from the last KV source on",
    "config.candidate-reach": "candidate blocks hold as many positions as are selected",
    "config.draft-targets": "draft targets are the last backbone layers",
    "config.engram-sizes": "one table size per engram layer",
    "config.engram-layers": "engram layers are distinct, ascending and inside the backbone",
    "config.compressed-vocabulary": "the compressed vocabulary has a plausible size",
    "config.token-ids": "special tokens lie inside the vocabulary",
    "config.vision": "the image tower's sizes fit together",
    "config.sizes": "sizes divide as the formats need them",
    "config.arithmetic": "the arithmetic is the one this engine computes",
}
"""What each relation of `engine.config` says when it holds."""


def _keys(view: View) -> Iterator[Finding]:
    if view.reading is None:
        hint = view.config_error.hint if view.config_error else ""
        yield Fault(message=str(view.config_error), found="unreadable", expected="a config", hint=hint)
        return
    if (other := view.reading.other_model) is not None:
        values: dict[str, object] = dict.fromkeys(view.reading.missing, "absent")
        message = f"this is the config of {other!r}, without {len(values)} of the keys that are needed"
        yield Fault(message=message, found=other, expected="DeepSeek-V4.1-Flash", values=values)
        return
    for name in view.reading.missing:
        keys = [file.key_of(name) for file in view.reading.files]
        yield Fault(
            message=f"no config file has the needed key {keys[0]}",
            found="absent",
            expected="present",
            values={name: "absent"},
        )
    if view.reading.unknown:
        yield Note(text=f"nothing reads {', '.join(view.reading.unknown)}")


def _files_agree(view: View) -> Iterator[Finding]:
    if view.reading is None:
        yield Waiting(what="a readable config")
        return
    if len(view.reading.files) < 2:
        yield Note(text=f"only {view.reading.files[0].path.name} was read")
    read = {spec.name for spec in FIELDS if spec.read}
    for difference in view.reading.differences:
        if not difference.conflict:
            continue
        said = f"{difference.field}: {difference.nested!r} in the nested file, {difference.flat!r} in the flat one"
        if difference.field in read:
            values = {difference.field: difference.nested}
            yield Fault(message=said, found=difference.flat, expected=difference.nested, values=values)
        else:
            yield Note(text=f"{said}; nothing is decided by it")


def _relation(name: str) -> Check:
    def judge(view: View) -> Iterator[Finding]:
        if view.config is None:
            yield Waiting(what="a config with every needed key")
            return
        for violation in verify(view.config):
            if violation.relation == name:
                yield Fault(message=violation.message, values=violation.values)

    return Check(name=name, title=_TITLES[name], judge=judge, derived=False)


CHECKS = (
    Check(name="config.keys", title="every needed key is there", judge=_keys, derived=False),
    *(_relation(name) for name in _TITLES),
    Check(name="config.files-agree", title="the config files agree", judge=_files_agree, derived=False),
)
