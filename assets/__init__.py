"""Files that ship with Artesian: the demo checkpoint. No code."""
