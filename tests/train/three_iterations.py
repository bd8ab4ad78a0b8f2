"""Trains three iterations of a small yolo net with the `darknet` program, and one with random=1.

usage: three_iterations.py DARKNET [--expect-no-gpu]

--expect-no-gpu: the program is a GPU build on a machine without a GPU; it must say so, once, and
train on the CPU.
"""

import math
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def train(program, folder, expect_no_gpu, **settings):
    data = toyset.make(folder, **settings)
    command = [program, "detector", "train", str(data / "toy.data"), str(data / "toy.cfg")]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, "status %d\n%s\n%s" % (run.returncode, run.stdout, run.stderr)
    said = run.stderr.count("no usable GPU")
    assert said == (1 if expect_no_gpu else 0), "said %d times:\n%s" % (said, run.stderr)
    weights = toyset.read_weights(folder / "backup" / "toy_final.weights")
    assert weights and all(math.isfinite(w) for w in weights)
    return run.stdout, weights


def main():
    program, expect_no_gpu = sys.argv[1], "--expect-no-gpu" in sys.argv
    with tempfile.TemporaryDirectory() as root:
        out, weights = train(program, Path(root) / "fixed", expect_no_gpu, max_batches=3)
        losses = [line for line in out.splitlines() if " avg, " in line]
        assert len(losses) == 3, out
        assert len(set(weights)) > len(weights) // 2, "the weights look untouched"
        out, _ = train(program, Path(root) / "resized", expect_no_gpu, max_batches=1, batch=2,
                       random_size=1)
        assert "Resizing" in out and "\n608\n" in out, out


main()
