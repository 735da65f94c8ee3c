"""The classifier that says how far the demo's data go."""

from assets.demo_recipe.baseline import features, judge, train
from assets.demo_recipe.questions import Kind, Question


def asked(text: str, answer: str, kind: Kind = "fact") -> Question:
    return Question(kind=kind, topic=answer, text=text, answer=answer, keys=(), reason="")


def test_a_question_is_its_words_their_pairs_and_groups_of_letters() -> None:
    threes, fours = ["/ to", "/to ", "/o b", "/ be", "/be "], ["/ to ", "/to b", "/o be", "/ be "]
    assert features("To be!") == ["to", "be", "to be", *threes, *fours]


def test_it_learns_which_words_decide_and_is_judged_on_others() -> None:
    red, blue = ("apples", "cherries", "roses", "rubies"), ("the sky", "the sea", "jeans", "plums")
    seen = [asked(f"{ask} {thing}", answer) for ask in ("what of", "tell me of", "and")
            for things, answer in ((red, "red"), (blue, "blue")) for thing in things]  # fmt: skip
    seen += [asked(f"write a {what}", "no", "unknown") for what in ("poem", "letter", "song", "play")]
    held = [asked("are cherries, roses", "red"), asked("sea and jeans", "blue"), asked("a long poem", "no", "unknown")]
    *_, (model, loss) = train(seen, 40)
    assert loss < 0.1
    assert judge(model, held, {"no"}) == {"fact": (2, 2), "unknown": (1, 1)}
    assert judge(model, [asked("roses", "no", "unknown")], {"no"}) == {"unknown": (0, 1)}
    assert judge(model, [asked("##", "red")], set())["fact"][1] == 1  # nothing known in it, and still an answer
