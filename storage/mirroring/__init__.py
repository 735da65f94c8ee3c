"""Makes copies of shards on other drives, resumable and verified, and takes them away again.

`files` are the system calls that write, `part` a copy under way, `copying` one shard, `manifest` the record beside the
copies, `places` where copies could go, `proposal` what they would buy, `checking` whether they are still equal.
"""
