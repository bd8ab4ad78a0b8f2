"""The commands of docs/classifiers.md, one after the other, on a small set that is drawn here in place of garments.

usage: classifiers_page.py ROOT DARKNET
"""

import gzip
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import toyset  # for the names of temporary folders

PYTHON = "/usr/bin/python3"  # of the scripts
CLASSES, ITERATIONS = 10, 20
IMAGES = {"train": 300, "valid": 100}
# What stands in front of the page's words; `compare.sh` installs packages, then it runs this.
PROGRAMS = {"scripts/make-demo-data.py": [ROOT / "scripts/make-demo-data.py", "--source", "idx"],
            "scripts/compare.sh": [PYTHON, "-B", ROOT / "scripts/compare", "--darknet", DARKNET,
                                   "--out", "out/compare"],
            "build/bin/darknet": [DARKNET]}
SAYS = {"make-demo-data.py": f"{IMAGES['train']} training and {IMAGES['valid']} held-back pictures",
        "amp plan": "convolutional", "amp data": f"a classifier of {CLASSES} classes",
        "amp check": "layer", "amp lr-find": "learning_rate",
        "classifier train": "accuracy at iteration ", "classifier valid": "top 5:", "compare.sh": "| top 5 |"}


def write_idx(path, shape, values):
    """As the package dataset-fashion-mnist has them: bytes."""
    path.write_bytes(gzip.compress(struct.pack(f">4B{len(shape)}i", 0, 0, 8, len(shape), *shape) + bytes(values)))


def bar(kind, rng):
    """Noise with a bar, by whose place the class is known."""
    return [250 if row // 2 == kind + 2 and 3 <= column < 25 else rng.randrange(80)
            for row in range(28) for column in range(28)]


def write_garments(folder, seed):
    rng = random.Random(seed)
    folder.mkdir()
    for prefix, count in (("train", IMAGES["train"]), ("t10k", IMAGES["valid"])):
        kinds = [rng.randrange(CLASSES) for _ in range(count)]
        pixels = [value for kind in kinds for value in bar(kind, rng)]
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", (count, 28, 28), pixels)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", (count,), kinds)


def commands():
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/classifiers.md").read_text(), re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if not line.startswith("#")]
    return [line.split("  #")[0].split() for line in lines]


def set_iterations(folder, iterations):
    text = (ROOT / "cfg/mixed-classifier.cfg").read_text().replace("batch=128", "batch=16")
    (folder / "cfg/mixed-classifier.cfg").write_text(text.replace("max_batches=1000", f"max_batches={iterations}"))


def run(folder, words):
    """The page's command, with the counts of the small set. It goes on from the end, the page's after Ctrl-C."""
    text = re.sub(r"--(train|valid) \d+", lambda found: f"--{found[1]} {IMAGES[found[1]]}", " ".join(words[1:]))
    if ".backup" in text:
        set_iterations(folder, ITERATIONS + 5)
    text = text.replace(".backup", ".weights").replace("--seeds 5", "--seeds 1")
    done = subprocess.run([*map(str, PROGRAMS[words[0]]), *text.split()], cwd=folder, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, (words, done.stdout[-4000:])
    return done.stdout


def main():
    seed = int(os.environ.get("AMP_TEST_SEED", 1))
    print(f"AMP_TEST_SEED={seed}")
    found = commands()
    if subprocess.run([PYTHON, "-c", "import numpy, PIL, scipy"], capture_output=True).returncode:
        print("SKIPPED: make-demo-data.py and compare need NumPy, Pillow and SciPy")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_garments(folder / "idx", seed)
        (folder / "cfg").mkdir()
        set_iterations(folder, ITERATIONS)
        for words in found:
            name = next(name for name in SAYS if name in " ".join(words))
            told = run(folder, words)
            assert SAYS[name] in told, (words, told[-4000:])
        assert {next(name for name in SAYS if name in " ".join(words)) for words in found} == set(SAYS), found


main()
