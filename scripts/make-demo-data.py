#!/usr/bin/python3
"""Build the demo's detection data set from the real garment photographs of
Debian's package dataset-fashion-mnist.

    scripts/make-demo-data.py [--out DIR] [--train N] [--valid N] [--seed S] [--classes]

Every picture is a varied background (gradient, smooth noise, or a much enlarged
and blurred garment) with two to six garments at random places, sizes and
colours. Training pictures use garments of the package's train split only,
validation pictures those of its test split only.

DIR then holds, in Darknet's format:
    demo.data  demo.names  train.txt  valid.txt
    images/train_00000.jpg ...   RGB, SIZE x SIZE pixels
    labels/train_00000.txt ...   "class x y w h", centre and size, in 0..1
The lists hold absolute paths, so they work from any folder.

With --classes a classification set instead: the first N garments themselves, 28 x 28, as
train_00000_LABEL.png, with classes.data and labels.txt for `darknet classifier`.

The same arguments give the same pictures. DIR is built beside itself and moved
into place when complete; where it is complete already, nothing is done.
"""

import argparse
import gzip
import json
import math
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

RECIPE_VERSION = 1  # raise when the pictures change
SOURCE = Path("/usr/share/datasets/fashion-mnist")
NAMES = ["t-shirt", "trouser", "pullover", "dress", "coat",
         "sandal", "shirt", "sneaker", "bag", "ankle-boot"]
SMALLEST, LARGEST = 0.25, 0.45  # side of a garment's square, as a share of the picture's
MAX_OVERLAP = 0.08  # of the smaller garment's area
GARMENTS = (2, 6)  # in a picture, both inclusive
# Darknet derives a label's path from its image's by replacing the first of each of these.
REPLACED_BY_DARKNET = ["images", "JPEGImages", "raw", ".jpg", ".png", ".JPG", ".JPEG"]


def die(message):
    sys.exit(f"make-demo-data: {message}")


def read_idx(path, dims):
    """One file of the package: uint8 array with `dims` dimensions (IDX format)."""
    if not path.exists():
        die(f"{path} is missing: install the package dataset-fashion-mnist")
    raw = gzip.decompress(path.read_bytes())
    header = 4 + 4 * dims
    shape = np.frombuffer(raw, ">i4", dims, 4)
    if raw[:4] != bytes([0, 0, 8, dims]) or len(raw) != header + shape.prod():
        die(f"{path} is not an IDX file of bytes with {dims} dimension(s)")
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def load_split(source, prefix):
    """(garments, classes) of one split: uint8 [n, 28, 28] and uint8 [n]."""
    return (read_idx(source / f"{prefix}-images-idx3-ubyte.gz", 3),
            read_idx(source / f"{prefix}-labels-idx1-ubyte.gz", 1))


def silhouette(garment):
    """Which pixels belong to the garment: lit ones, and dark ones enclosed by them."""
    lit = garment > 12

    def between(axis):  # lit somewhere before and somewhere after, along the axis
        before = np.maximum.accumulate(lit, axis)
        after = np.flip(np.maximum.accumulate(np.flip(lit, axis), axis), axis)
        return before & after

    return between(0) & between(1)


def random_colour(rng, low, high):
    return rng.uniform(low, high, 3).astype(np.float32)


def background(rng, garments, size):
    """float32 [size, size, 3] in 0..255."""
    kind = rng.integers(3)
    if kind == 0:  # gradient between two colours in a random direction
        angle = rng.uniform(0, 2 * math.pi)
        y, x = np.mgrid[0:size, 0:size] / (size - 1) - 0.5
        share = (x * math.cos(angle) + y * math.sin(angle)) / math.sqrt(2) + 0.5
    elif kind == 1:  # smooth noise
        cells = int(rng.integers(3, 12))
        noise = Image.fromarray(rng.integers(0, 256, (cells, cells), dtype=np.uint8))
        share = np.asarray(noise.resize((size, size), Image.BICUBIC)) / 255.0
    else:  # the cloth of a real garment, enlarged and blurred
        cloth = Image.fromarray(garments[rng.integers(len(garments))][6:22, 6:22])
        cloth = cloth.resize((size, size), Image.BICUBIC)
        share = np.asarray(cloth.filter(ImageFilter.GaussianBlur(size / 40))) / 255.0
    first, second = random_colour(rng, 0, 140), random_colour(rng, 0, 140)
    share = share.astype(np.float32)[..., None]
    return first * (1 - share) + second * share


def draw_garment(rng, garment, side):
    """The garment `side` pixels wide: colour float32 [h, w, 3] and cover [h, w] in 0..1,
    both cut to the garment's own edges."""
    cover = Image.fromarray(silhouette(garment).astype(np.uint8) * 255)
    cover = np.asarray(cover.resize((side, side), Image.BILINEAR)) / 255.0
    grey = np.asarray(Image.fromarray(garment).resize((side, side), Image.BICUBIC)) / 255.0
    tint = random_colour(rng, 210, 255)
    colour = (0.3 + 0.7 * grey.astype(np.float32))[..., None] * tint

    rows = np.flatnonzero((cover > 0.5).any(1))
    cols = np.flatnonzero((cover > 0.5).any(0))
    cut = np.s_[rows[0]:rows[-1] + 1, cols[0]:cols[-1] + 1]
    return colour[cut], cover[cut].astype(np.float32)


def free_place(rng, boxes, width, height, size):
    """A left top corner where the box hardly overlaps the others, or None after 30 tries."""
    for _ in range(30):
        x, y = int(rng.integers(size - width + 1)), int(rng.integers(size - height + 1))
        for bx, by, bw, bh in boxes:
            common = (max(0, min(x + width, bx + bw) - max(x, bx)) *
                      max(0, min(y + height, by + bh) - max(y, by)))
            if common > MAX_OVERLAP * min(width * height, bw * bh):
                break
        else:
            return x, y
    return None


def make_picture(rng, garments, classes, size):
    """(uint8 [size, size, 3], lines of the label file)."""
    picture = background(rng, garments, size)
    boxes, lines = [], []
    for _ in range(rng.integers(GARMENTS[0], GARMENTS[1] + 1)):
        which = rng.integers(len(garments))
        if not silhouette(garments[which]).any():
            continue
        side = int(size * rng.uniform(SMALLEST, LARGEST))
        colour, cover = draw_garment(rng, garments[which], side)
        height, width = cover.shape
        place = free_place(rng, boxes, width, height, size)
        if place is None:
            continue
        x, y = place
        boxes.append((x, y, width, height))
        under = picture[y:y + height, x:x + width]
        under += cover[..., None] * (colour - under)
        lines.append(f"{classes[which]} {(x + width / 2) / size:.6f} {(y + height / 2) / size:.6f}"
                     f" {width / size:.6f} {height / size:.6f}")
    picture += rng.normal(0, rng.uniform(0, 6), picture.shape)
    return np.clip(picture, 0, 255).astype(np.uint8), lines


def make_split(out, final, name, count, garments, classes, args):
    """`count` pictures with labels in `out`, and their list (paths as under `final`)."""
    paths, shown = [], 0.0
    for i in range(count):
        rng = np.random.default_rng([args.seed, len(name), len(garments), i])
        pixels, lines = make_picture(rng, garments, classes, args.size)
        stem = f"{name}_{i:05d}"
        Image.fromarray(pixels).save(out / "images" / f"{stem}.jpg", quality=92)
        (out / "labels" / f"{stem}.txt").write_text("".join(line + "\n" for line in lines))
        paths.append(str(final / "images" / f"{stem}.jpg"))
        if time.monotonic() - shown > 1 or i + 1 == count:
            shown = time.monotonic()
            print(f"\r{name}: {i + 1}/{count} pictures", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    (out / f"{name}.txt").write_text("".join(path + "\n" for path in paths))


def class_name(kind):
    """As it stands in file names. The bars keep "shirt" from being found in "t-shirt"."""
    return f"_{NAMES[kind]}_"


def save_garments(out, final, name, count, garments, classes):
    if count > len(garments):
        die(f"--{name} {count}: the package has {len(garments)} such garments")
    paths = []
    for i in range(count):
        file = f"{name}_{i:05d}{class_name(classes[i])}.png"
        Image.fromarray(garments[i]).convert("RGB").save(out / "images" / file)
        paths.append(str(final / "images" / file))
    (out / f"{name}.txt").write_text("".join(path + "\n" for path in paths))


def build_classes(out, final, args):
    (out / "images").mkdir(parents=True)
    save_garments(out, final, "train", args.train, *load_split(args.source, "train"))
    save_garments(out, final, "valid", args.valid, *load_split(args.source, "t10k"))
    (out / "labels.txt").write_text("".join(class_name(kind) + "\n" for kind in range(len(NAMES))))
    (out / "classes.data").write_text(
        f"classes={len(NAMES)}\ntrain={final}/train.txt\nvalid={final}/valid.txt\n"
        f"labels={final}/labels.txt\nbackup=.\ntop=5\n")


def build(out, final, args):
    if args.classes:
        build_classes(out, final, args)
        return
    for folder in ("images", "labels"):
        (out / folder).mkdir(parents=True)
    make_split(out, final, "train", args.train, *load_split(args.source, "train"), args)
    make_split(out, final, "valid", args.valid, *load_split(args.source, "t10k"), args)
    (out / "demo.names").write_text("".join(name + "\n" for name in NAMES))
    (out / "demo.data").write_text(
        f"classes={len(NAMES)}\ntrain={final}/train.txt\nvalid={final}/valid.txt\n"
        f"names={final}/demo.names\n")


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


def parse_arguments():
    root = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=root / "out/demo/data", help="folder to make")
    parser.add_argument("--source", type=Path, default=SOURCE, help="folder of the IDX files")
    parser.add_argument("--train", type=positive, default=1600, help="training pictures")
    parser.add_argument("--valid", type=positive, default=200, help="held-back pictures")
    parser.add_argument("--size", type=positive, default=160, help="side of a picture, pixels")
    parser.add_argument("--seed", type=positive, default=1, help="same seed, same pictures")
    parser.add_argument("--classes", action="store_true", help="a set for a classifier")
    return parser.parse_args()


def is_made_by(mark, recipe):
    """A mark that cannot be read is as good as one of another recipe: the set is made again."""
    try:
        return json.loads(mark.read_text()) == recipe
    except (OSError, ValueError, RecursionError):
        return False


def main():
    args = parse_arguments()
    final = args.out.resolve()
    for part in REPLACED_BY_DARKNET:
        if part in str(final):
            die(f"the path {final} holds '{part}', which Darknet would replace when it looks for "
                "the labels: choose another folder with --out")
    recipe = {"version": RECIPE_VERSION, "folder": str(final), "train": args.train,
              "valid": args.valid, "size": args.size, "seed": args.seed, **({"classes": True} if args.classes else {})}
    mark = final / "recipe.json"  # written last: it says that the folder is complete, and ours
    if is_made_by(mark, recipe):
        print(f"{final}: complete already")
        return
    if final.exists() and not mark.exists() and any(final.iterdir()):
        die(f"{final} exists and was not made by this script: choose another folder with --out")

    partial = final.with_name(f"{final.name}.partial-{os.getpid()}")
    try:
        build(partial, final, args)
        (partial / mark.name).write_text(json.dumps(recipe) + "\n")
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    print(f"{final}: {args.train} training and {args.valid} held-back pictures")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
