"""A trained detector, exported: mAP through ONNX Runtime is that of `detector map`, with the file's own suppression; the
examples of docs/export.md find its boxes.

usage: trained.py ROOT DARKNET toy|sets     toy: a net trained for a moment; sets: the demo's net, and BCCD's where that
lies in a folder shared/ above the project
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nets

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
import toyset
from bench_lib import make_cfg
from training import find_set, label_path, read_lines, read_set

TOLERANCE = .001


def darknet(folder, *words):
    done = subprocess.run([DARKNET, *map(str, words)], cwd=folder, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


# ---- pictures, as Darknet places them ----

def resized(picture, width, height, numpy):
    """Darknet's resize_image: (channels, height, width), one side after the other."""
    for axis, wanted in ((2, width), (1, height)):
        have = picture.shape[axis]
        at = numpy.arange(wanted, dtype="f4") * numpy.float32((have - 1) / max(1, wanted - 1))
        low = numpy.minimum(at.astype(int), have - 1)
        share = (at - low).astype("f4").reshape([-1 if k == axis else 1 for k in range(3)])
        high = numpy.minimum(low + 1, have - 1)
        picture = (1 - share) * picture.take(low, axis) + share * picture.take(high, axis)
    return picture


def letterboxed(path, width, height, numpy):
    """The network's input, and how boxes get out of it: factor and offset."""
    from PIL import Image
    picture = numpy.asarray(Image.open(path).convert("RGB"), "f4").transpose(2, 0, 1) / 255
    _, h, w = picture.shape
    wide = width / w < height / h
    new_w, new_h = (width, h * width // w) if wide else (w * height // h, height)
    image = numpy.full((3, height, width), .5, "f4")
    left, top = (width - new_w) // 2, (height - new_h) // 2
    image[:, top:top + new_h, left:left + new_w] = resized(picture, new_w, new_h, numpy)
    part = numpy.array([new_w / width, new_h / height])
    return image, part


# ---- mean average precision, by the VOC rule ----

def overlap(a, b):
    sides = [min(a[k] + a[k + 2] / 2, b[k] + b[k + 2] / 2) - max(a[k] - a[k + 2] / 2, b[k] - b[k + 2] / 2) for k in (0, 1)]
    if min(sides) <= 0:
        return 0
    return sides[0] * sides[1] / (a[2] * a[3] + b[2] * b[3] - sides[0] * sides[1])


def average_precision(found, truths):
    """found: [(score, image, box)]; truths: {image: [box]}, of one class."""
    taken, hits, curve = set(), 0, []
    count = sum(map(len, truths.values()))
    for rank, (score, image, box) in enumerate(sorted(found, key=lambda row: -row[0]), 1):
        overlaps = [overlap(box, truth) for truth in truths.get(image, [])]
        best = max(range(len(overlaps)), key=overlaps.__getitem__, default=None)
        if best is not None and overlaps[best] >= .5 and (image, best) not in taken:
            taken.add((image, best))
            hits += 1
        curve.append((hits / count, hits / rank))
    area, best, after = 0, 0, curve[-1][0] if curve else 0
    for recall, precision in reversed([(0, 0), *curve]):
        area += (after - recall) * best
        best, after = max(best, precision), recall
    return area


def precision_of(model, images, classes, modules):
    numpy, onnxruntime = modules
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    height, width = session.get_inputs()[0].shape[2:]
    found, truths = {k: [] for k in range(classes)}, {k: {} for k in range(classes)}
    for number, path in enumerate(images):
        image, part = letterboxed(path, width, height, numpy)
        boxes, scores, selected = session.run(None, {"images": image[None]})
        boxes[..., :2] = (boxes[..., :2] - (1 - part) / 2) / part
        boxes[..., 2:] /= part
        for _, kind, box in selected:
            found[kind].append((scores[0, box, kind], number, boxes[0, box].tolist()))
        for line in Path(label_path(path)).read_text().splitlines():
            kind, *box = line.split()
            truths[int(kind)].setdefault(number, []).append(list(map(float, box)))
    return sum(average_precision(found[k], truths[k]) for k in range(classes)) / classes


def check_precision(folder, data, cfg, weights, images, classes, modules):
    darknet(folder, "detector", "map", data, cfg, weights, "--json", "map.json")
    wanted = json.loads((folder / "map.json").read_text())["map50"]
    for words, allowed in (((), TOLERANCE), (("--half",), 5 * TOLERANCE)):
        done = nets.export(DARKNET, folder / cfg, folder / weights, folder / "map.onnx", "--nms", "--thresh", ".005",
                           "--iou", ".45", "--image", images[0], *words)
        assert done.returncode == 0, done
        found = precision_of(folder / "map.onnx", images, classes, modules)
        print(f"{cfg} {' '.join(words)}: mAP@0.5 {wanted:.5f} of detector map, {found - wanted:+.6f} through ONNX Runtime",
              flush=True)
        assert abs(found - wanted) <= allowed and wanted > .2, (found, wanted)


# ---- the examples of the page ----

def example(language):
    return re.search(rf"```{language}\n(.*?)```", (ROOT / "docs/export.md").read_text(), re.S)[1]


def lines_of(text):
    """[(name, score, centre x, y)] of what an example prints: NAME SCORE LEFT TOP RIGHT BOTTOM."""
    rows = re.findall(r"(?m)^(\w+) ([\d.]+) (-?[\d.]+) (-?[\d.]+) (-?[\d.]+) (-?[\d.]+)$", text)
    return [(row[0], float(row[1]), [float(number) for number in row[2:]]) for row in rows]


def check_example(said, truth):
    """The best box is the picture's only object."""
    rows = lines_of(said)
    assert rows, said
    name, score, (left, top, right, bottom) = max(rows, key=lambda row: row[1])
    found = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]
    assert name == truth[0] and overlap(found, truth[1]) > .6, (said, truth)


def check_examples(folder, size, image):
    words = (folder / "toy.cfg", folder / "backup/toy_final.weights", folder / "net.onnx")
    done = nets.export(DARKNET, *words, "--names", folder / "toy.names", "--image", image)
    assert done.returncode == 0, done
    shutil.copy(image, folder / "dog.jpg")  # by its bytes a PNG, which readers go by
    kind, *box = image.with_suffix(".txt").read_text().split()
    truth = ["red", "blue"][int(kind)], [float(number) * size for number in box]
    (folder / "find.py").write_text(example("python"))
    said = subprocess.run([sys.executable, "find.py"], cwd=folder, capture_output=True, text=True)
    check_example(said.stdout + said.stderr, truth)
    check_cpp_example(folder, truth)


def check_cpp_example(folder, truth):
    compiler = shutil.which("c++")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "opencv4"], capture_output=True, text=True).stdout.split()
    if not compiler or not flags:
        print("SKIPPED docs/export.md's example in C++: no compiler, or no OpenCV 4")
        return
    (folder / "find.cpp").write_text(example("cpp"))
    subprocess.run([compiler, "-o", "find", "find.cpp", *flags], cwd=folder, check=True)
    said = subprocess.run(["./find"], cwd=folder, capture_output=True, text=True)
    check_example(said.stdout + said.stderr, truth)


# ---- the sets ----

def check_toy(folder, modules):
    size = 160
    toyset.make(folder, images=32, size=size)
    text = (ROOT / "cfg/mixed-detector.cfg").read_text()
    text = re.sub(r"(?m)^max_batches=.*", "max_batches=300\nseed=1", re.sub(r"(?m)^batch=.*", "batch=8", text))
    text = re.sub(r"(?m)^steps=.*", "steps=200,250", re.sub(r"(?m)^burn_in=.*", "burn_in=10", text))
    (folder / "toy.cfg").write_text(text)
    darknet(folder, "detector", "train", "toy.data", "toy.cfg")
    images = [Path(line) for line in (folder / "train.txt").read_text().split()]
    (folder / "fp32.cfg").write_text(text.replace("mixed_precision=1", "mixed_precision=0"))
    check_precision(folder, "toy.data", "fp32.cfg", "backup/toy_final.weights", images, 2, modules)
    check_examples(folder, size, images[0])


def check_set(folder, name, data, iterations, modules):
    found = find_set(data)
    for kind, paths in read_set(found, data).items():
        (folder / f"{kind}.txt").write_text("".join(f"{path}\n" for path in paths))
    names = read_lines(found[2])
    (folder / "names.txt").write_text("\n".join(names) + "\n")
    (folder / "set.data").write_text(f"classes={len(names)}\ntrain=train.txt\nvalid=valid.txt\nnames=names.txt\nbackup=.\n")
    text = (ROOT / f"cfg/{name}.cfg").read_text()
    for word, keys in ("net", "seed=1\nmixed_precision=1\n"), ("fp32", "seed=1\n"):
        (folder / f"{word}.cfg").write_text(make_cfg(text, 16, keys, max_batches=iterations))
    darknet(folder, "detector", "train", "set.data", "net.cfg")
    images = [Path(path) for path in (folder / "valid.txt").read_text().splitlines()]
    check_precision(folder, "set.data", "fp32.cfg", "net_final.weights", images, len(names), modules)


def make_demo_set(folder):
    """Its pictures come from a package, and a library draws them."""
    made = subprocess.run([ROOT / "scripts/make-demo-data.py", "--out", folder, "--train", "800", "--valid", "150"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if made.returncode:
        print("SKIPPED the demo's set, which cannot be made:", " ".join(made.stdout[-300:].split()))
    return made.returncode == 0


def check_sets(folder, modules):
    (folder / "demo").mkdir()
    (folder / "bccd").mkdir()
    if make_demo_set(folder / "demo/data"):
        check_set(folder / "demo", "demo", folder / "demo/data", 400, modules)
    bccd = next((path for top in ROOT.parents if (path := top / "shared/datasets/bccd").is_dir()), None)
    if bccd:
        check_set(folder / "bccd", "bccd", bccd, 400, modules)
    else:
        print("SKIPPED BCCD: no folder shared/datasets/bccd above the project")


def main():
    if missing := nets.missing_packages():
        print(f"SKIPPED a trained network exported as ONNX: Python has no {', '.join(missing)}")
        return
    import numpy
    import onnxruntime
    with tempfile.TemporaryDirectory() as name:
        check = check_toy if sys.argv[3] == "toy" else check_sets
        check(Path(os.path.realpath(name)) / "set" if check is check_toy else Path(name), (numpy, onnxruntime))


main()
