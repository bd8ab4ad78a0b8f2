"""scripts/bench-inference without a look at its times: who takes part, what is named, what is refused.

usage: bench_inference.py ROOT
"""

import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests/export"))
import nets
import toyset


def bench(folder, *words, status=0):
    done = subprocess.run([sys.executable, ROOT / "scripts/bench-inference", *words, "--rounds", "1", "--threads", "1"],
                          cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, done
    return done.stdout if status == 0 else done.stderr


def main():
    if missing := nets.missing_packages():
        print(f"SKIPPED scripts/bench-inference: Python has no {', '.join(missing)}")
        return
    import numpy
    with tempfile.TemporaryDirectory() as name:
        folder = toyset.make(Path(name) / "set")
        described = nets.describe(ROOT / "build/bin/darknet", folder / "toy.cfg")
        nets.make_weights(described, folder / "toy.weights", numpy.random.default_rng(1))
        said = bench(folder, "toy.cfg", "toy.weights", "--batches", "1,3")
        others = [f"ONNX Runtime, {file}, threads {waits}" for file in ("fp32", "half") for waits in ("spinning", "sleeping")]
        others += ["OpenCV"] if find_spec("cv2") else []
        ours = [f"darknet-amp, {dtype}" for dtype in ("fp32", "fp16", "bf16")]
        rows = re.findall(r"(?m)^ +(\d+)  (\S.*?) +([\d.]+) ms +([\d.]+) images/s$", said)
        assert [row[:2] for row in rows] == [(batch, who) for batch in "13" for who in ours + others], said
        assert all(float(seconds) > 0 and float(rate) > 0 for _, _, seconds, rate in rows), said
        verdicts = re.findall(r"(?m)^ +\d+  ours at its fastest \((\w+)\) is [\d.]+x of the fastest other \((.*)\)$", said)
        assert len(verdicts) == 2 and all(other in others for _, other in verdicts), said
        assert ("OpenCV is not timed" in said) == (not find_spec("cv2")), said
        assert "weights" in bench(folder, "toy.cfg", "toy.cfg", status=1)
        assert "allowed: 1 to 64" in bench(folder, "toy.cfg", "toy.weights", "--batches", "65", status=2)


main()
