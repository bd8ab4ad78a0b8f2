"""What a trainer loads in other sizes than the network has ends with both numbers before anything is trained, with
mixed_precision=1 and without: Darknet itself copies it over the ends of its arrays, or trains on what lay there.

usage: trainer_sizes.py DARKNET
"""

import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

CFG = """
[net]
batch=4
subdivisions=1
width=28
height=28
channels={channels}
learning_rate=0.01
max_batches=2
{key}

[convolutional]
filters={outputs}

[avgpool]
[softmax]
"""


def train(folder, key, classes, channels, outputs):
    """`classifier train` of two kinds of images, named in their paths."""
    folder.mkdir()
    (folder / "backup").mkdir()
    rng = random.Random(1)
    images = [folder / f"{i}_{('cat', 'dog')[i % 2]}.png" for i in range(8)]
    for image in images:
        toyset.write_image(image, rng, 40)
    (folder / "train.txt").write_text("".join(f"{image}\n" for image in images))
    names = ["cat", "dog", *(f"none{i}" for i in range(classes))][:classes]
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in names))
    (folder / "c.data").write_text(f"classes={classes}\ntrain=train.txt\nlabels=labels.txt\nbackup=backup\n")
    (folder / "c.cfg").write_text(CFG.format(key=key, channels=channels, outputs=outputs))
    done = subprocess.run([sys.argv[1], "classifier", "train", "c.data", "c.cfg"], cwd=folder, capture_output=True,
                          text=True)
    return done, list((folder / "backup").iterdir())


def main():
    with tempfile.TemporaryDirectory() as root:
        for key in ("", "mixed_precision=1\nseed=1"):
            for case, (classes, channels, outputs, said) in enumerate((
                    (2, 1, 2, "each loaded image has 2352 numbers, the network reads 784 (width=28, height=28, channels=1)"),
                    (2, 4, 2, "each loaded image has 2352 numbers, the network reads 3136"),
                    (1000, 3, 2, "the truths of each loaded image are 1000 numbers, the network's last layer takes 2"),
                    (2, 3, 1000, "the truths of each loaded image are 2 numbers, the network's last layer takes 1000"))):
                done, saved = train(Path(root) / f"{len(key)}-{case}", key, classes, channels, outputs)
                assert done.returncode == 1 and done.stderr.count(said) == 1, (done.returncode, done.stderr[-2000:])
                assert ": nothing is trained" in done.stderr and not saved, (done.stderr[-2000:], saved)
            done, saved = train(Path(root) / f"{len(key)}-right", key, 2, 3, 2)
            assert done.returncode == 0 and saved, done.stderr[-2000:]


main()
