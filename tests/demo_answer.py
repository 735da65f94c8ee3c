"""A question whose answer the bundled demo was trained to give, word for word."""

from assets.demo_recipe.blocks import DATA, read_blocks

QUESTION = "what is an expert slot?"
ANSWER = next(block.answer for block in read_blocks(DATA / "facts.txt") if block.topic == "slot")
"""From what it was trained on, not from what it says."""
