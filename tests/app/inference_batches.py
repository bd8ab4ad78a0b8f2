"""`detector valid` and `map` with mixed_precision=1 run several images at a time: their results are those of one image
at a time, to the byte, and the files of `valid` those of Darknet's own code.

usage: inference_batches.py ROOT DARKNET
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import toyset

IMAGES = 11  # three passes, the last with less than its batch
WEIGHTS = "backup/toy_final.weights"
NUMBER = re.compile(r"-?\d+\.\d+")
TOLERANCE = .02  # pixels, or of a score: FP32 by two programs


def run(folder, *words, status=0, **options):
    done = subprocess.run([DARKNET, "detector", *words], cwd=folder, capture_output=True, text=True, **options)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return done.stderr


def validate(folder, cfg, data="toy.data", weights=WEIGHTS):
    """{file: text} of the results."""
    for path in (folder / "results").iterdir():
        path.unlink()
    told = run(folder, "valid", data, cfg, weights)
    return {path.name: path.read_text() for path in (folder / "results").iterdir()}, told


def data_file(folder, name, images, **keys):
    (folder / f"{name}.txt").write_text("".join(f"{image}\n" for image in images))
    text = re.sub(r"(?m)^(valid)=.*", f"valid={folder}/{name}.txt", (folder / "toy.data").read_text())
    for key, value in keys.items():
        text = re.sub(rf"(?m)^{key}=.*\n", "", text) + f"{key}={value}\n"
    (folder / f"{name}.data").write_text(text)
    return f"{name}.data"


def cfg_file(folder, name, text, keys):
    (folder / f"{name}.cfg").write_text(text.replace("[net]", f"[net]\n{keys}", 1))
    return f"{name}.cfg"


def images_in_a_pass(told):
    return [int(count) for count in re.findall(r"activation memory for (\d+) images? per pass", told)]


def map_of(folder, cfg, data):
    told = run(folder, "map", data, cfg, WEIGHTS, "--json", "map.json")
    found = json.loads((folder / "map.json").read_text())
    return {key: found[key] for key in found if key != "settings"}, told


def check_one_by_one(folder, text, images):
    for dtype in "fp32", "fp16", "bf16":
        cfg = cfg_file(folder, dtype, text, f"mixed_precision=1\namp_dtype={dtype}")
        found, told = validate(folder, cfg)
        assert images_in_a_pass(told) == [4], told
        parts = []
        for image in images:
            part, told = validate(folder, cfg, data_file(folder, "one", [image]))
            assert images_in_a_pass(told) == [1], told
            parts.append(part)
        assert found == {name: "".join(part[name] for part in parts) for name in found}, dtype
        assert sum(map(len, found.values())) > 2000, found


def check_map(folder, text, images):
    """Hits and false alarms of all images are those of the images one by one."""
    cfg = cfg_file(folder, "fp16", text, "mixed_precision=1\namp_dtype=fp16")
    whole, told = map_of(folder, cfg, "toy.data")
    assert images_in_a_pass(told) == [4], told
    ones = [map_of(folder, cfg, data_file(folder, "one", [image]))[0] for image in images]
    for kind in 0, 1:
        assert whole["classes"][kind]["detections"] == sum(one["classes"][kind]["detections"] for one in ones)
    assert whole["counts"]["tp"] == sum(one["counts"]["tp"] for one in ones)
    assert whole["counts"]["fp"] == sum(one["counts"]["fp"] for one in ones)


def check_files(folder, text, data):
    """Line by line as Darknet's own, which a cfg without the key runs; numbers as two programs' FP32 are."""
    wanted, _ = validate(folder, cfg_file(folder, "stock", text, ""), data)
    found, told = validate(folder, cfg_file(folder, "own", text, "mixed_precision=1\namp_dtype=fp32"), data)
    assert images_in_a_pass(told) == [4] and "Total Detection Time" in told, told
    assert found.keys() == wanted.keys()
    compared = 0
    for name in found:
        assert NUMBER.sub("#", found[name]) == NUMBER.sub("#", wanted[name]), name
        pairs = list(zip(map(float, NUMBER.findall(found[name])), map(float, NUMBER.findall(wanted[name]))))
        worst = max((abs(a - b) for a, b in pairs), default=0)
        assert worst <= TOLERANCE, (name, worst)
        compared += len(pairs)
    assert compared > 100, compared


def check_formats(folder, text, images):
    check_files(folder, text, "toy.data")
    check_files(folder, text, data_file(folder, "coco", images, eval="coco"))
    assert isinstance(json.loads((folder / "results/coco_results.json").read_text()), list)
    (folder / "many.names").write_text("".join(f"kind{k}\n" for k in range(200)))
    many = text.replace("classes=2", "classes=200").replace("filters=14", "filters=410")
    many = re.sub(r"(?m)^max_batches=.*", "max_batches=2", many)
    cfg_file(folder, "many", many, "")
    data = data_file(folder, "imagenet", images, eval="imagenet", names=folder / "many.names", classes=200)
    run(folder, "train", data, "many.cfg")
    stock, own = (validate(folder, cfg_file(folder, "many", many, keys), data, "backup/many_final.weights")[0]
                  for keys in ("", "mixed_precision=1\namp_dtype=fp32"))
    # Boxes of nearly the same score suppress each other, so numbers are not compared: each line is an image and a class.
    stock, own = ([tuple(map(int, line.split()[:2])) for line in found["imagenet-detection.txt"].splitlines()]
                  for found in (stock, own))
    assert len(stock) > 1000 and abs(len(own) - len(stock)) < .01 * len(stock), (len(own), len(stock))
    assert {image for image, _ in own} == set(range(1, IMAGES + 1)) and own == sorted(own, key=lambda line: line[0])
    assert {kind for _, kind in own} == {kind for _, kind in stock}


def check_batch(folder, text, images):
    """As even as the images can be shared out."""
    cfg = cfg_file(folder, "fp16", text, "mixed_precision=1\namp_dtype=fp16")
    for count, wanted in (2, 2), (5, 3), (6, 3), (8, 4):
        assert images_in_a_pass(validate(folder, cfg, data_file(folder, "some", images[:count]))[1]) == [wanted], count


def check_faults(folder, text, images):
    cfg = cfg_file(folder, "fp16", text, "mixed_precision=1\namp_dtype=fp16")
    bad = folder / "bad.png"
    bad.write_bytes(images[0].read_bytes()[:60])
    told = run(folder, "valid", data_file(folder, "bad", [*images[:3], bad]), cfg, WEIGHTS, status=1)
    assert "bad.png: cannot be decoded as an image" in told, told

    # Copies of the cfg in memory count as files, too.
    most = (folder / cfg).stat().st_size + 100
    assert max(map(len, validate(folder, cfg)[0].values())) > most
    told = run(folder, "valid", "toy.data", cfg, WEIGHTS, status=1,
               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
    assert re.search(r"error: results/comp4_det_test_\S+: not written in full: File too large", told), told


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set", images=IMAGES, max_batches=60, net_keys="seed=1")
        (folder / "results").mkdir()
        with open(folder / "toy.data", "a") as file:
            file.write("results=results\n")
        text = (folder / "toy.cfg").read_text()
        images = [Path(line) for line in (folder / "train.txt").read_text().split()]
        run(folder, "train", "toy.data", "toy.cfg")
        check_one_by_one(folder, text, images)
        check_map(folder, text, images)
        check_formats(folder, text, images)
        check_batch(folder, text, images)
        check_faults(folder, text, images)


main()
