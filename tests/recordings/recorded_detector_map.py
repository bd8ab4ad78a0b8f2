"""`darknet detector map` against AlexeyAB's: the same net, weights and pictures, from the files to mAP.

usage: recorded_detector_map.py ROOT DARKNET

In FP32 mAP@0.5 and mAP@0.75 are within .1 point of the recorded ones, and each class has as many detections, give or
take two, whose score or overlap lies at a threshold. The pictures are of the data set beside the recordings.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from recorded import SKIPPED, Cases, find, read_floats

ROOT, DARKNET = sys.argv[1:]
KEYS = "[net]\nmixed_precision=1\namp_dialect=fork\namp_dtype=fp32\n"
NAMES = ["RBC", "WBC", "Platelets"]
WIDTH = 5 + len(NAMES)  # of a recorded row: x y w h objectness, classes
REFUSED = re.compile(r"not yet supported|not yet trained")
ENDINGS = {".5": "", ".75": "-iou_thresh .75"}  # arguments of the recorded runs


def find_pictures(files, names):
    folder = files.parent.parent / "datasets" / "bccd" / "images"
    if not all((folder / name).is_file() for name in names):
        print(f"SKIPPED: the recorded pictures are not in {folder}")
        sys.exit(SKIPPED)
    return [folder / name for name in names]


def count_recorded(variant, dets):
    """Per class, of all pictures."""
    counts = [0] * len(NAMES)
    for picture in variant["pictures"]:
        part = picture["lists"]["after"]
        for row in range(part["offset"], part["offset"] + part["boxes"]):
            for k in range(len(NAMES)):
                counts[k] += dets[row * WIDTH + 5 + k] > 0
    return counts


def recorded_precision(record, variant, args):
    """mAP in percent, or None where no such run on all pictures was recorded."""
    for run in record["runs"]:
        if (run["variant"], run["args"].strip(), len(run["pictures"])) == (variant["variant"], args,
                                                                          len(variant["pictures"])):
            return 100 * float(re.search(r"mAP@\S+ = ([\d.]+)", run["printed"][-1])[1])
    return None


def measure(folder, variant, weights, pictures):
    """What the program printed, or None where it does not take such a cfg yet."""
    (folder / "net.cfg").write_text(variant["cfg"].replace("[net]\n", KEYS, 1))
    (folder / "valid.txt").write_text("".join(f"{picture}\n" for picture in pictures))
    (folder / "names.txt").write_text("".join(f"{name}\n" for name in NAMES))
    (folder / "set.data").write_text(f"classes={len(NAMES)}\nvalid=valid.txt\nnames=names.txt\n")
    done = subprocess.run([DARKNET, "detector", "map", "set.data", "net.cfg", weights], cwd=folder,
                          capture_output=True, text=True)
    if done.returncode and REFUSED.search(done.stderr):
        print(f"SKIPPED: {variant['variant']}: {done.stderr.strip().splitlines()[-1]}")
        return None
    assert done.returncode == 0, done.stderr
    return done.stdout


def compare(record, variant, dets, said):
    for iou, args in ENDINGS.items():
        expected = recorded_precision(record, variant, args)
        found = float(re.search(r"^mAP@0%s +([\d.]+) %%   area" % re.escape(iou), said, re.MULTILINE)[1])
        print(f"    mAP@{iou}: {found} %, recorded {expected:.2f} %" if expected else f"    mAP@{iou}: not recorded")
        if expected and not abs(found - expected) <= .1:
            return f"mAP@{iou} is {found} %, recorded {expected:.2f} %"
    for name, expected in zip(NAMES, count_recorded(variant, dets)):
        found = int(re.search(r"^%s +\d+ +(\d+) " % name, said, re.MULTILINE)[1])
        if abs(found - expected) > 2:
            return f"{found} detections of {name}, recorded {expected}"
    return None


def main():
    path, cases = find(ROOT, "o6_map/o6.json"), Cases()
    record, dets = json.loads(path.read_text()), read_floats(path.with_name("dets.bin"))
    for variant in record["variants"]:
        pictures = find_pictures(path.parent, [picture["name"] for picture in variant["pictures"]])
        with tempfile.TemporaryDirectory() as folder:
            said = measure(Path(folder), variant, path.with_name("o6.weights"), pictures)
        if said:
            cases.add(variant["variant"], compare(record, variant, dets, said))
    cases.end()


main()
