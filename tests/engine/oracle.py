"""The slow reference: one position at a time, float64, written from the formulas and from nothing else.

It judges the engine on geometries no golden file covers, so it shares no code with it; `oracle_files.py` is its own
reader. There is no ring, no buffer and no batch here: every cache is a list over all positions, and what a query may
see is a slice of it. `test_oracle.py` holds the oracle itself to the golden data.

One thing to know: `prefill` and `decode` differ in whose index keys a selection is made from, and a position keeps the
kind it was processed as. Everything else is the same function of the tokens so far.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.engine.oracle_files import Vector, Weights, engram_primes, token_map

Pick = tuple[list[int], float]
"""Experts chosen, best first, and the distance to the first refused one."""


@dataclass
class Row:
    """What the model computed at one position; dictionaries are by layer."""

    logits: Vector = field(default_factory=lambda: np.zeros(0))
    hashes: dict[int, list[int]] = field(default_factory=dict)
    experts: dict[int, list[int]] = field(default_factory=dict)
    index: dict[int, list[int]] = field(default_factory=dict)
    owner: dict[int, int] = field(default_factory=dict)
    streams: list[Vector] = field(default_factory=list)
    gaps: dict[str, float] = field(default_factory=dict)
    """Smallest distance between a chosen and a refused candidate: router, index, candidates, top1."""

    def margin(self, kind: str, gap: float) -> None:
        """Note how close a choice was."""
        self.gaps[kind] = min(self.gaps.get(kind, math.inf), float(gap))


@dataclass
class Draft:
    """One round of the draft head."""

    ids: list[int]
    confidence: list[float]
    top_logit: list[float]
    experts: dict[int, list[list[int]]]
    gaps: dict[str, float]


def best(scores: Vector, count: int) -> list[int]:
    """Positions of the `count` largest scores, ties to the lowest position, best first."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


def cut(scores: Vector, count: int) -> float:
    """Distance between the last chosen and the first refused of the finite scores; infinite when all are chosen."""
    finite = np.sort(scores[scores > -np.inf])[::-1]
    return float(finite[count - 1] - finite[count]) if len(finite) > count else math.inf


def sigmoid(x: Vector) -> Vector:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


class Oracle:
    """A model and one conversation's state; `prefill`, then `decode` token by token, `draft` at any time."""

    def __init__(self, folder: Path) -> None:
        self.c: dict[str, Any] = json.loads((folder / "inference" / "config.json").read_text("utf-8"))
        self.w = Weights(folder)
        nested = json.loads((folder / "config.json").read_text("utf-8"))["text_config"]
        self.norm_topk = nested.get("norm_topk_prob", True)
        self.map = token_map(folder / "tokenizer.json") if self.c["engram_layer_ids"] else []
        self.primes = engram_primes(self.c)
        self.sources = list(self.c["kv_source_layers"])
        self.compressed_ids: list[int] = []
        self.window: dict[str, list[Vector]] = {}  # window KV of every position, by block
        self.waiting: dict[int, list[tuple[Vector, Vector]]] = {s: [] for s in self.sources}
        self.ckv: dict[int, list[Vector]] = {s: [] for s in self.sources}
        self.keys: dict[int, list[Vector]] = {s: [] for s in self.sources}
        self.slot: int | None = None  # whose index keys were published last
        self.position = 0

    # -- small pieces

    def ratio(self, layer: int) -> int:
        """Positions per compressed group; 0 for a window-only layer."""
        return int(self.c["compress_ratios"][layer])

    def rms(self, x: Vector) -> Vector:
        """x over its root mean square."""
        scaled: Vector = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.c["norm_eps"])
        return scaled

    def norm(self, name: str, x: Vector) -> Vector:
        """RMSNorm with the named weight."""
        normed: Vector = self.w(name) * self.rms(x)
        return normed

    def turned(self, x: Vector, position: int, compressing: bool, back: bool = False) -> Vector:
        """x with the tail of its last axis rotated to `position`, or back from it. Angles are float32 as published."""
        c, rd = self.c, self.c["rope_head_dim"]
        base = float(c["compress_rope_theta"] if compressing else c["rope_theta"])
        i = np.arange(rd // 2)
        f = (1 / np.float32(base) ** (2 * i / rd).astype(np.float32)).astype(np.float32)
        if compressing and c["original_seq_len"] > 0:
            turns = (c["beta_fast"], c["beta_slow"])
            at = [rd * math.log(c["original_seq_len"] / (t * 2 * math.pi)) / (2 * math.log(base)) for t in turns]
            low, high = max(math.floor(at[0]), 0), min(math.ceil(at[1]), rd - 1)
            ramp = np.clip((i - low) / max(high - low, 0.001), 0, 1).astype(np.float32)
            f = f / np.float32(c["rope_factor"]) * ramp + f * (1 - ramp)
        angle = (np.float32(position) * f).astype(np.float64)
        turn = np.exp(-1j * angle if back else 1j * angle)
        tail = (x[..., -rd::2] + 1j * x[..., -rd + 1 :: 2]) * turn
        out = x.copy()
        out[..., -rd::2], out[..., -rd + 1 :: 2] = tail.real, tail.imag
        return out

    def mix(self, prefix: str, h: Vector) -> tuple[Vector, Vector, Vector]:
        """pre [m], post [m], comb [m, m] of one half block; h [m, D]."""
        m, eps = self.c["hc_mult"], self.c["hc_eps"]
        base, scale = self.w(prefix + "base"), self.w(prefix + "scale")
        z = self.w(prefix + "fn") @ self.rms(h.reshape(-1))
        pre = sigmoid(z[:m] * scale[0] + base[:m]) + eps
        post = 2 * sigmoid(z[m : 2 * m] * scale[1] + base[m : 2 * m])
        comb = (z[2 * m :] * scale[2] + base[2 * m :]).reshape(m, m)
        comb = np.exp(comb - comb.max(axis=1, keepdims=True))
        comb = comb / comb.sum(axis=1, keepdims=True) + eps
        comb = comb / (comb.sum(axis=0, keepdims=True) + eps)
        for _ in range(self.c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(axis=1, keepdims=True) + eps)
            comb = comb / (comb.sum(axis=0, keepdims=True) + eps)
        return pre, post, comb

    def block(
        self,
        prefix: str,
        rows: list[tuple[Vector, Vector]],
        attention: Callable[[list[Vector]], list[Vector]],
        moe: Callable[[Vector], Vector],
    ) -> list[tuple[Vector, Vector]]:
        """One block over rows of (stream [m, D], mix handed in [m])."""
        mixes = [self.mix(prefix + "hc_attn_", h) for h, _ in rows]
        ys = attention([self.norm(prefix + "attn_norm.weight", pre @ h) for h, pre in rows])
        out = []
        for (h, _), (a_pre, post, comb), y in zip(rows, mixes, ys, strict=True):
            h = np.outer(post, y) + comb.T @ h
            f_pre, post, comb = self.mix(prefix + "hc_ffn_", h)
            y = moe(self.norm(prefix + "ffn_norm.weight", a_pre @ h))
            out.append((np.outer(post, y) + comb.T @ h, f_pre))
        return out

    def moe(self, prefix: str, active: int, picks: list[Pick], x: Vector) -> Vector:
        """Routed experts and the shared one; the choice and its margin are added to `picks`."""
        c, w = self.c, self.w
        score = np.sqrt(np.logaddexp(0, w(prefix + "gate.weight") @ x))
        biased = score + w(prefix + "gate.bias")
        chosen = best(biased, active)
        picks.append((chosen, cut(biased, active)))
        share = score[chosen]
        if active > 1 and self.norm_topk:
            share = share / (share.sum() + 1e-20)

        def inner(name: str, weight: float) -> Vector:
            g, u = w(f"{name}w1.weight") @ x, w(f"{name}w3.weight") @ x
            if c["swiglu_limit"]:
                g, u = np.minimum(g, c["swiglu_limit"]), np.clip(u, -c["swiglu_limit"], c["swiglu_limit"])
            return w(f"{name}w2.weight") @ (weight * g * sigmoid(g) * u)

        y = inner(prefix + "shared_experts.", 1.0)
        for expert, part in zip(chosen, share * c["route_scale"], strict=True):
            y = y + inner(f"{prefix}experts.{expert}.", float(part))
        return y

    def queries(self, prefix: str, x: Vector, position: int, compressing: bool) -> tuple[Vector, Vector]:
        """Low-rank query [Rq] and rotated heads [H, hd]."""
        qr = self.norm(prefix + "attn.q_norm.weight", self.w(prefix + "attn.wq_a.weight") @ x)
        q = (self.w(prefix + "attn.wq_b.weight") @ qr).reshape(self.c["n_heads"], -1)
        return qr, self.turned(q, position, compressing)

    def window_kv(self, prefix: str, x: Vector, position: int, compressing: bool) -> Vector:
        """The position's own key and value vector [hd]."""
        kv = self.norm(prefix + "attn.kv_norm.weight", self.w(prefix + "attn.wkv.weight") @ x)
        return self.turned(kv, position, compressing)

    def attend(self, prefix: str, q: Vector, seen: list[Vector], position: int, compressing: bool) -> Vector:
        """Attention with a sink over the vectors seen, rotated back, through the grouped output projection."""
        keys = np.array(seen)
        logit = q @ keys.T * self.c["head_dim"] ** -0.5  # [H, seen]
        sink = self.w(prefix + "attn.attn_sink")
        top = np.maximum(logit.max(axis=1), sink)
        weight = np.exp(logit - top[:, None])
        o = weight @ keys / (weight.sum(axis=1) + np.exp(sink - top))[:, None]
        o = self.turned(o, position, compressing, back=True).reshape(self.c["o_groups"], -1)
        wo_a = self.w(prefix + "attn.wo_a.weight").reshape(self.c["o_groups"], self.c["o_lora_rank"], -1)
        y: Vector = self.w(prefix + "attn.wo_b.weight") @ np.einsum("grh,gh->gr", wo_a, o).reshape(-1)
        return y

    # -- the backbone at one position

    def compress(self, layer: int, x: Vector, p: int) -> bool:
        """Take one position into a KV source; true when it completed a group."""
        r, prefix = self.ratio(layer), f"layers.{layer}.attn."
        a = self.w(prefix + "compressor.wkv.weight") @ x
        b = self.w(prefix + "compressor.wgate.weight") @ x if r > 1 else np.zeros_like(a)
        self.waiting[layer].append((a, b))
        if (p + 1) % r:
            return False
        group, self.waiting[layer] = self.waiting[layer], []
        gate = np.exp([b for _, b in group] - np.max([b for _, b in group], axis=0))
        pooled = sum(a * g for (a, _), g in zip(group, gate / gate.sum(axis=0), strict=True))
        latent = self.norm(prefix + "compressor.norm.weight", pooled)
        key = self.norm(prefix + "indexer.k_norm.weight", self.w(prefix + "indexer.wk.weight") @ latent)
        self.keys[layer].append(self.turned(key, p + 1 - r, True))
        self.ckv[layer].append(self.turned(latent, p + 1 - r, True))
        return True

    def select(self, layer: int, x: Vector, qr: Vector, p: int, owner: int, row: Row) -> list[int]:
        """Groups an index source picks for position p, from `owner`'s keys, candidate level included."""
        c, n, prefix = self.c, (p + 1) // self.ratio(layer), f"layers.{layer}.attn.indexer."
        heads, di = c["index_n_heads"], c["index_head_dim"]
        qi = self.turned((self.w(prefix + "wq_b.weight") @ qr).reshape(heads, di), p, True)
        weight = self.w(prefix + "weights_proj.weight") @ x * di**-0.5 * heads**-0.5
        score = weight @ np.maximum(0, qi @ np.array(self.keys[owner][:n]).T)  # [n]
        size, source = c["candidate_block_size"], c["candidate_source_layer"]
        if layer == source:
            blocks = np.array([score[i : i + size].max() for i in range(0, n, size)])
            blocks[(n - 1) // size] = np.inf
            kept = best(blocks, c["candidate_topk_blocks"])
            row.margin("candidates", cut(blocks, c["candidate_topk_blocks"]))
            self.mask = np.isin(np.arange(n) // size, kept)
        elif 0 <= source < layer:
            score = np.where(self.mask, score, -np.inf)
        row.margin("index", cut(score, c["index_topk"]))
        return sorted(g for g in best(score, min(c["index_topk"], n)) if score[g] > -np.inf)

    def attention(self, layer: int, p: int, end: int | None, row: Row, xs: list[Vector]) -> list[Vector]:
        """Attention of one backbone layer; `end` is the prompt's length in a prefill, None in a decode step."""
        [x] = xs
        prefix, r = f"layers.{layer}.", self.ratio(layer)
        qr, q = self.queries(prefix, x, p, r > 0)
        ring = self.window.setdefault(prefix, [])
        ring.append(self.window_kv(prefix, x, p, r > 0))
        seen = ring[max(0, p - self.c["window_size"] + 1) :]
        if r:
            source = max(s for s in self.sources if s <= layer)
            if layer == source and self.compress(layer, x, p):
                self.slot = layer
            if layer in self.c["index_source_layers"]:
                owner = self.slot if end is None else source
                row.owner[layer] = owner if owner is not None and (end or p + 1) // r else -1
                self.selection = []
                if owner is not None and (p + 1) // r:
                    self.selection = self.select(layer, x, qr, p, owner, row)
                row.index[layer] = self.selection
            seen = seen + [self.ckv[source][g] for g in self.selection]
        return [self.attend(prefix, q, seen, p, r > 0)]

    def row_ids(self, ordinal: int, p: int) -> list[int]:
        """Engram rows of position p in the ordinal-th engram layer, by n-gram size, then head."""
        c, columns = self.c, self.primes[ordinal]
        bound = max(1, (2**63 - 1) // c["engram_compressed_vocab_size"] // 2)
        generator = np.random.default_rng(10007 * c["engram_layer_ids"][ordinal])
        draws = [int(d) for d in generator.integers(0, bound, size=c["engram_max_ngram_size"], dtype=np.int64)]
        pad = self.map[c["engram_pad_id"]]
        acc, rows = 0, list[int]()
        for back, draw in enumerate(draws):
            acc ^= (self.compressed_ids[p - back] if back <= p else pad) * (2 * draw + 1)
            for _head in range(c["engram_n_heads"] if back else 0):
                rows.append(sum(columns[: len(rows)]) + acc % columns[len(rows)])
        return rows

    def engram(self, layer: int, h: Vector, rows: list[int]) -> Vector:
        """The stream with the gated lookup added; h [m, D]."""
        prefix, m, D = f"layers.{layer}.engram.", self.c["hc_mult"], self.c["dim"]
        e = np.concatenate([self.w.engram_row(prefix + "embed.", r) for r in rows])
        out = self.w(prefix + "wkv.weight") @ e
        key, value = out[: m * D].reshape(m, D), out[m * D :]
        dot = self.rms(h) * self.w(prefix + "q_weight") * self.w(prefix + "k_weight") * self.rms(key)
        dot = dot.sum(axis=1) * D**-0.5
        gate = sigmoid(np.copysign(np.sqrt(np.maximum(np.abs(dot), 1e-6)), dot))
        return h + np.outer(gate, value)

    def _position(self, token: int, end: int | None) -> Row:
        c, p, row = self.c, self.position, Row()
        if self.map:
            self.compressed_ids.append(self.map[token])
        h = np.repeat(self.w("embed.weight")[token][None], c["hc_mult"], axis=0)
        pre = np.eye(c["hc_mult"])[0]
        targets = []
        for layer in range(c["n_layers"]):
            if layer in c["engram_layer_ids"]:
                row.hashes[layer] = self.row_ids(c["engram_layer_ids"].index(layer), p)
                h = self.engram(layer, h, row.hashes[layer])
            if layer in c["dspark_target_layer_ids"]:
                targets.append(h.mean(axis=0))
            prefix, picks = f"layers.{layer}.", list[Pick]()
            attention = partial(self.attention, layer, p, end, row)
            moe = partial(self.moe, prefix + "ffn.", c["n_activated_experts"], picks)
            [(h, pre)] = self.block(prefix, [(h, pre)], attention, moe)
            [(row.experts[layer], gap)] = picks
            row.margin("router", gap)
            row.streams.append(h)
        row.logits = self.w("head.weight") @ self.norm("norm.weight", pre @ h)
        row.margin("top1", cut(row.logits, 1))
        if c["n_mtp_layers"]:
            u = self.w("mtp.0.main_proj.weight") @ np.concatenate(targets)
            main = self.norm("mtp.0.main_norm.weight", u)
            for stage in range(c["n_mtp_layers"]):
                kv = self.window_kv(f"mtp.{stage}.", main, p, False)
                self.window.setdefault(f"mtp.{stage}.", []).append(kv)
        self.position += 1
        return row

    def prefill(self, tokens: Sequence[int]) -> list[Row]:
        """Process prompt tokens: every index source scores the nearest source's own keys."""
        end = self.position + len(tokens)
        rows = [self._position(token, end) for token in tokens]
        self.slot = max((s for s in self.sources if self.ratio(s) <= end), default=None)
        return rows

    def decode(self, token: int) -> Row:
        """Process one generated token: index sources score whatever keys were published last."""
        return self._position(token, None)

    # -- the draft head

    def draft_attention(self, prefix: str, xs: list[Vector]) -> list[Vector]:
        """Attention of one stage: every row sees the ring of main positions and all rows of the block."""
        p = self.position
        seen = self.window[prefix][max(0, p - self.c["window_size"]) : p]
        seen = seen + [self.window_kv(prefix, x, p + i, False) for i, x in enumerate(xs)]
        queries = [self.queries(prefix, x, p + i, False)[1] for i, x in enumerate(xs)]
        return [self.attend(prefix, q, seen, p + i, False) for i, q in enumerate(queries)]

    def draft(self, token: int) -> Draft:
        """Propose what follows `token`, which will sit at the next position. Leaves the state alone."""
        c, last = self.c, f"mtp.{self.c['n_mtp_layers'] - 1}."
        ids = [token] + [c["dspark_noise_token_id"]] * (c["dspark_block_size"] - 1)
        first = np.eye(c["hc_mult"])[0]
        rows = [(np.repeat(self.w("embed.weight")[i][None], c["hc_mult"], axis=0), first) for i in ids]
        out = Draft([token], [], [], {}, {"router": math.inf, "top1": math.inf})
        active = c["dspark_n_activated_experts"] or c["n_activated_experts"]
        for stage in range(c["n_mtp_layers"]):
            prefix, picks = f"mtp.{stage}.", list[Pick]()
            moe = partial(self.moe, prefix + "ffn.", active, picks)
            rows = self.block(prefix, rows, partial(self.draft_attention, prefix), moe)
            out.experts[stage] = [chosen for chosen, _ in picks]
            out.gaps["router"] = min(out.gaps["router"], *(gap for _, gap in picks))
        for h, pre in rows:
            collapsed = pre @ h
            logits = self.w("head.weight") @ self.norm(last + "norm.weight", collapsed)
            e = self.w(last + "markov_head.embed.weight")[out.ids[-1]]
            logits = logits + self.w(last + "markov_head.head.weight") @ e
            out.ids.append(best(logits, 1)[0])
            out.top_logit.append(float(logits.max()))
            out.gaps["top1"] = min(out.gaps["top1"], cut(logits, 1))
            confidence = self.w(last + "confidence_head.proj.weight") @ np.concatenate([collapsed, e])
            out.confidence.append(float(confidence[0]))
        return out
