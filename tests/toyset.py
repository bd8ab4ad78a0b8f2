"""A detection set of a few tiny generated images, and a small yolo cfg, for tests that train.

Only the standard library is used. Every image holds one bright rectangle; its class (0 or 1) is its
colour. The same seed gives the same files.
"""

import random
import re
import struct
import tempfile
import zlib
from pathlib import Path

# Darknet reads "raw" anywhere in an image's path as "labels", and a random name may hold it.
tempfile._RandomNameSequence.characters = "0123456789"

COLOURS = [(250, 60, 40), (40, 90, 250)]

# A scale's last layers, by the anchors that its head has.
SCALE = """
[convolutional]
size=1
stride=1
pad=1
filters=14
activation=linear

[yolo]
mask={mask}
anchors=12,12, 20,20, 6,6, 9,9
classes=2
num=4
jitter=.2
ignore_thresh=.7
truth_thresh=1
random={{random}}
"""

# Contains what a yolo net is made of: strides, 1x1, residual, two heads, route, upsample.
CFG = """
[net]
batch={batch}
subdivisions=2
width={size}
height={size}
channels=3
momentum=0.9
decay=0.0005
learning_rate=0.001
burn_in=10
max_batches={max_batches}
policy=constant
{net_keys}

[convolutional]
batch_normalize=1
filters=8
size=3
stride=2
pad=1
activation=leaky

[convolutional]
batch_normalize=1
filters=4
size=1
stride=1
pad=1
activation=leaky

[convolutional]
batch_normalize=1
filters=8
size=3
stride=1
pad=1
activation=leaky

[shortcut]
from=-3
activation=linear

[maxpool]
size=2
stride=2

[convolutional]
batch_normalize=1
filters=16
size=3
stride=2
pad=1
activation=leaky
""" + SCALE.format(mask="0,1") + """
[route]
layers=-3

[upsample]
stride=2

[route]
layers=-1, 4
""" + SCALE.format(mask="2,3")


def write_png(path, width, height, pixels):
    """pixels: height*width*3 bytes, RGB rows from the top."""

    def chunk(kind, body):
        data = kind + body
        return struct.pack(">I", len(body)) + data + struct.pack(">I", zlib.crc32(data))

    rows = b"".join(b"\0" + pixels[y * width * 3:(y + 1) * width * 3] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    Path(path).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
                           + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_image(path, rng, size):
    """One image and its label file beside it."""
    kind = rng.randrange(len(COLOURS))
    w, h = rng.randint(size // 4, size // 2), rng.randint(size // 4, size // 2)
    x, y = rng.randint(0, size - w), rng.randint(0, size - h)
    pixels = bytearray(rng.randrange(60) for _ in range(size * size * 3))
    for row in range(y, y + h):
        start = (row * size + x) * 3
        pixels[start:start + w * 3] = bytes(COLOURS[kind]) * w
    write_png(path, size, size, bytes(pixels))
    label = (kind, (x + w / 2) / size, (y + h / 2) / size, w / size, h / size)
    path.with_suffix(".txt").write_text("%d %.6f %.6f %.6f %.6f\n" % label)


def make(folder, images=8, size=32, batch=4, max_batches=3, net_keys="", random_size=0, seed=1):
    """Writes toy.data, toy.cfg, toy.names, train.txt, the images and an empty backup folder. Mixed precision is
    fp16, which has the most to go wrong, on every CPU, unless net_keys has another amp_dtype."""
    folder = Path(folder)
    if "mixed_precision=1" in net_keys and "amp_dtype" not in net_keys:
        net_keys = net_keys.rstrip("\n") + "\namp_dtype=fp16"
    (folder / "backup").mkdir(parents=True)
    rng = random.Random(seed)
    paths = [folder / ("image%03d.png" % i) for i in range(images)]
    for path in paths:
        write_image(path, rng, size)
    (folder / "train.txt").write_text("".join("%s\n" % path for path in paths))
    (folder / "toy.names").write_text("red\nblue\n")
    (folder / "toy.data").write_text(
        "classes=2\ntrain=%s\nvalid=%s\nnames=%s\nbackup=%s\n"
        % (folder / "train.txt", folder / "train.txt", folder / "toy.names", folder / "backup"))
    (folder / "toy.cfg").write_text(CFG.format(
        size=size, batch=batch, max_batches=max_batches, net_keys=net_keys, random=random_size))
    return folder


def read_weights(path):
    """The floats of a .weights file, after its header of three ints and the 64-bit image count."""
    body = Path(path).read_bytes()[20:]
    return struct.unpack("<%df" % (len(body) // 4), body)


def check_notes(said, *notes):
    """These notes on a cfg, each once in a line with its own prefix, and no empty line behind one."""
    lines = said.splitlines() + ["the end"]
    found = [i for i, line in enumerate(lines) if re.match(r"darknet-amp: \S+:\d+: ", line)]
    assert [lines[i] for i in found] == ["darknet-amp: " + note for note in notes], (notes, said)
    assert all(lines[i + 1] for i in found), said
    for note in notes:
        assert said.count(note) == 1, (note, said)


def on_the_cpu(said):
    """What a GPU build says when it finds no GPU and goes on without; None where it said nothing of it."""
    return next((line for line in said.splitlines() if "no usable GPU" in line), None)


def not_recorded(said):
    """What a GPU build says when it starts every operation by itself; None where it said nothing of it."""
    return next((line for line in said.splitlines() if "cannot be recorded" in line), None)
