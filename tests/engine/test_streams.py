"""How the model is read never shows in what it says; drives that fail in the middle of an answer."""

import errno
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import ModelConfig, load_config
from engine.events import Notice, PrefillProgress, TokenDrawn, TurnDone
from engine.generate import generate
from engine.model import Model
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint
from storage.errors import DriveError
from storage.expert_layout import expert_layout
from tests.engine.conftest import TINY
from tests.engine.stream_matrix import AXES, PROMPT, Answers, Folders, Way, greedy, some_ways
from tests.fakes import FlakyDrive

PLAIN = Way(slots=16, depth=1, io="buffered", copies="one drive", policy="lru", rows=0)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The fixture and copies of it, each folder a drive of its own."""
    return Answers(Folders.make(tmp_path_factory.mktemp("drives")))


@pytest.fixture(scope="module")
def plain(answers: Answers) -> list[int]:
    """The answer when everything is cached and read plainly from one drive."""
    return answers.tokens(PLAIN)


def test_the_ways_tried_here_hold_every_pair_of_values() -> None:
    ways = list(some_ways())
    names = list(AXES)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            met = {(getattr(way, one), getattr(way, other)) for way in ways}
            assert len(met) == len(AXES[one]) * len(AXES[other]), (one, other)


def test_the_answer_does_not_depend_on_how_it_is_read(answers: Answers, plain: list[int]) -> None:
    for way in some_ways():
        assert answers.tokens(way) == plain, way


def test_every_drive_of_a_mirror_is_used(answers: Answers) -> None:
    with answers.model(replace(PLAIN, copies="mirror", slots=3)) as model:
        greedy(model)
        read = {drive.drive: drive.payload_bytes for drive in model.streams.drives()}
    assert set(read) == {"checkpoint", "whole"} and min(read.values()) > 0.2 * sum(read.values())


def test_an_expert_of_the_released_layout_is_two_reads_with_at_most_two_blocks_each(tiny_config: ModelConfig) -> None:
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        layout = expert_layout(checkpoint.tensors, "layers.3.ffn.experts.7.")
        payload = sum(part.length for part in layout.parts)
        assert len(layout.extents) == 2 and layout.payload_bytes == payload
        settings = StreamSettings(slots_per_layer=1, spare_slots=0, io="direct")
        model = Model.open(checkpoint, tiny_config, streams=settings)
        before = model.streams.drives()
        for _ in model.streams.experts.waves(3, [7], phase="decode"):
            pass
        (after,) = model.streams.drives()
        model.close()
    done = (after.n_reads, after.payload_bytes, after.read_bytes)
    if before:
        done = (done[0] - before[0].n_reads, done[1] - before[0].payload_bytes, done[2] - before[0].read_bytes)
    assert done[:2] == (2, payload)
    assert payload <= done[2] <= payload + 2 * 2 * 4096


def open_tiny(checkpoint: Checkpoint, slots: int, notices: deque[str] | None = None) -> Model:
    config = load_config(TINY / "checkpoint").config
    settings = StreamSettings(slots_per_layer=slots, spare_slots=0, cache_rows=0, io="buffered")
    return Model.open(checkpoint, config, streams=settings, notices=notices)


class FailingLater(FlakyDrive):
    """A drive that is in order until it is told which of its files fail from now on, or once."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = ""
        self.once = False
        self.n_failed = 0
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, direct: bool) -> int:
        """The real one; remembers whose descriptor it is."""
        fd = super().open(path, direct=direct)
        self._names[fd] = str(path)
        return fd

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """The real one, or EIO."""
        if self.broken and self.broken in self._names.get(fd, ""):
            self.n_failed += 1
            if self.once:
                self.broken = ""
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(fd, target, offset)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingLater]:
    """Every file of the streams is opened on this drive."""
    drive = FailingLater()
    from storage.replica_files import ReplicaFiles

    real = ReplicaFiles.open.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        ReplicaFiles, "open", classmethod(lambda cls, *args, **kwargs: real(cls, *args, **{**kwargs, "system": drive}))
    )
    yield drive


def turn(model: Model, fail_after: int, drive: FailingLater, broken: str) -> Iterator[object]:
    state = model.new_state()
    n = 0
    for event in generate(
        model, state, PROMPT, sampler=Sampler(SamplerSettings(temperature=0)), max_tokens=6, stop_ids=()
    ):
        yield event
        if isinstance(event, TokenDrawn):
            n += 1
            if n == fail_after:
                drive.broken = broken


def test_without_another_copy_the_turn_fails_by_file_offset_and_errno_and_the_conversation_goes_on(
    failing: FailingLater, plain: list[int]
) -> None:
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        model = open_tiny(checkpoint, 1)
        state = model.new_state()
        state.commit(model.forward(state, PROMPT[:7], "prefill").step)
        state.commit(model.forward(state, PROMPT[7:], "prefill").step)
        before = state.contents()
        failing.broken = "model-00005"
        with pytest.raises(DriveError) as caught:
            model.forward(state, [plain[0]], "decode")
        assert caught.value.errno == errno.EIO and "model-00005" in str(caught.value)
        assert caught.value.offset is not None
        failing.broken = ""
        after = state.contents()
        assert all((before[name] == after[name]).all() for name in before)
        found = []
        for token in plain[:-1]:
            result = model.forward(state, [token], "decode")
            state.commit(result.step)
            found.append(int(result.logits[-1].argmax()))
        assert found == plain[1:]
        model.close()


@pytest.mark.parametrize("once", [True, False])
def test_a_mirror_that_fails_in_mid_answer_is_left_and_said(failing: FailingLater, tmp_path: Path, once: bool) -> None:
    folders = Folders.make(tmp_path)
    notices: deque[str] = deque()
    with Checkpoint.open(TINY / "checkpoint") as alone:
        model = open_tiny(alone, 1)
        want = [e.token for e in turn(model, 99, failing, "") if isinstance(e, TokenDrawn)]
        model.close()
    with Checkpoint.open(
        TINY / "checkpoint",
        mirrors=[folders.whole],
        find_drive=folders.drive,
        on_demotion=lambda demotion: notices.append(f"{demotion.drive} failed: {demotion.error}"),
    ) as checkpoint:
        model = open_tiny(checkpoint, 1, notices)
        failing.once = once
        events = list(turn(model, 2, failing, str(folders.whole)))
        model.close()
    assert failing.n_failed >= 1
    assert [e.token for e in events if isinstance(e, TokenDrawn)] == want
    said = [e.text for e in events if isinstance(e, Notice) and "fit" not in e.text]
    assert said and all("whole failed" in text and "model-000" in text for text in said)
    done = events[-1]
    assert isinstance(done, TurnDone) and done.reason == "length"


def test_a_mirror_whose_files_are_removed_in_mid_answer_does_not_end_it(tmp_path: Path, answers: Answers) -> None:
    folders = Folders.make(tmp_path)
    with Checkpoint.open(TINY / "checkpoint", mirrors=[folders.whole], find_drive=folders.drive) as checkpoint:
        model = open_tiny(checkpoint, 1)
        events = []
        for event in generate(
            model, model.new_state(), PROMPT, sampler=Sampler(SamplerSettings(temperature=0)), max_tokens=4, stop_ids=()
        ):
            if isinstance(event, PrefillProgress):
                for shard in folders.whole.iterdir():
                    shard.unlink()
            events.append(event)
        model.close()
    with Checkpoint.open(TINY / "checkpoint") as alone:
        model = open_tiny(alone, 1)
        want = list(
            generate(
                model, model.new_state(), PROMPT, sampler=Sampler(SamplerSettings(temperature=0)), max_tokens=4,
                stop_ids=(),
            )
        )  # fmt: skip
        model.close()
    assert [e for e in events if isinstance(e, TokenDrawn)] == [e for e in want if isinstance(e, TokenDrawn)]


def test_a_step_that_does_not_fit_is_said_once(plain: list[int]) -> None:
    notices: deque[str] = deque()
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        model = open_tiny(checkpoint, 1, notices)
        assert greedy(model) == plain
        model.close()
    assert len(notices) == 1 and "needs 3 experts of a layer and 1 fit" in notices[0]


def test_figures_of_a_turn_count_what_was_asked_for(tiny_config: ModelConfig) -> None:
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        settings = StreamSettings(slots_per_layer=tiny_config.n_routed_experts, cache_rows=100)
        model = Model.open(checkpoint, tiny_config, streams=settings)
        cold = model.streams.figures()
        greedy(model)
        first = model.streams.figures()
        greedy(model)
        second = model.streams.figures()
        model.close()
    assert cold.hits == cold.misses == 0
    assert first.misses > 0 and second.misses == first.misses  # everything fits: the second answer reads no expert
    assert second.hits - first.hits == first.hits + first.misses
    expert_bytes = 3 * (64 * 256 // 2 + 64 * 256 // 32)
    assert first.read_bytes > first.misses * expert_bytes


def test_observers_hear_of_every_request(tiny_config: ModelConfig) -> None:
    heard: list[tuple[int, int, str]] = []
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        model = Model.open(
            checkpoint, tiny_config, streams=StreamSettings(slots_per_layer=4),
            observers=[lambda layer, experts, phase: heard.append((layer, len(experts), phase))],
        )  # fmt: skip
        greedy(model, steps=1)
        model.close()
    assert [layer for layer, _, _ in heard] == list(range(8)) * 3
    assert {phase for _, _, phase in heard[:16]} == {"prefill"} and {h[1:] for h in heard[16:]} == {(3, "decode")}


def test_warm_up_reads_what_a_step_then_finds(tiny_config: ModelConfig) -> None:
    with Checkpoint.open(TINY / "checkpoint") as checkpoint:
        model = Model.open(checkpoint, tiny_config, streams=StreamSettings(slots_per_layer=4, spare_slots=0))
        cache = model.streams.experts
        assert cache.warm({2: [5, 9], 3: [1]}, lambda: False) == 3
        for _ in cache.waves(2, [9, 5], phase="decode"):
            pass
        assert cache.stats().layers[2].n_hits == 2 and cache.stats().layers[2].n_misses == 0
        assert cache.warm({2: [5], 4: [0, 1, 2]}, lambda: True) == 0
        model.close()
