"""Drawn networks of all layer types that `amp export` takes: ONNX Runtime gives what Darknet gives, in FP32, for a batch
as for its images; with --half the file can be run. At the end every type and activation was there.

usage: random_nets.py DARKNET COUNT [OPENCV_DNN]     AMP_TEST_SEED chooses the nets; OPENCV_DNN is the program of
opencv_dnn.cc
"""

import contextlib
import functools
import io
import multiprocessing
import os
import random
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import nets

SCRIPT = str(Path(__file__).resolve().parents[2] / "scripts/export")
ACTIVATIONS = ("logistic", "loggy", "relu", "elu", "relie", "plse", "hardtan", "lhtan", "linear", "ramp", "leaky", "tanh",
               "stair", "selu")
FORK_ACTIVATIONS = (*ACTIVATIONS, "mish", "swish")
LARGEST = 20000  # values of a layer
# What Darknet would compute out of bounds is drawn anew.
# OpenCV 4.6: activations hardtan, lhtan and plse; [local]; a head that has one box; what --nms adds.
OPENCV_LACKS = {"Clip", "MatMul", "Mul", "NonMaxSuppression"}
# Of these another net is drawn.
REFUSED = re.compile(r"needs a workspace of|Darknet's own outputs are not finite")


class Drawn:
    """A cfg that grows; the shapes of its layers' outputs, 0 wide: no image."""

    def __init__(self, rng):
        self.rng, self.fork = rng, rng.random() < .4
        width, height = (2 * rng.randint(6, 20) for _ in "wh")
        self.square = rng.random() < .3
        self.now = (width, width if self.square else height, rng.choice((1, 3, 4)))
        rules = "mixed_precision=1\namp_dialect=fork\n" if self.fork else ""
        self.lines = [f"[net]\nbatch=1\nwidth={self.now[0]}\nheight={self.now[1]}\nchannels={self.now[2]}\n{rules}"]
        self.shapes = []

    def add(self, kind, shape, **keys):
        self.lines.append(f"[{kind}]\n" + "".join(f"{key}={value}\n" for key, value in keys.items()))
        self.shapes.append(shape)
        self.now = shape

    def activation(self, normalized=False):
        """Mish and swish are trained behind batch-norm only."""
        return self.rng.choice(FORK_ACTIVATIONS if self.fork and normalized else ACTIVATIONS)

    def flag(self):
        return self.rng.randint(0, 1)

    # ---- one function a kind; None: does not fit here ----

    def convolutional(self):
        (w, h, c), rng = self.now, self.rng
        groups = rng.choice([g for g in (1, 1, 2, 3, 4) if c % g == 0])
        size, stride = rng.choice((1, 1, 2, 3, 3, 5)), rng.choice((1, 1, 2))
        pads = rng.choice(({"pad": 1}, {"padding": rng.randint(0, 2)}))
        pad = size // 2 if "pad" in pads else pads["padding"]
        w, h = ((x + 2 * pad - size) // stride + 1 for x in (w, h))
        filters = groups * rng.randint(1, 24 // groups)
        if min(w, h) > 0 and w * h * filters <= LARGEST:
            normalized = self.flag()
            self.add("convolutional", (w, h, filters), filters=filters, size=size, stride=stride, groups=groups, **pads,
                     batch_normalize=normalized, activation=self.activation(normalized))

    def deconvolutional(self):
        (w, h, c), rng = self.now, self.rng
        size, stride, filters = rng.randint(1, 4), rng.randint(1, 2), rng.randint(1, 8)
        padding = rng.randint(0, (size - 1) // 2)
        w, h = (stride * (x - 1) + size - 2 * padding for x in (w, h))
        if not self.fork and min(w, h) > 0 and w * h * filters <= LARGEST:
            self.add("deconvolutional", (w, h, filters), filters=filters, size=size, stride=stride, padding=padding,
                     batch_normalize=self.flag(), activation=self.activation())

    def local(self):
        (w, h, c), rng = self.now, self.rng
        size, stride, filters = rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 8)
        pad = size == 3 and self.flag()
        w, h = (((x - 1) if pad else (x - size)) // stride + 1 for x in (w, h))
        if min(w, h) > 0 and w * h * filters * size * size * c <= 20 * LARGEST and w * h * filters <= LARGEST:
            self.add("local", (w, h, filters), filters=filters, size=size, stride=stride, pad=int(pad),
                     activation=self.activation())

    def maxpool(self):
        (w, h, c), rng = self.now, self.rng
        size, stride = rng.randint(1, 5), rng.randint(1, 3)
        padding = size - 1 if self.flag() else rng.randint(0, size - 1)
        w, h = ((x + padding - size) // stride + 1 for x in (w, h))
        if min(w, h) > 0:
            self.add("maxpool", (w, h, c), size=size, stride=stride, padding=padding)

    def avgpool(self):
        if self.rng.random() < .3:
            self.add("avgpool", (1, 1, self.now[2]))

    def route(self):
        alike = [i for i, shape in enumerate(self.shapes) if shape[:2] == self.now[:2]]
        if not alike:
            return
        chosen = self.rng.sample(alike, self.rng.randint(1, min(3, len(alike))))
        if self.rng.random() < .3:
            chosen = [i - len(self.shapes) for i in chosen]
        depths, keys = [self.shapes[i][2] for i in chosen], {}
        if self.fork and all(depth % 2 == 0 for depth in depths) and self.flag():
            depths, keys = [depth // 2 for depth in depths], {"groups": 2, "group_id": self.flag()}
        if self.now[0] * self.now[1] * sum(depths) <= LARGEST:
            self.add("route", (*self.now[:2], sum(depths)), layers=",".join(map(str, chosen)), **keys)

    def shortcut(self):
        w, h, c = self.now
        def fits(shape):
            ratios = [max(a, b) / min(a, b) for a, b in zip(shape[:2], (w, h))]
            both = (shape[0] - w) * (shape[1] - h) >= 0
            return min(shape) > 0 and both and ratios[0] == ratios[1] and ratios[0] == int(ratios[0])
        found = [i for i, shape in enumerate(self.shapes[:-1])
                 if (fits(shape) if not self.fork else shape == self.now)]
        if found:
            keys = {} if self.fork else {"alpha": self.rng.choice((1, .5)), "beta": self.rng.choice((1, 2))}
            self.add("shortcut", self.now, **{"from": self.rng.choice(found)}, activation=self.activation(), **keys)

    def upsample(self):
        w, h, c = self.now
        scale = {} if self.fork else {"scale": self.rng.choice((1, .5))}
        if 4 * w * h * c <= LARGEST and self.flag():
            self.add("upsample", (2 * w, 2 * h, c), stride=2, **scale)
        elif w % 2 == h % 2 == 0 and not self.fork:
            self.add("upsample", (w // 2, h // 2, c), stride=-2, **scale)

    def reorg(self):
        w, h, c = self.now
        if self.fork or c % 4:
            return
        if self.flag() and w % 2 == h % 2 == 0:
            self.add("reorg", (w // 2, h // 2, 4 * c), stride=2)
        elif w * h * c <= LARGEST:
            self.add("reorg", (2 * w, 2 * h, c // 4), stride=2, reverse=1)

    def flatten(self):
        if not self.fork:
            self.add("reorg", self.now, stride=1, flatten=1, reverse=self.flag())

    def dropout(self):
        self.add("dropout", self.now, probability=.5)

    def batchnorm(self):
        self.add("batchnorm", self.now)

    def activation_layer(self):
        self.add("activation", self.now, activation=self.activation())

    def normalization(self):
        if not self.fork and self.now[2] >= 3:
            self.add("normalization", self.now, size=self.rng.randint(1, self.now[2] - 1), alpha=.1, beta=.75, kappa=1)

    def l2norm(self):
        if not self.fork:
            self.add("l2norm", self.now)

    def crop(self):
        w, h, c = self.now
        if not self.shapes and w == h and not self.fork:
            self.add("crop", (w - 3, h - 3, c), crop_width=w - 3, crop_height=h - 3, noadjust=self.flag())

    def connected(self):
        outputs = self.rng.randint(4, 40)
        self.add("connected", (0, 0, outputs), output=outputs, activation=self.activation(),
                 batch_normalize=0 if self.fork else self.flag())

    # ---- ends ----

    def softmax(self):
        self.connected()
        for _ in range(self.rng.randint(0, 2)):
            self.connected()
        outputs = self.now[2]
        groups = self.rng.choice([g for g in (1, 1, 2, 3) if outputs % g == 0])
        self.add("softmax", self.now, groups=groups, temperature=self.rng.choice((1, 1.5)))
        if self.flag():
            self.add("cost", self.now, type="sse")

    def logistic(self):
        if not self.fork:
            self.add("logistic", self.now)

    def head_convolution(self, filters):
        self.add("convolutional", (*self.now[:2], filters), filters=filters, size=1, stride=1, activation="linear")

    def anchors(self, count, largest):
        return ",".join(f"{self.rng.uniform(.5, largest):.2f}" for _ in range(2 * count))

    def yolo(self):
        rng, classes, count = self.rng, self.rng.randint(1, 5), self.rng.randint(1, 6)
        anchors, heads = self.anchors(count, 60), self.rng.randint(1, 3)
        for k in range(heads):
            mask = sorted(rng.sample(range(count), rng.randint(1, count)))
            keys = {}
            if self.fork:
                keys = {"scale_x_y": rng.choice((1, 1.05, 2)), "new_coords": self.flag()}
            start = self.now
            self.head_convolution(len(mask) * (5 + classes))
            self.add("yolo", self.now, mask=",".join(map(str, mask)), anchors=anchors, classes=classes, num=count, **keys)
            if k + 1 < heads:
                self.add("route", start, layers=-3)
                self.convolutional()

    def region(self):
        classes, count, background = self.rng.randint(1, 5), self.rng.randint(1, 4), self.rng.random() < .3
        self.head_convolution(count * (5 + classes))
        self.add("region", self.now, anchors=self.anchors(count, 5), classes=classes, num=count, coords=4,
                 softmax=1 if background else self.flag(), **({"background": 1} if background else {}))

    def detection(self):
        side, classes, count = self.rng.randint(2, 4), self.rng.randint(1, 4), self.rng.randint(1, 3)
        outputs = side * side * (classes + 5 * count)
        self.add("connected", (0, 0, outputs), output=outputs, activation="linear")
        self.add("detection", self.now, classes=classes, coords=4, side=side, num=count, softmax=self.flag(),
                 sqrt=self.flag())

    def text(self):
        kinds = ("convolutional",) * 5 + ("deconvolutional", "local", "maxpool", "avgpool", "route", "route", "shortcut",
                                          "shortcut", "upsample", "reorg", "flatten", "dropout", "batchnorm",
                                          "activation_layer", "normalization", "l2norm")
        self.crop()
        while not self.shapes:
            self.convolutional()
        for _ in range(self.rng.randint(2, 9)):
            getattr(self, self.rng.choice(kinds))()
        end = self.rng.choice(("softmax", "yolo", "yolo", "region", "detection", "logistic", "connected", None))
        if end:
            getattr(self, end)()
        return "\n".join(self.lines)


def options_for(rng, text):
    if not re.search(r"\[(yolo|region|detection)\]", text):
        return []
    return rng.choice(([], ["--boxes"], ["--raw"], ["--nms", "--thresh", "0.1"]))


def check_batch(path, numpy, onnxruntime, rng):
    """A batch of three gives what each of its images gives."""
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = rng.random((3, *session.get_inputs()[0].shape[1:]), "f4")
    names = [output.name for output in session.get_outputs() if output.name != "selected"]
    together = session.run(names, {"images": images})
    for k in range(3):
        for name, whole, alone in zip(names, together, session.run(names, {"images": images[k:k + 1]})):
            assert whole.shape[0] == 3 and numpy.allclose(whole[k], alone[0], 1e-4, 1e-5, True), (name, k)


def check_opencv(program, path, modules, rng):
    """OpenCV gives what ONNX Runtime gives. Returns the node that it does not take, or None."""
    numpy, onnxruntime = modules
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    shape = [1, *session.get_inputs()[0].shape[1:]]
    names = [output.name for output in session.get_outputs() if output.name != "selected"]
    image, made = rng.random(shape, "f4"), path.with_suffix(".out")
    image.tofile(path.with_suffix(".in"))
    words = [*shape, *[1] * (4 - len(shape)), *names]
    done = subprocess.run([program, path, path.with_suffix(".in"), made, *map(str, words)], capture_output=True, text=True)
    if done.returncode == 2:
        node = re.search(r"Node \[(\w+)", done.stderr)
        return node[1] if node else done.stderr.strip()[-120:]
    wanted = numpy.concatenate([array.ravel() for array in session.run(names, {"images": image})])
    found = numpy.fromfile(made, "f4")
    assert done.returncode == 0 and found.shape == wanted.shape, done
    off = abs(found - wanted) / numpy.maximum(abs(wanted), numpy.sqrt((wanted.astype("f8")**2).mean()))
    assert off.max() < 1e-3, f"OpenCV's DNN: {off.max()}"
    return None


def export(darknet, *words):
    """What `amp export` starts, in this process: Python's packages take longer to load than a net of this size to write."""
    said, before = io.StringIO(), sys.argv
    sys.argv = [SCRIPT, "--darknet", darknet, *map(str, words)]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_path(SCRIPT, run_name="__main__")
    except SystemExit as end:
        return end.code, said.getvalue()
    finally:
        sys.argv = before


def check_net(darknet, opencv, seed):
    """(types and activations that the net has, the node that OpenCV does not take); None: another net is drawn."""
    with tempfile.TemporaryDirectory() as folder:
        return check_net_in(Path(folder), darknet, opencv, seed)


def check_net_in(folder, darknet, opencv, seed):
    import numpy
    import onnxruntime
    rng, node = random.Random(seed), None
    text = Drawn(rng).text()
    cfg, weights, made = (folder / name for name in ("net.cfg", "net.weights", "net.onnx"))
    cfg.write_text(text)
    numbers = numpy.random.default_rng(seed)
    try:
        nets.make_weights(nets.describe(darknet, cfg), weights, numbers)
        status, said = export(darknet, cfg, weights, made, *options_for(rng, text))
        assert status == 0 and "ONNX Runtime against " in said, (status, said)
        check_batch(made, numpy, onnxruntime, numbers)
        if opencv:
            node = check_opencv(opencv, made, (numpy, onnxruntime), numbers)
        status, said = export(darknet, cfg, weights, made, "--half")
        # Drawn nets may be too coarse for 16 bits: what counts is that the file is one that can be run.
        assert status in (0, 2), (status, said)
    except AssertionError as error:
        if REFUSED.search(str(error)):
            return None
        raise AssertionError(f"seed {seed}:\n{text}\n{error}") from None
    return set(re.findall(r"(?m)^(?:\[|activation=)(\w+)", text)), node


def main():
    darknet, count = sys.argv[1], int(sys.argv[2])
    if missing := nets.missing_packages():
        print(f"SKIPPED networks exported as ONNX: Python has no {', '.join(missing)}")
        return
    first, seen, nodes = int(os.environ.get("AMP_TEST_SEED", 1)), set(), []
    opencv = sys.argv[3] if len(sys.argv) > 3 else None
    if not opencv:
        print("SKIPPED OpenCV's DNN on exported networks: this build has no OpenCV")
    seed = 1000 * first
    with multiprocessing.get_context("fork").Pool() as pool:
        while len(nodes) < count:
            seeds = range(seed, seed + count - len(nodes))
            for found, node in filter(None, pool.imap(functools.partial(check_net, darknet, opencv), seeds)):
                seen |= found
                nodes.append(node)
            seed = seeds.stop
            assert seed < 1000 * first + 2 * count, "most drawn nets were refused"
    refused = {node for node in nodes if node}
    if opencv:
        print(f"OpenCV took {nodes.count(None)} of them, and not: {sorted(refused)}")
        assert refused <= OPENCV_LACKS and None in nodes, refused
    print(f"{count} nets from seed {1000 * first}: {', '.join(sorted(seen))}")


main()
