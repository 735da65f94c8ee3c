"""How far a prompt is read is told while one chunk of it goes through the layers."""

import pytest

from app.backends.base import TurnRequest
from app.backends.local import LocalBackend
from app.paths import demo_folder
from app.reading import Reading
from engine.events import PrefillProgress, TextDelta, TurnDone
from engine.prompt import UserMessage
from engine.sampler_settings import SamplerSettings


@pytest.fixture
def backend() -> LocalBackend:
    return LocalBackend(
        demo_folder(), numerics="exact", index_owner="published", reading=Reading(), token_map_cache=None, profiles=None
    )


def test_a_chunk_under_way_counts_by_the_layers_it_is_through(backend: LocalBackend) -> None:
    seen: list[PrefillProgress] = []

    def at_layers() -> bool:
        now = backend.reading()
        if now is not None:
            seen.append(now)
        return False

    request = TurnRequest(
        messages=(UserMessage(parts=("a word " * 60,)),), effort=None,
        sampling=SamplerSettings(temperature=0.0, seed=1), max_tokens=2,
    )  # fmt: skip
    backend.open(lambda event: None, lambda: False)
    try:
        assert backend.reading() is None
        events = list(backend.generate(request, at_layers))
    finally:
        backend.close()
    total = seen[0].total_tokens
    done = [progress.done_tokens for progress in seen]
    assert done == sorted(done) and any(0 < count < total for count in done)
    last = [event for event in events if isinstance(event, PrefillProgress)][-1]
    assert last.done_tokens == total == last.total_tokens
    stats = next(event.stats for event in events if isinstance(event, TurnDone))
    assert 0 < last.expert_misses <= stats.expert_misses
    assert sum(drive.payload_bytes for drive in last.drives) == last.read_bytes
    assert any(isinstance(event, TextDelta) for event in events)
    assert backend.reading() is None
