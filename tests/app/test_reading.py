"""What the command line and the settings say of the drives, as one record; what cannot act is refused."""

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from app.cli import main
from app.errors import UsageError
from app.model_choice import ModelChoice
from app.paths import settings_file
from app.reading import Reading, ReadingOptions, make_reading
from app.settings import Settings
from tests.engine.audit_files import TINY as _TINY
from tests.engine.audit_files import shard
from tests.fakes import ScriptedBackend

Output = pytest.CaptureFixture[str]


def _choice(folder: Path) -> ModelChoice:
    return ModelChoice(folder=folder, origin="--model", is_demo=False)


def _made(folder: Path, settings: Settings | None = None, **options: Any) -> Reading:
    return make_reading(ReadingOptions(**options), settings or Settings(), _choice(folder))


def test_nothing_said_is_the_defaults(tmp_path: Path) -> None:
    assert _made(tmp_path) == Reading()


def test_every_option_arrives_and_wins_over_the_settings(tmp_path: Path) -> None:
    settings = Settings(io="buffered", slots=1, depth=2, cache_rows=3, cache_policy="lru", verify_mirror=True)
    only_settings = _made(tmp_path, settings)
    assert (only_settings.io, only_settings.slots, only_settings.depth) == ("buffered", 1, 2)
    assert (only_settings.cache_rows, only_settings.policy) == (3, "lru")
    made = _made(
        tmp_path / "model",
        settings,
        **{"mirror": [str(tmp_path / "m")], "split": [str(tmp_path / "s")], "io": "direct", "slots": 7, "depth": 9},
        **{"cache_rows": 0, "cache_policy": "clock", "record_trace": str(tmp_path / "t")},
    )
    assert made == Reading(
        mirrors=(tmp_path / "m",),
        splits=(tmp_path / "s",),
        verify_mirrors=True,
        io="direct",
        slots=7,
        depth=9,
        cache_rows=0,
        policy="clock",
        trace=tmp_path / "t",
    )


def test_mirrors_in_the_settings_are_for_the_model_in_the_settings(tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other"
    weights = (f"{model}=2", f"{tmp_path / 'm'}=1.5")
    settings = Settings(model=str(model), mirror=(str(tmp_path / "m"),), drive_weight=weights, depth=3)
    made = _made(model, settings)
    assert made.mirrors == (tmp_path / "m",) and made.weights == {model: 2.0, tmp_path / "m": 1.5}
    elsewhere = _made(other, settings)
    assert (elsewhere.mirrors, elsewhere.weights, elsewhere.depth) == ((), None, 3)
    # Another mirror on the command line: the weights in the settings say nothing of it.
    assert _made(model, settings, mirror=[str(tmp_path / "n")]).weights is None


def test_a_weight_names_its_folder_in_any_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = _made(tmp_path / "a=b", mirror=["m"], drive_weight=["./m/=3", f"{tmp_path}/x/../a=b=0"])
    assert made.weights == {Path("m"): 3.0, tmp_path / "a=b": 0.0}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mirror": ["model"]}, "--mirror model is the model's folder"),
        ({"mirror": ["m", "./m"]}, "--mirror m is"),
        ({"split": ["m"], "mirror": ["m"]}, "--mirror m is"),
        ({"mirror": [" "]}, "--mirror must be folders"),
        ({"verify_mirror": True}, "--verify-mirror has no effect"),
        ({"drive_weight": ["model=1"]}, "--drive-weight has no effect"),
        ({"mirror": ["m"], "drive_weight": ["m=1"]}, "--drive-weight says nothing of"),
        ({"mirror": ["m"], "drive_weight": ["m=1", "model=1", "n=1"]}, "names a folder that is not read from"),
        ({"mirror": ["m"], "drive_weight": ["m=0", "model=0"]}, "--drive-weight is 0 for every folder"),
        ({"mirror": ["m"], "drive_weight": ["m=-1"]}, "--drive-weight must be"),
        ({"mirror": ["m"], "drive_weight": ["m=nan"]}, "--drive-weight must be"),
        ({"mirror": ["m"], "drive_weight": ["m"]}, "--drive-weight must be"),
        ({"slots": 0}, "--slots must be"),
        ({"depth": 257}, "--depth must be"),
        ({"cache_rows": -1}, "--cache-rows must be"),
        ({"cache_policy": "mru"}, "--cache-policy must be one of lru"),
        ({"record_trace": "."}, "is not a file"),
        ({"record_trace": "no/t"}, "there is no folder no"),
        ({"record_trace": "precious"}, "would overwrite a file that is not a trace"),
    ],
)
def test_what_cannot_act_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("precious").write_text("a thesis")
    with pytest.raises(UsageError, match=told):
        _made(Path("model"), **options)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        (["model=1"], "drive_weight in the settings says nothing of"),
        (["model=0", "m=0"], "drive_weight in the settings is 0 for every folder"),
        (["model=1", "m=1", "n=1"], "drive_weight in the settings n=1 names a folder that is not read from"),
    ],
)
def test_weights_in_the_settings_that_cannot_act_are_told_as_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=told) as caught:
        _made(Path("model"), Settings(model="model", mirror=("m",), drive_weight=tuple(weights)))
    assert "--drive-weight" not in str(caught.value)


def test_a_split_with_nothing_new_to_read_is_refused_by_name(tmp_path: Path) -> None:
    model, second, third = (copytree(_TINY, tmp_path / name) for name in ("model", "second", "third"))
    told = rf"--split {second} has no shard that is not in {model} already"
    with pytest.raises(UsageError, match=told) as caught:
        _made(model, split=[str(second)])
    assert "--mirror" in caught.value.hint
    # In the settings it is only told of when the model is opened: a chat goes on.
    assert _made(model, Settings(model=str(model), split=(str(second),))).splits == (second,)
    (model / shard(5)).unlink()
    assert _made(model, split=[str(second)]).splits == (second,)
    (model / shard(5)).write_bytes((second / shard(5)).read_bytes()[:-1])  # cut: the other one is read
    assert _made(model, split=[str(second)]).splits == (second,)
    with pytest.raises(UsageError, match=f"--split {third} has no shard"):
        _made(model, split=[str(second), str(third)])
    assert _made(model, split=[str(tmp_path / "gone")]).splits  # which opening it refuses


@pytest.mark.parametrize(
    "command", [["audit"], ["plan"], ["bench", "io"], ["mirror", "propose", "--model"], ["ask", "hi", "--model"]]
)
def test_every_command_refuses_a_split_with_nothing_new(command: list[str], tmp_path: Path, capsys: Output) -> None:
    assert main([*command, str(_TINY), "--split", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"artesian: --split {tmp_path} has no shard that is not in {_TINY} already\n")


def test_an_earlier_trace_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"ARTTRACE and so on")
    assert _made(tmp_path, record_trace=str(tmp_path / "t")).trace == tmp_path / "t"


def test_the_help_has_a_group_with_the_defaults(capsys: Output) -> None:
    assert main(["ask", "--help"]) == 0
    reading = capsys.readouterr().out.partition("\nReading:\n")[2].partition("Exit codes")[0]
    for option in ("mirror", "split", "drive-weight", "verify-mirror", "io", "slots", "depth", "cache-rows"):
        assert f"--{option} " in reading
    assert "--record-trace " in reading and "--cache-policy " in reading
    assert "Rows of each engram table kept. [default: planned]" in " ".join(reading.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--slots", "0"], "--slots must be"),
        (["--io", "fast"], "--io"),
        (["--depth", "many"], "--depth"),
        (["--mirorr", "x"], "Did you mean --mirror?"),
        (["--cache-policy", "mru"], "--cache-policy must be"),
        (["--verify-mirror"], "--verify-mirror has no effect"),
    ],
)
def test_a_mistyped_option_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: Output, arguments: list[str], told: str
) -> None:
    monkeypatch.setattr("app.commands.ask.make_local", lambda *arguments: ScriptedBackend())
    assert main(["ask", "hi", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in err and "Traceback" not in err


def test_a_mistyped_setting_is_wrong_use(capsys: Output) -> None:
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text('io = "fast"\n')
    assert main(["ask", "hi"]) == 2
    assert "io = 'fast' cannot be used" in capsys.readouterr().err
