import json

import pytest

from app.commands import bench_prompt
from app.errors import UsageError
from app.exits import ExitCode

Output = pytest.CaptureFixture[str]


def test_each_length_is_read_and_its_peak_is_its_own(capsys: Output) -> None:
    assert bench_prompt.run(lengths=[96, 32], chunk_tokens=40, as_json=True) is ExitCode.DONE
    data = json.loads(capsys.readouterr().out)["data"]
    assert [result["prompt_tokens"] for result in data["results"]] == [32, 96]
    for result in data["results"]:
        assert 0 < result["indexer_s"] < result["seconds"]
        if result["peak_bytes"] is not None:
            # The program itself takes over 100 MB; the test's own process may have taken more before.
            assert result["peak_bytes"] > 100_000_000
    assert len(bench_prompt.render(data).splitlines()) == 5  # a heading, a line for each, a blank one and a note


def test_the_model_has_the_released_window_and_numbers_of_chosen_positions() -> None:
    """Released config: window 128, top-k 512, 2048 candidate blocks of 8."""
    tiny = bench_prompt.TINY
    assert (tiny["window_size"], tiny["index_topk"]) == (128, 512)
    assert (tiny["candidate_topk_blocks"], tiny["candidate_block_size"]) == (2048, 8)


@pytest.mark.parametrize("options", [{"lengths": [0]}, {"lengths": [2_000_000]}, {"chunk_tokens": 0}])
def test_settings_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        bench_prompt.run(**options)  # type: ignore[arg-type]
