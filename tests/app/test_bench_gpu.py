"""`artesian bench gpu` without a card: it says so, and with the processor in its place it goes all the way."""

import json

import pytest

from app.cli import main
from app.commands import bench_gpu
from app.exits import ExitCode
from engine.kernels import matmul


@pytest.fixture(autouse=True)
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.device.card_devices", tuple)


def test_without_a_card_it_says_so_and_exits_with_a_code_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--json"]) == 6
    out, err = capsys.readouterr()
    assert out == "" and "no graphics card" in err.splitlines()[0]


def test_with_the_processor_in_its_place_everything_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--emulate", "--tokens", "2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["kind"] == "bench-gpu"
    data = said["data"]
    assert data["emulated"] is True and data["agrees"] is True and data["golden"] == []
    assert {product["kind"] for product in data["products"]} == {"fp8", "fp4", "plain"}
    assert all(0 <= product["error"] < 1e-5 and product["same_alone"] for product in data["products"])
    ((memory, card, mixed, half),) = (model["placements"] for model in data["models"])
    assert memory["n_served"] == memory["card_bytes"] == 0
    # Every expert of every layer was on the card: 4 of each of 8 layers for each of 2 tokens.
    assert card["n_served"] == 2 * 8 * 4 and 0 < mixed["n_served"] < card["n_served"] and half["n_served"] > 0
    assert memory["tokens"] == card["tokens"] == mixed["tokens"] == half["tokens"] and len(card["tokens"]) == 2
    assert card["logits_error"] == mixed["logits_error"] == half["logits_error"] == 0.0  # the same kernels, every bit
    assert card["floor_s"] == pytest.approx(card["card_bytes"] / data["rates"]["read_bytes_s"])


def test_what_differs_is_exit_code_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A product that is wrong by a thousandth."""
    monkeypatch.setattr("engine.tiers.bench.matmul", lambda x, matrix: matmul(x, matrix) * 1.001)
    monkeypatch.setattr(bench_gpu, "_model", lambda *_: {"model": "m", "placements": [], "agrees": True})
    assert main(["bench", "gpu", "--emulate"]) == ExitCode.FAILED
    assert "1.0e-03" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"), [(["--tokens", "0"], "--tokens must be"), (["--golden", "x"], "--golden needs the MODEL")]
)
def test_wrong_use_is_named(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "gpu", "--emulate", *arguments]) == 2
    assert told in capsys.readouterr().err
