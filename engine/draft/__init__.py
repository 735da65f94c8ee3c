"""DSpark: a small head proposes tokens, one forward of the model verifies them, and a guard stops what does not pay.

Nothing here decides what is said: a proposal only decides how many tokens one forward can confirm.
"""
