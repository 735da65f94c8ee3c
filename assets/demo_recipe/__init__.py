"""How the bundled demo model is made: its questions and answers, its training, its files, its judging.

Not installed with the package. `python -m assets.demo_recipe --help` in a clone says how it is run; README.md what it
gave. The one thing a reader would get wrong: what is trained is not a second implementation of the engine but a
differentiable one of the same formulas, and `tests/assets` holds the two together on exported files.
"""
