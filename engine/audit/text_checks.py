"""Checks on the small files beside the shards that a chat needs: the tokenizer, and the sampling defaults.

Whether the tokenizer folds to `engram_compressed_vocab_size` classes is told when a model is opened: it takes 100 MB
and another half second.
"""

from collections.abc import Iterator

from engine.audit.check import Check
from engine.audit.records import Fault, Finding, Note, Waiting
from engine.audit.view import View
from engine.errors import ConfigError, SamplerSettingsError, TokenizerError
from engine.sampler_settings import default_settings
from engine.tokenizer_file import TokenizerFile, read_tokenizer_file
from engine.tokens import added_tokens


def _tokenizer(view: View) -> Iterator[Finding]:
    path = view.inventory.folder / "tokenizer.json"
    if not path.exists():  # a folder of shards alone may be all there is yet
        yield Waiting(what=path.name)
        return
    try:
        tokenizer = read_tokenizer_file(path)
        tokenizer.full()  # 0.5 s and 57 MB for the release: what the library refuses is known only by making it
    except TokenizerError as error:
        yield Fault(message=str(error), found="unusable", expected="a byte-level BPE", hint=error.hint)
        return
    if view.config is None:
        yield Waiting(what="a readable config")
        return
    highest = _highest_id(tokenizer)
    if highest >= view.config.vocab_size:
        yield Fault(
            message=f"{path.name} has token id {highest:,}, the model a vocabulary of {view.config.vocab_size:,}",
            found=highest,
            expected=view.config.vocab_size - 1,
            hint="The tokenizer is another model's.",
        )
        return
    try:
        added_tokens(tokenizer, view.config.image_token_id)  # as a run looks at them
    except TokenizerError as error:
        yield Fault(message=str(error), found="unusable", expected="the model's tokenizer", hint=error.hint)


def _highest_id(tokenizer: TokenizerFile) -> int:
    content = tokenizer.content
    ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])]
    return max(ids, default=-1)


def _sampling(view: View) -> Iterator[Finding]:
    folder = view.inventory.folder
    try:
        default_settings(folder)
    except (ConfigError, SamplerSettingsError) as error:
        yield Fault(message=str(error), found="unusable", expected="sampling settings in their ranges", hint=error.hint)
    if not (folder / "generation_config.json").exists():
        yield Note(text="there is no generation_config.json: the vendor's sampling is used")


CHECKS = (
    Check(name="text.tokenizer", title="the tokenizer is the model's", judge=_tokenizer, derived=False),
    Check(name="text.sampling", title="the sampling defaults can be used", judge=_sampling, derived=False),
)
