"""`python -m assets.demo_recipe --minutes 150 --out DIR`: the whole recipe; a stopped run goes on where it was."""

import argparse
import json
import sys
from pathlib import Path

import torch

from assets.demo_recipe.errors import RecipeError
from assets.demo_recipe.pieces import go_fast
from assets.demo_recipe.recipe import Recipe, everything
from assets.demo_recipe.run import say


def main() -> int:
    """Run it; 0, or 2 when the data, the folder or the arguments cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m assets.demo_recipe", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; checkpoint/ in it is the result")
    parser.add_argument("--minutes", type=float, default=150.0, help="for everything [150]")
    parser.add_argument("--steps", type=int, nargs=2, metavar=("TRUNK", "DRAFT"), help="train so many steps instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="[as many as torch would take]")
    parser.add_argument("--no-compile", action="store_true", help="without a C++ compiler; several times slower")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    say(f"products in {go_fast(compiled=not args.no_compile)}, {torch.get_num_threads()} threads")
    try:
        recipe = Recipe(args.out, seed=args.seed, compiled=not args.no_compile)
        results = everything(recipe, args.minutes, steps=args.steps)
    except RecipeError as error:
        print(f"demo_recipe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("demo_recipe: stopped; the same command goes on from the last save", file=sys.stderr)
        return 130
    results.pop("answers")
    print(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
