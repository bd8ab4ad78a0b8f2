"""Training on JPEGs, with a seed: how many threads load, whether decoded images are kept, and where the run was
stopped, does not change a byte of the weights; the summary says how long training waited for images.

usage: loading.py DARKNET
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]
import fuzz
import toyset

DARKNET = sys.argv[1]
KEYS = "mixed_precision=1\nseed=7\namp_log=log.json\n"
SMALL = {"plain", "grey", "progressive", "turned", "full_chroma"}  # of the corpus of tests/fuzz/jpeg.c


def make_set(folder, keys, **settings):
    """The toy set, whose images are JPEGs of several kinds; one stays a PNG, one is a JPEG with another name."""
    toyset.make(folder, net_keys=KEYS + keys, **settings)
    inputs = fuzz.read_inputs(ROOT / "tests/fuzz/corpus/jpeg.txt")
    jpegs = [inputs[name][1:] for name in sorted(SMALL)]
    pngs = sorted(folder.glob("*.png"))
    for i, png in enumerate(pngs[1:]):
        png.write_bytes(jpegs[i % len(jpegs)])
        if i:
            png.rename(png.with_suffix(".jpg"))
    images = sorted([*folder.glob("*.png"), *folder.glob("*.jpg")])
    (folder / "train.txt").write_text("".join(f"{image}\n" for image in images))
    return folder


def run(folder, *weights):
    result = subprocess.run([DARKNET, "detector", "train", "toy.data", "toy.cfg", *weights], cwd=folder,
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stderr


def train(folder, keys="", **settings):
    """Weights, sidecar and what was said."""
    said = run(make_set(folder, keys, **settings))
    saved = folder / "backup/toy_final.weights"
    return saved.read_bytes(), said


def check_threads_and_cache(root):
    """A batch of 64 images, so that 64 threads find work."""
    settings = {"max_batches": 3, "batch": 64}
    expected, said = train(root / "default", **settings)
    assert re.search(r"\nmixed precision:   forward +\d+\.\d s +\d+\.\d %\n", said), said  # a wait too short has no line
    for name, keys in {"one": "amp_loader_threads=1", "three": "amp_loader_threads=3",
                       "many": "amp_loader_threads=64", "cache": "amp_image_cache=1",
                       "all": "amp_image_cache=100\namp_loader_threads=2"}.items():
        assert train(root / name, keys, **settings)[0] == expected, keys
    other, _ = train(root / "darknet", "amp_loader=darknet", **settings)
    assert other != expected, "Darknet's pixels differ in their last bits, so amp_loader=fast was not used"


def check_resized(root):
    """A batch is loaded again at another size after the tenth iteration."""
    settings = {"random_size": 1, "max_batches": 12, "images": 12, "batch": 2}
    expected, _ = train(root / "random", **settings)
    for name, keys in {"cache": "amp_image_cache=100", "one": "amp_loader_threads=1",
                       "both": "amp_image_cache=1\namp_loader_threads=64"}.items():
        assert train(root / f"random_{name}", keys, **settings)[0] == expected, keys


def check_resumed(root):
    expected, _ = train(root / "whole", "amp_image_cache=1", max_batches=6)
    folder = make_set(root / "parts", "amp_image_cache=1", max_batches=3)
    run(folder)
    cfg = folder / "toy.cfg"
    cfg.write_text(cfg.read_text().replace("max_batches=3", "max_batches=6"))
    run(folder, "backup/toy_final.weights")
    assert (folder / "backup/toy_final.weights").read_bytes() == expected


def check_log(root):
    for line in (root / "default/log.json").read_text().splitlines():
        row = json.loads(line)
        if "summary" in row:
            continue
        assert 0 <= row["loading_seconds"] <= row["seconds"], row


def check_damaged(root):
    """Whose header is right and whose rest is not: named, and nothing is saved."""
    folder = make_set(root / "damaged", "", images=3)
    bad = folder / "image002.jpg"
    data = bytearray(bad.read_bytes())
    tables = data.index(b"\xff\xc4")  # Huffman tables: lengths that cannot be
    data[tables + 5:tables + 21] = b"\xff" * 16
    for image in folder.glob("image*.*"):
        if image.suffix != ".txt":
            image.write_bytes(bytes(data))
    result = subprocess.run([DARKNET, "detector", "train", "toy.data", "toy.cfg"], cwd=folder,
                            capture_output=True, text=True)
    assert result.returncode == 1 and "cannot be read or decoded" in result.stderr, result.stderr
    assert re.search(r'image "\S+image00\d\.\w+"', result.stderr), result.stderr
    assert not list((folder / "backup").iterdir())


def check_head_only(root):
    """A JPEG of which only the head is there is named before training."""
    folder = make_set(root / "head", "", images=3)
    data = (folder / "image002.jpg").read_bytes()
    for image in folder.glob("image*.*"):
        if image.suffix != ".txt":
            image.write_bytes(data[:data.index(b"\xff\xda")])
    result = subprocess.run([DARKNET, "detector", "train", "toy.data", "toy.cfg"], cwd=folder,
                            capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.count("ends before its pixels begin") == 3, result.stderr
    assert "is trained on" not in result.stderr, result.stderr


with tempfile.TemporaryDirectory() as folder:
    check_threads_and_cache(Path(folder))
    check_resized(Path(folder))
    check_resumed(Path(folder))
    check_log(Path(folder))
    check_damaged(Path(folder))
    check_head_only(Path(folder))
