"""Whole networks of yolov4-tiny's kind against OpenCV's DNN, which reads the same cfg and weights: what each head's
convolution gives, in FP32, for random weights and a random image.

usage: opencv_dnn.py OURS DNN

Tolerance: 1e-4 of a head's largest value. OpenCV adds 1e-6 to a variance where we add 1e-5; variances are 1 at least, so
that a layer's output changes by 5e-6 of itself. The rest is the order of FP32 sums.
"""

import os
import random
import struct
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path

OURS, DNN = sys.argv[1:]
SEED = int(os.environ.get("AMP_TEST_SEED", 1))
SIDE, WIDTH, CLASSES = 64, 4, 3
OUT = 3 * (5 + CLASSES)


class Net:
    """A cfg and its weights, layer by layer."""

    def __init__(self, rng, activation):
        self.rng, self.activation = rng, activation
        self.text = (f"[net]\nmixed_precision=1\namp_dialect=fork\namp_dtype=fp32\nbatch=1\nsubdivisions=1\nwidth={SIDE}\n"
                     f"height={SIDE}\nchannels=3\n")
        self.weights = array("f")
        self.channels, self.heads = [], []

    def before(self, k=-1):
        return 3 if not self.channels else self.channels[k]

    def add(self, name, channels, **keys):
        self.text += f"\n[{name}]\n" + "".join(f"{key}={value}\n" for key, value in keys.items())
        self.channels.append(channels)

    def conv(self, filters, size=3, stride=1, activation=None):
        normalized, rng, inputs = activation is None, self.rng, size * size * self.before()
        self.weights.extend(rng.uniform(-.5, .5) for _ in range(filters))
        if normalized:
            for low, high in ((.7, 1.5), (-.5, .5), (1, 3)):  # scales, rolling means and variances
                self.weights.extend(rng.uniform(low, high) for _ in range(filters))
        spread = (6 / inputs) ** .5
        self.weights.extend(rng.uniform(-spread, spread) for _ in range(filters * inputs))
        more = {"batch_normalize": 1} if normalized else {}
        self.add("convolutional", filters, filters=filters, size=size, stride=stride, pad=1,
                 activation=activation or self.activation, **more)

    def route(self, *layers, **keys):
        channels = sum(self.channels[k] for k in layers) // keys.get("groups", 1)
        self.add("route", channels, layers=",".join(map(str, layers)), **keys)

    def block(self, filters):
        """yolov4-tiny's: half of the channels go on, all come together."""
        self.conv(filters)
        self.route(-1, groups=2, group_id=1)
        self.conv(filters // 2)
        self.conv(filters // 2)
        self.route(-1, -2)
        self.conv(filters, size=1)
        last = len(self.channels) - 1
        self.route(-6, -1)
        self.add("maxpool", self.channels[-1], size=2, stride=2)
        return last

    def head(self, mask):
        self.conv(OUT, size=1, activation="linear")
        self.heads.append(len(self.channels) - 1)
        self.add("yolo", OUT, mask=mask, anchors="10,14, 23,27, 37,58, 81,82, 135,169, 344,319", classes=CLASSES, num=6,
                 scale_x_y=1.05, iou_loss="ciou", nms_kind="greedynms", beta_nms=.6)

    def up(self, back, filters, to):
        """From before the last head, to where a block ended."""
        self.route(-back)
        self.conv(filters, size=1)
        self.add("upsample", filters, stride=2)
        self.route(-1, to)
        self.conv(2 * filters)


def make(rng, heads, activation):
    net = Net(rng, activation)
    net.conv(WIDTH, stride=2)
    net.conv(2 * WIDTH, stride=2)
    ends = [net.block(2 * WIDTH * 2**k) for k in range(3)]
    net.conv(16 * WIDTH)
    net.conv(8 * WIDTH, size=1)
    net.conv(16 * WIDTH)
    net.head("3,4,5")
    net.up(4, 4 * WIDTH, ends[2])
    net.head("1,2,3")
    if heads == 3:
        net.up(3, 2 * WIDTH, ends[1])
        net.head("0,1,2")
    return net


def run(program, folder, net, output):
    done = subprocess.run([program, folder / "net.cfg", folder / "net.weights", folder / "image", folder / output,
                           *map(str, net.heads)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return array("f", (folder / output).read_bytes())


def check(heads, activation):
    rng = random.Random(SEED)
    net = make(rng, heads, activation)
    image = array("f", (rng.random() for _ in range(3 * SIDE * SIDE)))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "net.cfg").write_text(net.text)
        (folder / "net.weights").write_bytes(struct.pack("<iiiQ", 0, 2, 5, 0) + net.weights.tobytes())
        (folder / "image").write_bytes(image.tobytes())
        ours, its = run(OURS, folder, net, "ours"), run(DNN, folder, net, "its")
    assert len(ours) == len(its) > 0, (len(ours), len(its))
    first = 0
    for k, head in enumerate(net.heads):
        side = SIDE // 32 * 2**k
        n = OUT * side * side
        a, b = ours[first:first + n], its[first:first + n]
        size, off = max(map(abs, b)), max(abs(x - y) for x, y in zip(a, b))
        print(f"{heads} heads, {activation}: layer {head}: {off / size:.2g} of {size:.3g}")
        assert off <= 1e-4 * size, f"AMP_TEST_SEED={SEED}"
        first += n
    assert first == len(ours)


for case in (2, "leaky"), (3, "leaky"), (2, "mish"):
    check(*case)
