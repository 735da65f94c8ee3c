"""`artesian plan`: the screen, the JSON, what it refuses, and that a run keeps to what it showed."""

import json
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli import main
from app.commands.plan import supposed
from app.drafting import DraftOptions
from app.errors import UsageError
from app.last_run import Compared, LastRun
from app.model_choice import ModelChoice
from app.paths import rates_file, runs_file, settings_file
from app.plan_plot import text_plot, write_plot
from app.plan_report import explain_choice, real_model_text
from app.plan_text import bar, last_lines
from app.reading import MemoryOptions
from app.run_options import RunOptions
from app.settings import Settings
from app.values import Numerics
from planner.facts import MachineFacts, Rates
from planner.solve import gb
from tests.app.small_slices import small_slice
from tests.engine.released import write_released

TINY = Path(__file__).parents[1] / "data" / "tiny-a" / "checkpoint"
Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The header set of the whole release."""
    return write_released(tmp_path_factory.mktemp("released"), whole=False)


def data(capsys: Output, *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["kind"] == "plan"
    found: dict[str, Any] = line["data"]
    return found


def test_one_screen_says_what_lives_where(released: Path, capsys: Output) -> None:
    assert main(["plan", str(released), "--what-if", "ram=64GB,drives=2,drive=5GB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    text = "\n".join(lines)
    for part in (
        "runtime",
        "trunk",
        "head",
        "draft head",
        "conversation",
        "scratch",
        "rows",
        "experts",
        "experts lent",
    ):
        assert f"  {part}" in text
    assert "40 layers of 384 experts" in text and "never above" in text and "#" in text
    assert "5.0 GB/s given, another drive 1 5.0 GB/s given" in text
    assert "more memory" in text and "one more drive as fast" in text


def test_the_full_header_set_takes_under_two_hundred_megabytes_and_a_second(released: Path) -> None:
    """In a process of its own. Processor time, because other tests run beside this one."""
    code = (
        "import resource, sys; from app.cli import main; main(['plan', sys.argv[1]]);"
        "u = resource.getrusage(resource.RUSAGE_SELF);"
        "print(u.ru_maxrss * (1 if sys.platform == 'darwin' else 1024), u.ru_utime + u.ru_stime);"
        "print(*[m for m in ('torch', 'textual', 'numpy') if m in sys.modules])"
    )
    # By way of a shell that forks: a process begun directly counts the memory of the test process as its own peak.
    result = subprocess.run(
        ["/bin/sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", code, str(released)], capture_output=True,
        text=True, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    *_, figures, modules = result.stdout.splitlines()
    peak_bytes, seconds = figures.split()
    assert int(peak_bytes) < 200_000_000
    assert float(seconds) < 1.6  # 0.65 on an idle machine; a busy one slows processor time too
    assert modules == ""


def test_it_allocates_nothing_and_reads_no_payload(tmp_path: Path, capsys: Output) -> None:
    """Files whose payload is missing altogether are as good: only headers are looked at."""
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    for shard in TINY.glob("*.safetensors"):
        raw = shard.read_bytes()
        (tmp_path / shard.name).write_bytes(raw[: 8 + int.from_bytes(raw[:8], "little")])
    assert data(capsys, str(tmp_path))["parts"] == data(capsys, str(TINY))["parts"]


def test_a_config_alone_is_enough(released: Path, capsys: Output) -> None:
    whole = data(capsys, str(released), "--ram", "20GB")
    alone = data(capsys, str(released / "config.json"), "--ram", "20GB")
    assert [part["name"] for part in alone["parts"]] == [part["name"] for part in whole["parts"]]
    for a, b in zip(alone["parts"], whole["parts"], strict=True):
        assert abs(a["n_bytes"] - b["n_bytes"]) < 20_000_000  # a slot more or less in all
    assert "follow from the config" in alone["notes"][-1]


def test_the_released_model_can_be_planned_with_nothing_of_it_at_hand(released: Path, capsys: Output) -> None:
    """As from its headers: the image tower aside, which takes a book's kB each of 266 tensors and nothing else."""
    known = {part["name"]: part["n_bytes"] for part in data(capsys, str(released), "--ram", "20GB")["parts"]}
    found = data(capsys, "--released", "--ram", "20GB")
    assert found["model"] == "DeepSeek-V4.1-Flash" and "published widths" in found["notes"][-1]
    for part in found["parts"]:
        # A released context is longer than the header set's stand-in says, and the experts take what is left.
        assert abs(part["n_bytes"] - known[part["name"]]) < 1_000_000 or part["name"] == "experts", part
    assert main(["plan", "--released", str(released)]) == 2
    assert "--released names the model" in capsys.readouterr().err


def test_whoever_has_only_the_demo_is_told_of_the_real_model(tmp_path: Path) -> None:
    small, big = (
        real_model_text(Settings(), RunOptions(memory=MemoryOptions(ram=ram)), tmp_path) for ram in ("1GB", "20GB")
    )
    for text in (small, big):
        assert text.startswith("The real model, DeepSeek-V4.1-Flash, takes 510 GB on the drives (")
        assert "free on the drive of" in text
    assert "may take 1.00 GB" in small or "may take 1.0 GB" in small
    if "available" not in big:  # on a machine that has them
        assert "tokens a second once warm" in big and "Nothing of this machine was measured" in big


def test_every_option_acts(capsys: Output) -> None:
    plain = data(capsys, str(TINY), "--what-if", "ram=2GB")
    for option, value, key in (
        ("--ram", "600MB", "ceiling_bytes"),
        ("--reserve", "300MB", "reserve_bytes"),
        ("--context", "500", "context_tokens"),
        ("--chunk-tokens", "96", "chunk_tokens"),
        ("--slots", "2", "slots_by_layer"),
        ("--cache-rows", "100", "cache_rows"),
        ("--depth", "3", "depth_by_drive"),
        ("--draft", "off", "drafting"),
    ):
        assert data(capsys, str(TINY), option, value, "--what-if", "ram=2GB")[key] != plain[key], option
    assert data(capsys, str(TINY), "--what-if", "ram=3GB")["available_bytes"] > plain["available_bytes"]
    for what_if in ("drives=2", "drive=9GB", "cores=64", "memory=80GB", "vram=4GB"):
        assert data(capsys, str(TINY), "--what-if", f"ram=2GB,{what_if}") != plain


def test_measured_rates_grow_with_the_cores_as_far_as_memory_goes() -> None:
    measured = Rates(
        memory_bytes_s=40e9, fp4_bytes_s=15e9, fp8_bytes_s=30e9, plain_bytes_s=40e9, multiply_adds_s=1e11,
        source="remembered",
    )  # fmt: skip
    facts = MachineFacts(total_bytes=8, available_bytes=8, ruled_by="system", n_cores=2, rates=measured)
    rates = supposed(facts, {"cores": 4}).rates
    assert (rates.fp4_bytes_s, rates.fp8_bytes_s, rates.plain_bytes_s) == (30e9, 40e9, 40e9)
    assert (rates.multiply_adds_s, rates.memory_bytes_s) == (2e11, 40e9)


def test_more_memory_is_added_to_what_was_asked_for(released: Path, capsys: Output) -> None:
    asked = data(capsys, str(released), "--what-if", "ram=128GB", "--ram", "24GB")
    more = next(one for one in asked["advice"] if "more memory" in one["change"])
    then = data(capsys, str(released), "--what-if", "ram=128GB", "--ram", "40GB")
    assert more["tokens_s"] == pytest.approx(then["answer"]["tokens_s"])
    assert more["gain"] > 0


def test_a_plan_is_for_the_numerics_that_the_settings_name(capsys: Output) -> None:
    def parts(*arguments: str) -> dict[str, int]:
        return {part["name"]: part["n_bytes"] for part in data(capsys, str(TINY), *arguments)["parts"]}

    exact = parts("--draft", "off")
    assert "draft head" in parts()
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text('numerics = "reference"\n')
    # `reference` keeps keys as bf16, half of float32, and drafts only when asked to: they could change the answer.
    reference = parts()
    assert "draft head" not in reference and "draft head" in parts("--draft", "on")
    assert reference["conversation"] * 2 == exact["conversation"]


def test_the_numerics_of_a_plan_can_be_said(capsys: Output) -> None:
    def conversation(*arguments: str) -> int:
        parts = data(capsys, str(TINY), "--draft", "off", *arguments)["parts"]
        return next(part["n_bytes"] for part in parts if part["name"] == "conversation")

    exact, reference = conversation("--numerics", "exact"), conversation("--numerics", "reference")
    assert reference * 2 == exact == conversation()
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text('numerics = "reference"\n')
    assert conversation("--numerics", "exact") == exact and conversation() == reference


def test_the_plan_on_a_screen_is_for_the_numerics_that_it_runs_with() -> None:
    def conversation(mode: Numerics) -> int:
        options = RunOptions(numerics=mode, drafting=DraftOptions(draft="off"))
        made = explain_choice(ModelChoice(folder=TINY, origin="--model", is_demo=False), Settings(), options)
        return next(row.n_bytes for place in made.places for row in place.rows if row.label == "conversation")

    assert conversation("reference") * 2 == conversation("exact")


def test_the_command_line_wins_over_the_settings_and_they_over_the_defaults(released: Path, capsys: Output) -> None:
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text('ram = "15GB"\ncontext = 9000\nreserve = "1GB"\n')
    said = data(capsys, str(released))
    assert (said["ceiling_bytes"], said["context_tokens"], said["reserve_bytes"]) == (15 * 10**9, 9000, 10**9)
    over = data(capsys, str(released), "--ram", "16GB", "--context", "8000")
    assert (over["ceiling_bytes"], over["context_tokens"], over["reserve_bytes"]) == (16 * 10**9, 8000, 10**9)


def test_what_does_not_fit_is_exit_code_three_with_the_change_that_would(released: Path, capsys: Output) -> None:
    assert main(["plan", str(released), "--ram", "5GB"]) == 3
    out, err = capsys.readouterr()
    assert out == "" and "may take 5.0 GB" in err and "It fits with --ram " in err
    size = err.partition("It fits with --ram ")[2].split()[0].rstrip(".")
    assert main(["plan", str(released), "--ram", size]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ram", "lots"], "--ram must be a size"),
        (["--ram", "120%"], "--ram must be a size"),
        (["--ram", "24"], "--ram must be a size such as 24GB, or a share such as 80%, not 24"),
        (["--reserve", "2e9"], "--reserve must be a size"),
        (["--what-if", "ram=1"], "--what-if ram must be a size such as 128GB, not '1'"),
        (["--what-if", "drive=7"], "--what-if drive must be a rate such as 7GB, not '7'"),
        (["--what-if", f"cores={'9' * 5000}"], "--what-if cores is at most 1,024"),
        (["--context", "0"], "--context must be a whole number"),
        (["--vram", "8GB"], "--vram has no effect"),
        (["--what-if", "ram"], "--what-if ram must be"),
        (["--what-if", "rem=1GB"], "--what-if knows ram"),
        (["--what-if", "drives=2GB"], "--what-if drives must be"),
        (["--plot", "x.bmp"], "--plot writes .svg and .png"),
        (["--last"], "no turn on"),
    ],
)
def test_what_cannot_act_is_wrong_use(arguments: list[str], told: str, capsys: Output) -> None:
    assert main(["plan", str(TINY), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_model_that_is_not_there_is_named(capsys: Output) -> None:
    assert main(["plan", "/nowhere/at/all"]) == 4
    assert "/nowhere/at/all" in capsys.readouterr().err


def test_the_plot_is_drawn_on_the_screen_and_into_a_file(released: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["plan", str(released), "--what-if", "ram=48GB", "--plot", "screen"]) == 0
    assert "^ this plan" in capsys.readouterr().out
    file = tmp_path / "plot.svg"
    assert main(["plan", str(released), "--what-if", "ram=48GB", "--plot", str(file)]) == 0
    root = xml.etree.ElementTree.parse(file).getroot()
    assert root.tag.endswith("svg") and any(child.tag.endswith("polyline") for child in root)


def test_a_plot_shows_where_a_curve_is() -> None:
    lines = text_plot([(10**10, 0.0), (2 * 10**10, 2.0)], 2 * 10**10)
    assert lines[1].rstrip().endswith("*") and lines[12].index("*") == 10  # from the lower left to the upper right
    assert lines[-1].index("^") == 10 + 59
    with pytest.raises(UsageError, match=r"not \.gif"):
        write_plot(Path("x.gif"), [(1, 1.0), (2, 2.0)], 1, "x")


def test_a_plot_that_finds_no_room_is_named_and_leaves_what_was_there(
    tmp_path: Path, capsys: Output, small_files_only: Callable[[int], AbstractContextManager[None]]
) -> None:
    file = tmp_path / "plots" / "plot.svg"
    file.parent.mkdir()
    plot = ["plan", str(TINY), "--what-if", "ram=2GB", "--plot", str(file)]
    for there, left in ((None, "no file was made"), (b"old", "what was there is untouched")):
        if there is not None:
            file.write_bytes(there)
        with small_files_only(1000):
            assert main(plot) == 1
        assert capsys.readouterr().err == f"artesian: {file}: File too large, so {left}\n"
        assert [path.read_bytes() for path in file.parent.iterdir()] == ([] if there is None else [there])
    assert main(plot) == 0 and file.read_bytes().startswith(b"<svg") and list(file.parent.iterdir()) == [file]


def test_a_plot_as_png_has_the_curve_where_the_svg_has_it(tmp_path: Path) -> None:
    """Two points make a straight line, whose middle is in the middle of both."""
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed, which only this needs")
    file = tmp_path / "plot.png"
    write_plot(file, [(10**10, 0.0), (2 * 10**10, 2.0)], 2 * 10**10, "A model")
    image = pillow.open(file)
    assert (image.format, image.size) == ("PNG", (1280, 720))
    rows, columns = np.nonzero((np.asarray(image) == (0x28, 0x78, 0xC8)).all(2))
    left, right = ((columns[i], rows[i]) for i in (columns.argmin(), columns.argmax()))
    # From the lower left of the frame to below its upper edge, of which 5 in 105 are left free: twice the SVG's units.
    assert left[0] == pytest.approx(2 * 64, abs=3) and left[1] == pytest.approx(2 * 312, abs=4)
    assert right[0] == pytest.approx(2 * 616, abs=3) and right[1] == pytest.approx(2 * (312 - 272 / 1.05), abs=4)


def test_without_pillow_a_png_is_refused_and_an_svg_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)  # as if it were not installed
    points = [(1, 1.0), (2, 2.0)]
    with pytest.raises(UsageError, match="Pillow") as refused:
        write_plot(tmp_path / "plot.png", points, 1, "x")
    assert "pip install" in refused.value.hint and not (tmp_path / "plot.png").exists()
    write_plot(tmp_path / "plot.svg", points, 1, "x")
    assert (tmp_path / "plot.svg").exists()


def test_a_size_of_any_kind_is_said_in_its_unit(capsys: Output) -> None:
    # Others keep a quarter of what they have, and the system a third of the rest.
    assert main(["plan", str(TINY), "--what-if", "ram=512B"]) == 3
    assert "may take 256 B of 384 B available" in capsys.readouterr().err
    assert [gb(n) for n in (0, 1, 20_000, 999_700, 999_499_999, 999_700_000, 12_345_678_901)] == [
        "0 B", "1 B", "20.0 kB", "1.00 MB", "999 MB", "1.00 GB", "12.3 GB",
    ]  # fmt: skip


def test_the_last_turn_of_a_tiny_model_took_milliseconds() -> None:
    phases = (("answer: trunk", 0.0004, 0.012), ("prompt: trunk", 0.0, 0.43), ("answer: waiting", 75.0, 2.5))
    figures = tuple(Compared(label=a, unit="seconds", predicted=b, happened=c) for a, b, c in phases)
    run = LastRun(model="/m", at=1.8e9, warm=False, figures=figures)
    rows = [line.split() for line in "\n".join(last_lines(run)).splitlines()[-3:]]
    assert [" ".join(row) for row in rows] == [
        "answer: trunk 0.4 ms 12 ms x 30.00", "prompt: trunk 0 ms 430 ms", "answer: waiting 1 m 15 s 2.5 s x 0.03",
    ]  # fmt: skip


def test_a_bar_shows_something_of_everything_but_nothing() -> None:
    assert bar(0, 100, 10) == "." * 10 and bar(1, 100, 10) == "#" + "." * 9 and bar(100, 100, 10) == "#" * 10


def test_a_run_reports_the_numbers_of_the_dry_run(tmp_path: Path, capsys: Output) -> None:
    """Every number of the plan reaches the engine: what a dry run shows is what `ask --json` reports."""
    small_slice(tmp_path / "m", n_layers=4)
    arguments = ["--ram", "450MB", "--slots", "3", "--context", "300", "--cache-rows", "100"]
    shown = data(capsys, str(tmp_path / "m"), *arguments)
    question = ["ask", "--raw", "hello there", "--model", str(tmp_path / "m"), "--max-tokens", "3", "--json"]
    assert main([*question, *arguments]) == 0
    stats = json.loads(capsys.readouterr().out.splitlines()[-1])["data"]["stats"]
    assert stats["memory"]["ceiling_bytes"] == shown["ceiling_bytes"] == 450_000_000
    assert stats["memory"]["planned_bytes"] == shown["planned_bytes"]
    assert stats["memory"]["anonymous_bytes"] > 0
    # And it is remembered: what was predicted beside what happened, and this machine's rates.
    assert rates_file().exists() and runs_file().exists()
    assert main(["plan", str(tmp_path / "m"), "--last"]) == 0
    out = capsys.readouterr().out
    assert "predicted" in out and "happened" in out and "memory, all slots full" in out
    assert main(["plan", str(tmp_path / "m"), "--last", "--json"]) == 0
    last = json.loads(capsys.readouterr().out)["data"]
    assert {figure["label"] for figure in last["figures"]} >= {"memory, all slots full", "prompt", "answer"}
    begun = time.time()
    assert begun - 600 < last["at"] <= begun


def test_the_demo_leaves_no_record(capsys: Output) -> None:
    assert main(["ask", "hi", "--max-tokens", "2"]) == 0
    assert not rates_file().exists() and not runs_file().exists()
    assert main(["plan"]) == 0
    assert "8 layers of 32 experts" in capsys.readouterr().out
