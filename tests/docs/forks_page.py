"""docs/forks.md: its commands do what they are there for, on a small cfg of AlexeyAB's; what it says is refused is what
the tables in the sources refuse.

usage: forks_page.py ROOT DARKNET
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import toyset

PAGE = (ROOT / "docs/forks.md").read_text()
KEYS = (ROOT / "plugin/core/read/key_table.c").read_text()
LAYERS = (ROOT / "plugin/core/read/dialect.c").read_text()
SEEN = slice(12, 20)  # of a weights file

# What a cfg of yolov4-tiny has that stock Darknet does not.
HEAD = "[yolo]\nscale_x_y=1.05\niou_loss=ciou\niou_normalizer=0.07\ncls_normalizer=1.0\nnms_kind=greedynms\nbeta_nms=0.6\n"
GROUP = "[route]\nlayers=-1\ngroups=2\ngroup_id=1\n"


def check_commands(folder):
    """Each with what the words in capitals stand for, in the page's order."""
    cfg = (folder / "toy.cfg").read_text().replace("[yolo]\n", HEAD)
    first_head = cfg.index("\n[convolutional]\nsize=1\nstride=1\npad=1\nfilters=14")
    cfg = cfg[:first_head] + "\n" + GROUP + cfg[first_head:]
    (folder / "toy.cfg").write_text(cfg)
    words = {"DATA": "toy.data", "CFG": "toy.cfg", "IMAGE": "image000.png", "PRETRAINED": "start.weights",
             "BACKUP/NAME_last.weights": "backup/toy_last.weights", "BACKUP/NAME_best.weights": "backup/toy_best.weights"}
    make_pretrained(folder)
    lines = re.search(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)[1].splitlines()
    said = []
    for line in lines:
        program, *given = line.split("  #")[0].split()
        assert program == "build/bin/darknet", line
        arguments = [words.get(word, word) for word in given]
        assert not [word for word in arguments if re.search("[A-Z]{3}", word)], line
        if "BACKUP/NAME_last.weights" in given:
            (folder / "toy.cfg").write_text(cfg.replace("max_batches=110", "max_batches=112"))
        done = subprocess.run([DARKNET, *arguments], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stdout[-2000:], done.stderr[-4000:])
        said.append(done.stdout + done.stderr)
    plan, train, go_on, measured, _ = said
    assert "rules: fork (line" in plan, plan
    assert "mAP at iteration 110" in train and "left out, without a meaning here: -dont_show" in train, train[-2000:]
    assert "mAP at iteration 112" in go_on and "mAP at iteration 110" not in go_on, go_on[-2000:]
    assert "mean average precision (mAP@0.50) = " in measured, measured


def make_pretrained(folder):
    """Weights that have seen no image."""
    cfg = (folder / "toy.cfg").read_text()
    (folder / "toy.cfg").write_text(cfg.replace("max_batches=110", "max_batches=2"))
    subprocess.run([DARKNET, "detector", "train", "toy.data", "toy.cfg"], cwd=folder, check=True, capture_output=True)
    trained = bytearray((folder / "backup/toy_final.weights").read_bytes())
    trained[SEEN] = bytes(8)
    (folder / "start.weights").write_bytes(trained)
    for path in (folder / "backup").iterdir():
        path.unlink()
    (folder / "toy.cfg").write_text(cfg)


def refused_keys():
    rows = re.split(r"^    (?=[A-Z]+\(|\{)", KEYS.partition("rows[] = {\n")[2], flags=re.M)
    return {re.search(r'"(\w+)"', row)[1] for row in rows if row.startswith("REFUSED(") or "AMP_KEY_REFUSED" in row}


def check_refused():
    """Layers, activations, and keys in all other rows."""
    rows = [line for line in PAGE.partition("\n## What is refused\n")[2].splitlines() if line.startswith("| ")]
    listed = re.search(r"activations\[\] = \{(.*?)\};", LAYERS, re.S)[1]
    wanted = {"layers": set(re.findall(r'^    \{"(\[\w+\])", "', LAYERS, re.M)),
              "activations": set(re.findall(r'"(\w+)"', listed)) - {"mish", "swish"}}
    named = {}
    for row in rows:
        kind, _, names = row.strip("| ").partition(" | ")
        named.setdefault(kind if kind in wanted else "keys", set()).update(re.findall(r"`(\[?\w+\]?)`", names))
    wanted["keys"] = refused_keys() | {"[yolo]"}
    assert all(len(found) > least for found, least in zip(wanted.values(), (5, 5, 50))), "the sources are read wrongly"
    for kind, names in wanted.items():
        assert named[kind] == names, (kind, sorted(named[kind] ^ names))


def main():
    check_refused()
    with tempfile.TemporaryDirectory() as scratch:
        check_commands(toyset.make(Path(scratch) / "set", net_keys="mixed_precision=1\nseed=1", max_batches=110))


main()
