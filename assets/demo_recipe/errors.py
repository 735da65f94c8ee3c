"""What the recipe refuses."""


class RecipeError(Exception):
    """The data, a run's folder or the arguments cannot be used; the message says where and why."""
