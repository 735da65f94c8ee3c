"""The demo's training forward against the engine, on files it exported itself after a few steps of training."""

import math
import random
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from setuptools import find_packages
from torch import Tensor, nn

from assets.demo_recipe.chat import Chat, Document
from assets.demo_recipe.documents import SIMPLE_EPOCHS, Epochs, tokenizer_texts
from assets.demo_recipe.draft import Draft
from assets.demo_recipe.evaluate import Scope, Served, evaluate
from assets.demo_recipe.export import round_in_place
from assets.demo_recipe.geometry import DEMO, TINY
from assets.demo_recipe.head_start import begun, learned, start, told
from assets.demo_recipe.optimise import Batch, balance, batches, optimiser, token_losses, wanted_traffic
from assets.demo_recipe.questions import load
from assets.demo_recipe.recipe import Recipe
from assets.demo_recipe.rounding import ROUND, Reader, pack_fp4, pack_fp8, pack_row8
from assets.demo_recipe.run import Budget, Training
from assets.demo_recipe.tokenizer import token_classes, train_tokenizer
from assets.demo_recipe.train_draft import anchors_of, draft_optimiser, draft_step
from assets.demo_recipe.train_trunk import (
    BEGUN_SHARE,
    RATE,
    TABLE_RATE,
    Pupil,
    engram_seen,
    first_loss,
    measure,
    trunk_optimiser,
    trunk_step,
)
from assets.demo_recipe.trunk import Trunk
from engine.draft.head import DraftTrace
from engine.formats import expand_fp4, expand_fp8, expand_rows
from engine.hashing import compressed_map
from engine.model import never
from engine.prompt import AssistantMessage, SystemMessage, UserMessage, render
from engine.tokens import ChatTokenizer
from tests.engine.drafting import GREEDY, opened, prefilled

STEPS = 6
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Trained:
    """A tiny model after a few steps, exported."""

    recipe: Recipe
    trunk: Trunk
    draft: Draft
    folder: Path
    batch: Batch
    losses: list[float]
    draft_losses: list[float]


def _documents(recipe: Recipe) -> list[Document]:
    """A few conversations, one of two turns and one that thinks."""
    first, second, third = recipe.questions.of("fact")[:300:100]
    return [
        recipe.chat.document((), first.text, first.answer),
        recipe.chat.document(((first.text, first.answer),), second.text, second.answer),
        recipe.chat.document((), third.text, third.answer, reason=third.reason, effort=75),
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("run")
    some = replace(questions := load(), all=questions.all[::20])  # of all texts it takes ten seconds more
    (folder / "tokenizer.json").write_text(train_tokenizer(tokenizer_texts(some), TINY["vocab_size"]), "utf-8")
    recipe = Recipe(folder, sizes=TINY)
    documents = _documents(recipe)
    batch = next(batches(documents, 4000, random.Random(0), recipe.chat.pad))
    assert len(batch.ids) == len(documents)
    torch.manual_seed(0)
    trunk, draft = Trunk(recipe.config), Draft(recipe.config)
    readers = (Reader(rounded=False), Reader(rounded=True))
    pupil = Pupil(trunk, 3)
    optim = trunk_optimiser(pupil, ())
    one = trunk_step(pupil, optim, recipe.row_ids, readers)
    shares = [0.03 + 0.97 * step / STEPS for step in range(STEPS)]  # the last ones with rounded weights
    losses = [one(batch, share, random.Random(step)) for step, share in enumerate(shares)]
    round_in_place(trunk)
    trunk.requires_grad_(False)
    draft_optim = draft_optimiser(draft)
    one = draft_step(trunk, draft, draft_optim, recipe.row_ids, readers, recipe.chat.pad)
    draft_losses = [one(batch, share, random.Random(step)) for step, share in enumerate(shares)]
    round_in_place(draft)
    return Trained(recipe, trunk, draft, recipe.export(trunk, draft), batch, losses, draft_losses)


def _ids(trained: Trained) -> list[int]:
    """The longest conversation: long enough for the indexer to leave something out at both ratios."""
    ids = max(_documents(trained.recipe), key=lambda document: len(document.ids)).ids
    assert len(ids) // 2 > trained.recipe.config.index_topk
    return list(ids)


def _forward(trained: Trained, ids: list[int]) -> tuple[Tensor, Tensor]:
    tokens = torch.tensor([ids])
    with torch.no_grad():
        ran = trained.trunk(tokens, trained.recipe.row_ids(tokens.numpy()), Reader(rounded=False))
    return ran.logits[0], ran.hidden


def test_a_few_steps_lower_the_loss(trained: Trained) -> None:
    assert trained.losses[-1] < trained.losses[0] - 0.3
    assert all(torch.isfinite(torch.tensor(trained.draft_losses)))


def test_the_engine_computes_what_was_trained(trained: Trained) -> None:
    ids = _ids(trained)
    want, _ = _forward(trained, ids)
    with opened(trained.folder) as model:
        result = model.forward(model.new_state(), ids, "prefill", n_logits=len(ids))
    assert float(want.std()) > 0.3
    assert float((result.logits - want).abs().max()) < 1e-3


def test_the_engine_drafts_what_was_trained(trained: Trained) -> None:
    ids = _ids(trained)
    _, hidden = _forward(trained, ids)
    with opened(trained.folder) as model:
        assert model.head is not None
        state, logits = prefilled(model, ids)
        token, trace = int(logits.argmax()), DraftTrace()
        proposal = model.head.propose(state, token, 5, GREEDY.draw, never, trace)
    tokens = torch.tensor([[[token, *proposal.ids]]])
    with torch.no_grad():
        trunk = trained.trunk
        ours, confidence = trained.draft(
            hidden, torch.tensor([[len(ids) - 1]]), tokens, trunk.embed, trunk.head, Reader(rounded=False)
        )
    assert ours[0, 0].max(-1).values.tolist() == pytest.approx(trace.top_logits, abs=1e-3)
    assert ours[0, 0].argmax(-1).tolist() == list(proposal.ids)
    assert confidence[0, 0].tolist() == pytest.approx(proposal.confidence, abs=1e-3)


def test_engram_and_indexer_take_part(trained: Trained) -> None:
    """Else the comparisons above would hold without them."""
    recipe, ids = trained.recipe, torch.tensor([_ids(trained)])
    with torch.no_grad():
        rows, read = recipe.row_ids(ids.numpy()), Reader(rounded=False)
        seen = trained.trunk(ids, rows, read).logits
        blind = trained.trunk(ids, rows, read, keep=torch.zeros(ids.shape)).logits
        for block in trained.trunk.blocks():
            if block.index_source:
                block.i_weights.neg_()  # the worst positions instead of the best
        other = trained.trunk(ids, rows, read).logits
        for block in trained.trunk.blocks():
            if block.index_source:
                block.i_weights.neg_()
    assert float((seen - blind).abs().max()) > 1e-2
    assert float((seen - other).abs().max()) > 1e-3


def test_a_reply_of_the_engine_is_judged_from_the_files(trained: Trained) -> None:
    chat = trained.recipe.chat
    with opened(trained.folder) as model:
        served = Served(model, chat)
        prompt = list(chat.document((), "what is a slot?", "").ids[:-1])
        state, logits = prefilled(model, prompt)
        ids, stats = served.answer(prompt, most_tokens=12)
    assert stats is not None and stats.draft is not None and stats.draft.rounds > 0
    assert (ids or [chat.eos])[0] == int(logits.argmax())
    assert state.n_tokens == len(prompt)


def test_an_evaluation_says_what_was_measured(trained: Trained) -> None:
    recipe = trained.recipe
    held = [next(question for question in recipe.held if question.kind == kind) for kind in ("fact", "unknown", "talk")]
    scope = Scope(thinking=1, later=1, turns_before=1, follow_ups=1, agreement=1, seen=2, most_tokens=4)
    got = evaluate(
        trained.folder, trained.trunk, recipe.row_ids, recipe.chat, recipe.questions, held, scope
    )  # fmt: skip
    groups = {"fact", "unknown", "talk", "thinking", "fact after other turns", "follow-up, seen"}
    assert got["right"].keys() == groups and all(group["n"] == 1 for group in got["right"].values())
    assert {answer["group"] for answer in got["answers"]} == groups
    assert got["agreement"] < 1e-3 and got["no_drafts"] == ""
    assert len(got["drafts"]["accepted_by_position"]) == 5 and got["drafts"]["rounds"] >= 5
    assert len(got["top_quarter_traffic"]) == recipe.config.n_layers
    assert all(0.25 <= share <= 1 for share in got["top_quarter_traffic"])
    assert got["losses"].keys() == {f"{a}, engram {b}" for a in ("seen", "held out") for b in ("on", "off")}


def test_token_classes_are_the_engines(trained: Trained) -> None:
    path = trained.folder / "tokenizer.json"
    classes = token_classes(trained.recipe.chat.tokenizer)
    assert compressed_map(path, n_classes=trained.recipe.config.engram_compressed_vocab_size).tolist() == classes


@pytest.mark.parametrize("effort", [0, 60])
def test_documents_are_rendered_as_the_engine_renders_prompts(trained: Trained, effort: int) -> None:
    tokenizer = ChatTokenizer.load(trained.folder)
    document = trained.recipe.chat.document((("hi", "Hello!"),), "and a split?", "", effort=effort, system="Be brief.")
    messages = [SystemMessage(text="Be brief."), UserMessage(parts=("hi",)), AssistantMessage(text="Hello!")]
    prompt = render(tokenizer, [*messages, UserMessage(parts=("and a split?",))], bool(effort), effort or None)
    assert list(prompt.ids) == list(document.ids[: -2 if effort else -1])


def test_what_is_packed_is_what_was_rounded() -> None:
    w = torch.randn(64, 96, generator=torch.Generator().manual_seed(4)) * torch.logspace(-6, 2, 64).unsqueeze(1)
    w[3, :32] = 0
    for form, pack, expand in (
        ("fp4", pack_fp4, expand_fp4),
        ("fp8", pack_fp8, expand_fp8),
        ("row8", pack_row8, expand_rows),
    ):
        code, scale = pack(w)
        assert torch.equal(expand(code.view(torch.uint8), scale.view(torch.uint8)), ROUND[form](w)), form
        assert torch.equal(ROUND[form](ROUND[form](w)), ROUND[form](w)), form


def test_gradients_pass_through_the_rounding() -> None:
    w = torch.randn(4, 32, requires_grad=True)
    Reader(rounded=True)(w, "fp4").sum().backward()
    assert w.grad is not None and torch.equal(w.grad, torch.ones_like(w))


def test_engram_is_hidden_from_prompts_only(trained: Trained) -> None:
    torch.manual_seed(0)
    hidden, shown = engram_seen(trained.batch, 1.0), engram_seen(trained.batch, 0.0)
    assert torch.equal(hidden.bool(), trained.batch.written)
    assert bool(shown.all())


def test_drafts_are_anchored_where_the_model_writes(trained: Trained) -> None:
    batch = trained.batch
    places, tokens, live = anchors_of(batch, 5, random.Random(1), trained.recipe.chat.pad)
    for row in range(len(batch.ids)):
        for place, following, exists in zip(places[row].tolist(), tokens[row], live[row], strict=True):
            assert batch.written[row, place + 1]
            for k in range(6):
                at = place + 1 + k
                written = at < batch.ids.shape[1] and bool(batch.written[row, at])
                assert bool(exists[k]) == written
                assert not written or int(following[k]) == batch.ids[row, at]


def test_losses_are_of_written_tokens_only(trained: Trained) -> None:
    recipe, documents = trained.recipe, _documents(trained.recipe)
    read = Reader(rounded=False)
    got = measure(trained.trunk, recipe.row_ids, documents, recipe.chat.pad, read)
    with torch.no_grad():
        logits = trained.trunk(trained.batch.tokens, recipe.row_ids(trained.batch.ids), read).logits
    each = token_losses(logits, trained.batch)[trained.batch.written[:, 1:]]
    assert got.loss == pytest.approx(float(each.mean()), rel=1e-4)
    assert got.exact == 0


def test_the_topic_is_read_off_where_the_answer_begins(trained: Trained) -> None:
    """With a matrix that knows one direction for each topic, the loss is that of a choice among three."""
    pupil = Pupil(trained.trunk, 3)
    documents = [replace(document, topic=i) for i, document in enumerate(_documents(trained.recipe))]
    batch = next(batches(documents, 4000, random.Random(0), trained.recipe.chat.pad))
    hidden = torch.zeros(*batch.ids.shape, 3 * trained.recipe.config.dim)
    for row, (position, topic) in enumerate(zip(batch.asked.tolist(), batch.topic.tolist(), strict=True)):
        assert not batch.written[row, position] and bool(batch.written[row, position + 1])
        hidden[row, position, topic] = 1
    pupil.requires_grad_(False)
    assert float(pupil.topic_loss(hidden, batch)) == pytest.approx(math.log(3))
    pupil.topics[range(3), range(3)] = 20.0
    assert float(pupil.topic_loss(hidden, batch)) < 1e-6
    assert float(pupil.topic_loss(hidden.roll(1, 1), batch)) == pytest.approx(math.log(3))


def test_the_first_token_that_is_written_has_a_loss_of_its_own(trained: Trained) -> None:
    batch = trained.batch
    logits = torch.zeros(*batch.ids.shape, trained.recipe.config.vocab_size)
    sure = logits.clone()
    for row, document in enumerate(batch.ids.tolist()):
        written = batch.written[row].nonzero().flatten().tolist()
        begins = max(at for at in written if at - 1 not in written)  # of the last run of written ones
        sure[row, begins - 1, document[begins]] = 30.0
    assert float(first_loss(logits, batch)) == pytest.approx(math.log(logits.shape[-1]))
    assert float(first_loss(sure, batch)) < 1e-6
    assert float(first_loss(sure.roll(1, 1), batch)) > 1


def test_a_head_start_lets_the_trunk_tell_topics_apart_before_any_step(trained: Trained) -> None:
    recipe = trained.recipe
    blocks = recipe.questions.blocks[:3]
    asked = [(i, text) for i, block in enumerate(blocks) for text in block.phrasings[:20]]
    documents = [recipe.chat.document((), text, "") for _, text in asked]
    # Then each behind a turn of another of these topics, which must not drown it.
    turns = [(block.phrasings[20], block.answer) for block in blocks]
    documents += [recipe.chat.document([turns[(i + 1) % 3]], text, "") for i, text in asked]
    asked *= 2
    rows = [document.ids[: document.asked + 1] for document in documents]
    topics = [i for i, _ in asked]
    first = learned(recipe.config, rows, topics, len(blocks), recipe.row_ids, epochs=120)
    known = told(first, rows, recipe.row_ids)
    n = len(known) // 2
    assert _share_equal(known[:n], topics[:n]) > 0.9
    assert _share_equal(known[n:], topics[n:]) > 0.9
    torch.manual_seed(0)
    pupil = Pupil(Trunk(recipe.config), len(blocks))
    assert _share_equal(_best(pupil, recipe, documents)[0], topics) < 0.5  # a third by chance
    begins = [recipe.chat.encode(block.answer)[0] for block in blocks]
    start(pupil, first, begins)
    # The same arithmetic but for queries and gates that are only almost nothing.
    read_off, written = _best(pupil, recipe, documents)
    assert _share_equal(read_off, known) > 0.9
    assert _share_equal(written, [begins[topic] for topic in known]) > 0.9


def test_only_what_the_head_start_made_learns_slowly(trained: Trained) -> None:
    pupil = Pupil(Trunk(trained.recipe.config), 3)
    before = {name: value.detach().clone() for name, value in pupil.named_parameters()}
    names = begun(pupil)
    assert "trunk.embed" in names and "trunk.layers.0.wkv" in names and "trunk.head" not in names
    optim = trunk_optimiser(pupil, names)
    assert sum(len(group["params"]) for group in optim.param_groups) == len(before)
    for value in pupil.parameters():
        value.grad = torch.ones_like(value)
    for group in optim.param_groups:
        group["lr"] = group["base"]
    optim.step()
    moved = {name: float((value - before[name]).detach().abs().max()) for name, value in pupil.named_parameters()}
    # A first step of Adam is as long as the rate, whatever the gradient; decay adds to it.
    assert moved["trunk.embed"] == pytest.approx(RATE * BEGUN_SHARE, rel=0.01)
    assert moved[f"trunk.engrams.{trained.recipe.config.engram_layer_ids[0]}.table"] == pytest.approx(
        TABLE_RATE * BEGUN_SHARE, rel=0.01
    )
    assert min(length for name, length in moved.items() if name not in names) > 0.5 * RATE


def test_every_answer_begins_with_a_token_of_its_own() -> None:
    questions = load()
    some = replace(questions, all=questions.all[::20])
    tokenizer = Chat(train_tokenizer(tokenizer_texts(some), DEMO["vocab_size"]))
    begins = [tokenizer.encode(block.answer)[0] for block in questions.blocks]
    assert len({*begins}) == len(begins)


def _share_equal(some: list[int], others: list[int]) -> float:
    return sum(a == b for a, b in zip(some, others, strict=True)) / len(some)


@torch.no_grad()
def _best(pupil: Pupil, recipe: Recipe, documents: list[Document]) -> tuple[list[int], list[int]]:
    """Of each document the topic that is read off, and the first token that would be written."""
    topics: list[int] = []
    tokens: list[int] = []
    for document in documents:  # one by one, as batches have an order of their own
        (batch,) = batches([document], 1000, random.Random(0), recipe.chat.pad)
        ran = pupil.trunk(batch.tokens, recipe.row_ids(batch.ids), Reader(rounded=False))
        topics += pupil.read_off(ran.hidden, batch).argmax(-1).tolist()
        tokens.append(int(ran.logits[0, batch.asked[0]].argmax()))
    return topics, tokens


def test_the_first_epochs_are_bare_questions_and_first_words(trained: Trained) -> None:
    recipe = trained.recipe
    some = replace(recipe.questions, all=recipe.questions.all[::20])
    epochs = Epochs(some, recipe.held, recipe.chat, seed=1, shortened=0.5)
    simple, later = epochs.documents(0), epochs.documents(SIMPLE_EPOCHS)
    assert len(simple) == len(later)
    assert all(1 <= len(d.ids) - d.asked - 1 <= 4 for d in simple)
    assert sum(len(d.ids) for d in simple) < 0.5 * sum(len(d.ids) for d in later)
    answers = [block.answer for block in recipe.questions.blocks]
    for document in (*simple[:50], *later[:50]):
        written = recipe.chat.decode(document.ids[document.asked + 1 :]).removesuffix("<｜end▁of▁sentence｜>")
        if "</think>" not in written and recipe.chat.think not in document.ids:
            assert answers[document.topic].startswith(written)


def test_routers_are_moved_towards_skewed_traffic(trained: Trained) -> None:
    wanted = wanted_traffic(32, 4, 0)
    assert float(wanted.sum()) == pytest.approx(1)
    assert float(wanted.sort(descending=True).values[:8].sum()) > 0.5
    assert float(wanted.max()) <= 0.25 and float(wanted.min()) > 0
    block = Trunk(trained.recipe.config).blocks()[0]
    block.load = torch.zeros(8)
    block.load[0] = 10
    balance([block], 0.1)
    assert float(block.gate_bias[0]) == pytest.approx(-0.1)
    assert block.gate_bias[1:].tolist() == pytest.approx([0.1] * 7)


class _Numbers:
    """Stands for `Epochs`: documents of two numbers."""

    def documents(self, number: int) -> list[Document]:
        return [Document((number, i), (0.1, 1.0)) for i in range(3)]


def _regression(path: Path, steps: int | None) -> tuple[Tensor, Training]:
    torch.manual_seed(3)
    module = nn.Linear(8, 1)  # batches are padded to a multiple of 8
    optim = optimiser(module, 0.05, 0.05)

    def one(batch: Batch, done: float, rng: random.Random) -> float:
        noise = rng.random() + float(torch.rand(()))
        loss = (module(batch.tokens.float()) - noise - done).square().mean()
        optim.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optim.step()
        return float(loss.detach())

    training = Training(path, module, optim, _Numbers(), seed=1)  # type: ignore[arg-type]
    training.run(one, Budget(seconds=1, steps=steps), positions=2, pad=0)
    return module.weight.detach().clone(), training


def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, _ = _regression(tmp_path / "whole.pt", 8)

    class StoppedError(Exception):
        pass

    saved: list[int] = []

    def stop_after(training: Training, original: Callable[..., float]) -> Callable[..., float]:
        def one(*args: object) -> float:
            if len(saved) == 5:
                training.save()
                raise StoppedError
            saved.append(1)
            return original(*args)

        return one

    patched = Training._one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "_one", lambda self, *args: stop_after(self, patched.__get__(self))(*args))
        with pytest.raises(StoppedError):
            _regression(tmp_path / "stopped.pt", 8)
    resumed, _ = _regression(tmp_path / "stopped.pt", None)
    assert torch.equal(resumed, whole)


def test_the_recipe_is_not_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found = find_packages(str(ROOT), include=project["tool"]["setuptools"]["packages"]["find"]["include"])
    assert "assets" in found and not [name for name in found if name.startswith("assets.")]
    assert not [name for name in project["tool"]["setuptools"]["package-data"]["assets"] if "recipe" in name]
