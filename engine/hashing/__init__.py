"""The engram front end: from token ids to rows of the hashed tables (spec sections 6.1 to 6.4).

`token_map` folds token ids into classes, `tables` derives primes, offsets and multipliers from the config, `rows`
hashes the look-back of each position. No torch: the audit uses the tables alone.
"""

from engine.hashing.rows import lookback, row_ids
from engine.hashing.tables import EngramTable, engram_tables, require_declared_rows
from engine.hashing.token_map import compressed_map, fold

__all__ = [
    "EngramTable",
    "compressed_map",
    "engram_tables",
    "fold",
    "lookback",
    "require_declared_rows",
    "row_ids",
]
