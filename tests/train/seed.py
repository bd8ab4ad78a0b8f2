"""Seeded FP32 training with the `darknet` program: what the weights may and may not depend on.

usage: seed.py DARKNET
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def run(program, folder, weights=None, threads=2):
    command = [program, "detector", "train", str(folder / "toy.data"), str(folder / "toy.cfg")]
    if weights:
        command.append(str(weights))
    return subprocess.run(command, cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, OMP_NUM_THREADS=str(threads)))


def train(program, folder, keys, weights=None, threads=2, **settings):
    """The bytes of the final weights file."""
    toyset.make(folder, net_keys=keys, **settings)
    result = run(program, folder, weights, threads)
    assert result.returncode == 0, "%s\n%s" % (result.stdout, result.stderr)
    return (folder / "backup" / "toy_final.weights").read_bytes()


def check_same_and_different(program, root):
    first = train(program, root / "first", "seed=7", threads=1, max_batches=4)
    again = train(program, root / "again", "seed=7", threads=1, max_batches=4)
    two = train(program, root / "two", "seed=7", threads=2, max_batches=4)
    other = train(program, root / "other", "seed=8", max_batches=4)
    assert first == again, "two runs with the same seed differ"
    assert first == two, "the number of OpenMP threads changes the result"
    assert first != other, "the seed has no effect"


def check_resume(program, root):
    """Stock weights files hold no momentum, so without it a resumed run must be the same run."""
    toyset.CFG = toyset.CFG.replace("momentum=0.9", "momentum=0")
    whole = train(program, root / "whole", "seed=7", max_batches=5)
    train(program, root / "begin", "seed=7", max_batches=2)
    half = root / "begin" / "backup" / "toy_final.weights"
    resumed = train(program, root / "resumed", "seed=7", weights=half, max_batches=5)
    assert whole == resumed, "the resumed run is another one"


def check_bad_image(program, root):
    folder = toyset.make(root / "bad", net_keys="seed=7", images=3)
    for bad in folder.glob("image*.png"):  # all: another one would take the place of a single one
        bad.write_text("no image")
    result = run(program, folder)
    assert result.returncode == 1, (result.returncode, result.stderr)
    # Our program looks before it trains; in a checkout the decoder finds it.
    assert "does not begin as an image" in result.stderr or "cannot be read or decoded" in result.stderr, result.stderr
    assert "image00" in result.stderr, result.stderr
    assert not (folder / "bad.list").exists()
    assert not list((folder / "backup").iterdir()), "something was saved"


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as root:
        check_same_and_different(program, Path(root))
        check_bad_image(program, Path(root))
        check_resume(program, Path(root))


main()
