"""scripts/gpu-check.sh without a GPU: one line and exit status 77; and its report from canned stages.

usage: gpu_check.py ROOT
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])


def test_no_gpu():
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--quick"], text=True, capture_output=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 77, done
    assert len(done.stdout.splitlines()) == 1 and "no NVIDIA GPU" in done.stdout, done
    assert done.stderr == "", done


def test_arguments():
    done = subprocess.run([ROOT / "scripts/gpu-check.sh", "--fast"], text=True, capture_output=True)
    assert done.returncode == 1 and '"--fast"' in done.stderr, done


def test_report(folder):
    stages = [("device-properties", "pass", "1", ""), ("conformance", "FAIL", "12", "2 programs failed"),
              ("memcheck", "skipped", "0", "compute-sanitizer is not here")]
    (folder / "stages").write_text("".join("\t".join(stage) + "\n" for stage in stages))
    (folder / "device.json").write_text('{"deviceName": "NVIDIA H100 80GB HBM3"}')
    (folder / "leaky_slope.json").write_text(
        '{"forward": [{"engine": 2, "slope": "honoured"}, {"engine": 2, "slope": "ignored"}], '
        '"backward": []}')
    (folder / "bench.json").write_text("cut o")
    out = folder / "out"
    subprocess.run([sys.executable, ROOT / "scripts/gpu_report.py", folder, out], check=True,
                   capture_output=True)
    (page,), (record,) = out.glob("h100-80gb-hbm3-*.md"), out.glob("h100-80gb-hbm3-*.json")
    record = json.loads(record.read_text())
    assert record["stages"][1]["reason"] == "2 programs failed" and record["bench"] is None
    text = page.read_text()
    assert "| conformance | FAIL | 12 | 2 programs failed |" in text, text
    assert "forward: honoured, ignored (2 plans); backward: no engine (0 plans)" in text, text


test_no_gpu()
test_arguments()
with tempfile.TemporaryDirectory() as scratch:
    test_report(Path(scratch))
