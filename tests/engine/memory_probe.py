"""Answers from a checkpoint in a process of its own and prints, as JSON, what that took.

Usage: python -m tests.engine.memory_probe FOLDER PROMPT_TOKENS ANSWER_TOKENS SLOT_BYTES
"""

import json
import sys
from pathlib import Path
from typing import Any

from engine.config import load_config
from engine.events import TokenDrawn
from engine.generate import generate
from engine.model import Model, Result, Trace
from engine.sampling import Sampler, SamplerSettings
from engine.streams import SPARE_SLOTS, StreamSettings
from planner.facts import peak_bytes
from planner.footprint import footprint, places
from storage.checkpoint import Checkpoint


def answer(folder: Path, prompt_tokens: int, answer_tokens: int, slot_bytes: int) -> dict[str, Any]:
    """Greedy tokens behind a prompt of made-up ids; what was read for them and what the choices needed."""
    before = peak_bytes()
    with Checkpoint.open(folder) as checkpoint:
        config = load_config(folder).config
        stride = footprint(config, places(checkpoint.tensors)).stride_bytes
        slots = (slot_bytes // stride - SPARE_SLOTS) // config.n_layers
        streams = StreamSettings(slots_per_layer=slots, cache_rows=1024)
        model = Model.open(checkpoint, config, streams=streams)
        needed_bytes, experts = 0, 0
        forward = model.forward

        def counted(*args: Any, **kwargs: Any) -> Result:
            nonlocal needed_bytes, experts
            trace = Trace()
            result = forward(*args, trace=trace, **kwargs)
            touched = sum(len(set(routing.experts.flatten().tolist())) for routing in trace.routing.values())
            rows = sum(len(set(ids.flatten().tolist())) for ids in trace.rows.values())
            # Three matrices F x D of two fp4 values a byte, with a scale byte for 32 values.
            expert_bytes = 3 * config.dim * config.moe_inter_dim * (32 // 2 + 1) // 32
            needed_bytes += touched * expert_bytes + rows * config.engram_head_dim * (32 + 1) // 32
            needed_bytes += len(set(result.step.ids)) * config.dim * 2
            experts += touched
            return result

        model.forward = counted  # type: ignore[method-assign]
        events = generate(
            model,
            model.new_state(),
            [(7 * i) % config.vocab_size for i in range(prompt_tokens)],
            sampler=Sampler(SamplerSettings(temperature=0.0)),
            max_tokens=answer_tokens,
            stop_ids=frozenset(),
        )
        tokens = [event.token for event in events if isinstance(event, TokenDrawn)]
        read_bytes, opened_bytes = model.streams.read_bytes, checkpoint.read_bytes
        model.close()
    return {
        "tokens": tokens,
        "experts": experts,
        "slots_per_layer": streams.slots_per_layer,
        "read_bytes": read_bytes,
        "needed_bytes": needed_bytes,
        "opened_bytes": opened_bytes,
        "peak_before_bytes": before,
        "peak_bytes": peak_bytes(),
    }


if __name__ == "__main__":
    print(json.dumps(answer(Path(sys.argv[1]), *map(int, sys.argv[2:5]))))
