"""Primes, offsets and multipliers of the engram tables, from the config alone.

The one thing a reader would get wrong: the multipliers exceed 2^53, so no double may ever touch them, and a
wrong one reads valid but wrong rows. They are therefore drawn here from the raw bit stream of PCG64, which NumPy
promises to keep, not through `Generator.integers`, which it does not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np

from engine.config import ModelConfig
from engine.config_relations import MAX_ENGRAM_COLUMNS
from engine.errors import ConfigError

_MAX_ROWS_A_HEAD = 2**40
"""The release has 16,000,000. With `MAX_ENGRAM_COLUMNS` this keeps every row id far below 2^63."""

_MAX_CLASSES = 2**30
"""Above this the draw would use NumPy's 32-bit path; the release has 99,092 classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramTable:
    """How one engram layer hashes: all that `row_ids` needs."""

    layer: int
    """Layer number in the backbone."""
    primes: tuple[tuple[int, ...], ...]
    """Modulus of each column, as [n-gram size - 2][head]."""
    offsets: tuple[int, ...]
    """First row of each column, columns ordered by n-gram size, then head."""
    rows: int
    """Rows the table must have: the sum of all moduli."""
    multipliers: tuple[int, ...]
    """Odd factor of each look-back, `N` of them, each below 2^63."""


def engram_tables(config: ModelConfig) -> tuple[EngramTable, ...]:
    """The table of every engram layer, in the config's order. Does not look at `engram_num_embeddings`.

    Raises: ConfigError if a number is so far out of range that nothing can be drawn from it.
    Source: sections 6.2 (primes: one ascending draw, restarted for each size and layer, none used twice) and 6.3.
    """
    if not config.engram_layer_ids:
        return ()
    _require_drawable(config)
    n_sizes, n_heads = config.engram_max_ngram_size - 1, config.engram_n_heads
    # Every draw begins at the same number and passes over what was drawn: together they are one ascending list.
    unused = _primes_above(config.engram_vocab_size - 1)
    tables = []
    for layer in config.engram_layer_ids:
        primes = tuple(tuple(islice(unused, n_heads)) for _ in range(n_sizes))
        ends = tuple(accumulate(prime for size in primes for prime in size))
        tables.append(
            EngramTable(
                layer=layer,
                primes=primes,
                offsets=(0, *ends[:-1]),
                rows=ends[-1],
                multipliers=_multipliers(layer, config.engram_max_ngram_size, config.engram_compressed_vocab_size),
            )
        )
    return tuple(tables)


def require_declared_rows(config: ModelConfig, tables: tuple[EngramTable, ...]) -> None:
    """Check the drawn tables against `engram_num_embeddings`. Raises: ConfigError naming the layer and both counts."""
    declared = tuple(config.engram_num_embeddings)
    if len(declared) != len(tables):
        raise ConfigError(f"engram_num_embeddings has {len(declared)} entries for {len(tables)} engram layers")
    for table, rows in zip(tables, declared, strict=True):
        if table.rows != rows:
            raise ConfigError(
                f"engram_num_embeddings: {rows:,} rows for layer {table.layer}, its primes add up to {table.rows:,}",
                hint="engram_vocab_size, engram_n_heads or engram_max_ngram_size does not belong to this checkpoint.",
            )


def _require_drawable(config: ModelConfig) -> None:
    sizes, heads = config.engram_max_ngram_size, config.engram_n_heads
    n_columns = len(config.engram_layer_ids) * (sizes - 1) * heads
    if sizes < 2 or heads < 1 or n_columns > MAX_ENGRAM_COLUMNS:
        raise ConfigError(
            f"engram_max_ngram_size {sizes}, engram_n_heads {heads}, engram_layer_ids {config.engram_layer_ids}:"
            f" 1 to {MAX_ENGRAM_COLUMNS:,} table columns are possible, with n-grams of 2 and up"
        )
    if not 0 < config.engram_vocab_size <= _MAX_ROWS_A_HEAD:
        raise ConfigError(f"engram_vocab_size {config.engram_vocab_size:,} is outside 1 to {_MAX_ROWS_A_HEAD:,}")
    if not 0 < config.engram_compressed_vocab_size < _MAX_CLASSES:
        raise ConfigError(
            f"engram_compressed_vocab_size {config.engram_compressed_vocab_size:,} is outside 1 to {_MAX_CLASSES - 1:,}"
        )
    if min(config.engram_layer_ids) < 0:
        raise ConfigError(f"engram_layer_ids {config.engram_layer_ids}: a layer number is negative")


def _primes_above(number: int) -> Iterator[int]:
    while True:
        number += 1
        if is_prime(number):
            yield number


_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(number: int) -> bool:
    """Whether `number` is prime; exact below 3.1e23.

    Source: Miller-Rabin with the first twelve primes as witnesses is deterministic below
    318,665,857,834,031,151,167,461 (Sorenson and Webster, Strong pseudoprimes to twelve prime bases, 2015).
    """
    if number < 2:
        return False
    for prime in _WITNESSES:
        if number % prime == 0:
            return number == prime
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, witness, odd, twos) for witness in _WITNESSES)


def _passes(number: int, witness: int, odd: int, twos: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def _multipliers(layer: int, count: int, n_classes: int) -> tuple[int, ...]:
    """`2 * draw + 1` for `count` draws below `bound`, so that a class times its multiplier fits in 63 bits."""
    bound = max(1, ((2**63 - 1) // n_classes) // 2)
    generator = np.random.PCG64(10007 * layer)
    return tuple(2 * _bounded(generator, bound) + 1 for _ in range(count))


def _bounded(generator: np.random.PCG64, bound: int) -> int:
    """A uniform draw from [0, bound), the one `Generator.integers(0, bound, dtype=int64)` makes for bound > 2^32.

    Source: Lemire, Fast random integer generation in an interval (2019), with 64-bit draws.
    """
    threshold = (2**64 - bound) % bound
    while True:
        product = generator.random_raw() * bound
        if product % 2**64 >= threshold:
            return product >> 64
