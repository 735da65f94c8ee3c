"""A question whose answer the bundled demo was trained to give, word for word."""

QUESTION = "what is an expert slot?"
ANSWER = (
    "Slots are fixed places in memory, each for one expert. artesian plan computes how many there are in each layer, "
    "and --slots sets that number."
)
"""From what it was trained on, the topic `slot` of `assets/demo_recipe/data/facts.txt`, not from what it says."""
