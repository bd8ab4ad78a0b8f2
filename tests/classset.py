"""A set of a few tiny generated images for a classifier, for tests that train."""

import colorsys
import random

import toyset

CLASSES = 10
TRAINED, VALID = 300, 100  # images


def make(folder):
    """Images of ten classes, which their names tell: five colours, each as a small square and as a large one."""
    folder.mkdir()
    (folder / "backup").mkdir()
    rng, size, paths = random.Random(1), 32, []
    for i in range(TRAINED + VALID):
        kind = i % CLASSES
        colour = bytes(int(255 * x) for x in colorsys.hsv_to_rgb(kind % 5 / 5, .9, .9))
        pixels = bytearray(rng.randrange(60) for _ in range(size * size * 3))
        first, side = (10, 12) if kind < 5 else (3, 26)
        for row in range(first, first + side):
            start = (row * size + first) * 3
            pixels[start:start + side * 3] = colour * side
        paths.append(folder / f"{i:03d}_kind{kind}.png")
        toyset.write_png(paths[-1], size, size, bytes(pixels))
    for name, part in ("train", paths[:TRAINED]), ("valid", paths[TRAINED:]):
        (folder / f"{name}.txt").write_text("".join(f"{path}\n" for path in part))
    (folder / "labels.txt").write_text("".join(f"kind{kind}\n" for kind in range(CLASSES)))
    (folder / "c.data").write_text(
        f"classes={CLASSES}\ntrain=train.txt\nvalid=valid.txt\nlabels=labels.txt\nbackup=backup\n")
