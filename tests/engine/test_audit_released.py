"""The audit at the released size: 96,085 tensors in 48 shards, as header prefixes and as sparse files."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.audit import Outcome, audit
from engine.config import flat
from engine.inventory import Group
from tests.engine.released import seven_heads, write_released
from tests.engine.test_audit_faults import failing, faults, undecided
from tests.maker import has_sparse_files


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_released(tmp_path_factory.mktemp("released"), whole=False)


def test_released_headers_pass_every_check_and_give_the_released_figures(prefixes: Path) -> None:
    start = time.process_time()
    report = audit(prefixes)
    assert time.process_time() - start < 15  # 2 s on an idle core, 4 s on a crowded one
    assert failing(report) == set()
    assert undecided(report) == {"files.sizes"}  # the payload is not there, and everything else is
    assert (report.n_tensors, report.n_bytes) == (96_085, 510_286_023_000)
    assert len(report.inventory.shards) == len(report.prefixes) == 48
    assert {total.group: total.n_tensors for total in report.groups} == {
        Group.EXPERTS: 94_464,
        Group.ENGRAM: 12,
        Group.ATTENTION: 603,
        Group.EMBEDDING: 3,
        Group.SHARED: 240,
        Group.VISION: 266,
        Group.DRAFT: 97,
        Group.NORMS: 400,
    }


def test_a_whole_released_checkpoint_passes_everything(tmp_path: Path) -> None:
    if not has_sparse_files(tmp_path):
        pytest.skip("the file system has no sparse files")
    try:
        folder = write_released(tmp_path, whole=True)
    except OSError as error:
        pytest.skip(f"the file system does not take files of 100 GB, sparse or not: {error}")
    report = audit(folder, require_complete=True)
    assert report.count(Outcome.PASS) == len(report.checks)
    assert report.inventory.complete is True


def test_seven_heads_fail_exactly_the_row_count(prefixes: Path, tmp_path: Path) -> None:
    # The live check of the published audit: declared and derived rows are its figures.
    (tmp_path / "config.json").write_text(json.dumps(flat(seven_heads())))
    report = audit(prefixes, config=tmp_path / "config.json")
    assert failing(report) == {"engram.rows-exact"}
    declared, *stored = faults(report, "engram.rows-exact")
    assert (declared.found, declared.expected) == ((384006168, 384016682), (336004849, 336012883))
    assert [(fault.found, fault.expected) for fault in stored] == [
        (384006168, 336004849),
        (384016682, 336012883),
    ]


def test_seven_heads_fail_on_the_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(flat(seven_heads())))
    report = audit(tmp_path)
    config_failures = failing(report) - {"files.sizes", "inventory.totals"}  # there is no shard at all
    assert config_failures == {"engram.rows-exact"}
    (declared,) = faults(report, "engram.rows-exact")
    assert (declared.found, declared.expected) == ((384006168, 384016682), (336004849, 336012883))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_the_audit_stays_below_300_mb(prefixes: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from engine.audit import audit\n"
        "report = audit(Path(sys.argv[1])); assert report.sound and 'torch' not in sys.modules\n"
        "print(Path('/proc/self/status').read_text())"
    )
    status = subprocess.run([sys.executable, "-c", code, str(prefixes)], capture_output=True, text=True, check=True)
    (peak,) = [line for line in status.stdout.splitlines() if line.startswith("VmHWM")]
    assert int(peak.split()[1]) < 300_000  # kB
