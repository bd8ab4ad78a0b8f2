"""What users of AlexeyAB's and hank-ai's Darknet type and read: their words behind `detector`, their places of labels,
the number of their `detector map`, and FP32 beside it.

usage: fork_commands.py ROOT DARKNET
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import toyset

KEYS = "mixed_precision=1\nseed=1\n"
FORK = KEYS + "amp_dialect=fork"
FILES = ("toy.data", "toy.cfg")
LEFT_OUT = "darknet-amp: left out, without a meaning here: "
LINE = re.compile(r"mAP at iteration (\d+): mAP@(\S+) ([\d.]+) %, .*\(the first by AlexeyAB's rules\); (the best so far)?")


def run(folder, *words, status=0):
    done = subprocess.run([DARKNET, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-4000:])
    return done


def left_out(done):
    """What the line names; it stands there once at most."""
    found = [line[len(LEFT_OUT):] for line in done.stderr.splitlines() if line.startswith(LEFT_OUT)]
    assert len(found) <= 1, done.stderr
    return found[0].split(", ") if found else []


def check_training(folder):
    """The line that such users type, hank-ai's spellings and words before the command's name among it."""
    done = run(folder, "detector", "-map", "--dont-show", "train", *FILES, "-mjpeg_port", "8090", "--map-epochs", "55",
               "-iou_thresh", "0.4", "-points", "11", "-thresh", ".3", "-ext_output", "-BENCHMARK_layers",
               "-chart", "chart.png", "-http_post_host", "host", "--verbose")
    assert left_out(done) == ["--dont-show", "-mjpeg_port 8090", "-ext_output", "-BENCHMARK_layers",
                              "-http_post_host host", "--verbose"], done.stderr
    assert "chart.svg is written" in done.stderr and (folder / "chart.svg").is_file(), done.stderr
    lines = LINE.findall(done.stdout)
    # An epoch is two iterations.
    assert [(line[0], line[1]) for line in lines] == [("110", "0.4"), ("120", "0.4")], done.stdout[-2000:]
    return lines


def measure(folder, weights, *words):
    done = run(folder, "detector", "map", *FILES, weights, "--json", "map.json", *words)
    return done, json.loads((folder / "map.json").read_text())


def check_number(folder, lines):
    """detector map has the number that -map printed and kept; its table is the JSON's."""
    done, found = measure(folder, "backup/toy_final.weights", "-iou_thresh", "0.4", "-points", "11", "-dont_show")
    fork, printed = found["counts"], done.stdout
    assert left_out(done) == ["-dont_show"], done.stderr
    assert f"{100 * fork['map']:.2f}" == lines[-1][2] and fork["map"] > 0, (fork, lines)
    assert abs(fork["map"] - sum(c["ap"] for c in fork["classes"]) / 2) < 1e-12, fork
    assert f"mean average precision (mAP@0.40) = {fork['map']:.6f}, or {100 * fork['map']:.2f} %" in printed, printed
    assert f"for conf_thresh = 0.25, TP = {fork['tp']}, FP = {fork['fp']}, FN = {fork['fn']}," in printed, printed
    assert fork["points"] == 11 and abs(fork["iou_thresh"] - .4) < 1e-7, fork
    best = json.loads((folder / "backup/toy_best.json").read_text())
    kept = [line for line in lines if line[3]][-1]
    assert best["iteration"] == int(kept[0]) and f"{100 * best['map50']:.2f}" == kept[2], (best, lines)


def check_thresh(folder):
    """It counts, and drops nothing; one dash or two."""
    _, low = measure(folder, "backup/toy_final.weights", "-thresh", "0.01")
    _, high = measure(folder, "backup/toy_final.weights", "--thresh", "0.999")
    assert low["counts"]["tp"] + low["counts"]["fp"] > high["counts"]["tp"] + high["counts"]["fp"] == 0, (low, high)
    assert high["counts"]["precision"] is None and high["counts"]["fn"] == high["settings"]["truths"], high
    assert high["map50"] == low["map50"] and high["counts"]["map"] == low["counts"]["map"], (low, high)
    assert high["settings"]["thresh"] == .005, high


def check_going_on(folder):
    """The best weights are measured again: their record does not say by which IoU."""
    cfg = folder / "toy.cfg"
    cfg.write_text(cfg.read_text().replace("max_batches=120", "max_batches=122"))
    done = run(folder, "detector", "train", *FILES, "backup/toy_last.weights", "-dontshow", "-map")
    assert "are measured again, by the words of this run" in done.stderr, done.stderr
    assert [(line[0], line[1]) for line in LINE.findall(done.stdout)] == [("122", "0.5")], done.stdout[-2000:]


def check_detection(folder):
    """Stock Darknet would take the first of them for the weights, and nothing would be found."""
    image = (folder / "train.txt").read_text().split()[0]
    plain = run(folder, "detector", "test", *FILES, "backup/toy_final.weights", image, "-thresh", "0.01")
    done = run(folder, "detector", "test", *FILES, "-dont_show", "backup/toy_final.weights", "-ext_output", image,
               "-thresh", "0.01", "-save_labels", "-map")
    assert left_out(done) == ["-dont_show", "-ext_output", "-save_labels", "-map"], done.stderr
    boxes = [re.findall(r"^(?:red|blue): \d+%", text.stdout, re.M) for text in (plain, done)]
    assert boxes[0] and boxes[0] == boxes[1], boxes
    # As yolov4-csp.cfg is shipped, which cannot be trained there either.
    (folder / "csp.cfg").write_text((folder / "toy.cfg").read_text().replace(FORK, FORK + "\nmosaic=1\nletter_box=1"))
    done = run(folder, "detector", "test", "toy.data", "csp.cfg", "backup/toy_final.weights", image)
    assert f"{image}: Predicted" in done.stdout, done.stdout


def check_idle_numbers(folder):
    """Users write numbers behind flags; the flag counts, whatever the number. What data files say of saves is told."""
    data = folder / "toy.data"
    data.write_text(data.read_text() + "savelast=50\nsaveweights = 500\ndifficult=hard.txt\n")
    line = len(data.read_text().splitlines())
    done = run(folder, "detector", "train", "-dont_show", "1", *FILES, "backup/toy_final.weights", "-clear", "1", "-map", "0")
    assert left_out(done) == ["-dont_show 1", "1 behind -clear", "0 behind -map"], done.stderr
    assert "mAP at iteration 122" in done.stdout, done.stdout[-2000:]
    assert done.stderr.count(f"warning: toy.data:{line}: difficult=hard.txt: has no effect: in AlexeyAB's") == 1, done.stderr
    line -= 1
    assert done.stderr.count(f"warning: toy.data:{line - 1}: savelast=50: has no effect; amp_backup_every") == 1, done.stderr
    assert done.stderr.count(f"warning: toy.data:{line}: saveweights=500: has no effect\n") == 1, done.stderr
    # A file of that name is a file.
    (folder / "7").write_text("")
    assert left_out(run(folder, "detector", "map", *FILES, "-clear", "7", status=1)) == []


def check_refusals(folder):
    for words, said in ((("-map", "-mAP_epochs", "0"), "-mAP_epochs 0: allowed: epochs, 1 to"),
                        (("-map", "-mAP_epochs"), "no value after -mAP_epochs"),
                        (("-map", "-mAP_epochs", "2", "-map_every", "3"), "leave out one"),
                        (("-map", "-iou_thresh", "1.5"), "-iou_thresh 1.5: allowed: above 0, at most 1"),
                        (("-map", "-points", "12"), "-points 12: allowed: 0 (the area under the curve), 11, 101")):
        assert said in run(folder, "detector", "train", *FILES, *words, status=1).stderr, (words, said)
    done = run(folder, "detector", "map", *FILES, "none.weights", "-points", "12", status=1)
    assert "--points 12: allowed: 0, 11, 101" in done.stderr, done.stderr
    # A file of that name is a file.
    (folder / "-show").write_text("")
    assert left_out(run(folder, "detector", "map", *FILES, "-show", status=1)) == []


def check_labels(folder):
    """Beside the image, and where stock Darknet looks; what is missing is counted, unless nothing is there."""
    (folder / "images").mkdir()
    (folder / "labels").mkdir()
    listed = (folder / "train.txt").read_text()
    for number in (2, 3):
        name = f"image00{number}"
        (folder / f"{name}.png").rename(folder / "images" / f"{name}.png")
        (folder / f"{name}.txt").rename(folder / ("labels" if number == 2 else "images") / f"{name}.txt")
        listed = listed.replace(f"/{name}", f"/images/{name}")
    (folder / "train.txt").write_text(listed)
    (folder / "image001.txt").unlink()
    done = run(folder, "detector", "train", *FILES, "-map")
    assert done.stderr.count("images without a label file (1 of 8)") == 2, done.stderr  # to train on, and of -map
    _, found = measure(folder, "backup/toy_final.weights")
    assert found["settings"]["truths"] == 7, found["settings"]
    labels = folder / "image004.txt"
    labels.write_text(labels.read_text() + "2 .5 .5 .2 .2\n2000000000 .5 .5 .2 .2\n")
    done = run(folder, "detector", "train", *FILES)
    assert re.search(r"warning: \S*train.txt: boxes of a class that the net does not have \(2\): AlexeyAB's Darknet leaves "
                     r"them out, and so does this training; in \S*image004.txt \(2\)\n", done.stderr), done.stderr
    # There is nothing to measure them by.
    done = run(folder, "detector", "map", *FILES, "backup/toy_final.weights", status=1)
    assert 'image004.txt:2: class "2"' in done.stderr, done.stderr
    labels.write_text(labels.read_text().splitlines()[0])
    stock = (folder / "toy.cfg").read_text().replace("amp_dialect=fork", "")
    (folder / "stock.cfg").write_text(stock)
    done = run(folder, "detector", "train", "toy.data", "stock.cfg", status=1)
    assert "image001.txt" in done.stderr and "where AlexeyAB's rules look" in done.stderr, done.stderr
    done = run(folder, "detector", "map", "toy.data", "stock.cfg", "backup/toy_final.weights", status=1)
    assert "image001.txt" in done.stderr, done.stderr
    for path in folder.rglob("*.txt"):
        if path.name.startswith("image"):
            path.unlink()
    done = run(folder, "detector", "train", *FILES, status=1)
    assert "none of its 8 images has a label file" in done.stderr, done.stderr


def to_windows(path):
    path.write_bytes(path.read_bytes().replace(b"\r", b"").replace(b"\n", b"\r\n"))


def check_windows(folder):
    """Files with the line ends of Windows, in all commands that such users type; each is named once."""
    image = (folder / "train.txt").read_text().split()[0]
    (folder / "data").mkdir()
    (folder / "data/coco_val_5k.list").write_text((folder / "train.txt").read_text())  # of recall
    for name in ("toy.cfg", "toy.data", "train.txt", "toy.names", "data/coco_val_5k.list"):
        to_windows(folder / name)
    (folder / "results").mkdir()
    final = "backup/toy_final.weights"
    ends = re.compile(r"^warning: (\S*?)([^/\s]+):1: ends in a carriage return \(Windows line end\), which mixed", re.M)
    for named, *words in ((["toy.data", "toy.names", "train.txt"], "detector", "train", *FILES, "-map"),
                          (["toy.data", "toy.names"], "detector", "test", *FILES, final, image),
                          (["toy.data", "toy.names", "train.txt"], "detector", "valid", *FILES, final),
                          ([], "detector", "map", *FILES, final),
                          (["toy.data", "coco_val_5k.list"], "detector", "recall", *FILES, final),
                          (["toy.data", "toy.names", "train.txt"], "amp", "check", *FILES),
                          (["toy.data", "toy.names", "train.txt"], "amp", "data", *FILES),
                          (["toy.data", "toy.names", "train.txt"], "amp", "profile", *FILES[::-1]),
                          (["toy.data", "toy.names", "train.txt"], "amp", "lr-find", *FILES)):
        found = [match[1] for match in ends.findall(run(folder, *words).stderr)]
        assert sorted(found) == sorted(named), (words, found)
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["comp4_det_test_blue.txt", "comp4_det_test_red.txt"]
    names = subprocess.run([DARKNET, "detector", "test", *FILES, final], cwd=folder, capture_output=True, text=True,
                           input=f"{image}\r\n")
    assert names.returncode == 0 and f"{image}: Predicted" in names.stdout, names


def check_stock(folder):
    """Their words do no harm, and -iou_thresh is --iou."""
    done = run(folder, "detector", "train", *FILES, "-dont_show", "-map", "-points", "11", "-mAP_epochs", "1")
    assert left_out(done) == ["-dont_show"] and "-iou_thresh and -points have no effect" in done.stderr, done.stderr
    assert "mAP at iteration 120: mAP@0.5 " in done.stdout and not LINE.search(done.stdout), done.stdout[-2000:]
    done, found = measure(folder, "backup/toy_final.weights", "-iou_thresh", "0.3", "-points", "11")
    assert found["counts"]["rules"] == "stock" and found["counts"]["points"] == 0, found["counts"]
    assert found["settings"]["iou"] == .3 and "--points has no effect" in done.stderr, found


def check_without_key(folder):
    """Stock's rules hold; the first key that they do not have is named once. What the parser would build is refused."""
    image, final = (folder / "train.txt").read_text().split()[0], "backup/toy_final.weights"
    cfg = folder / "toy.cfg"
    text = cfg.read_text().replace("[yolo]", "[yolo]\niou_loss=ciou")
    cfg.write_text(text)
    line = text.splitlines().index("mosaic=1") + 1
    said = (f"toy.cfg:{line}: mosaic=1 in [net]: stock Darknet does not read this key, and trains and runs another network "
            "than AlexeyAB's would; mixed_precision=1 trains it by AlexeyAB's rules, with amp_dtype=fp32 in FP32")
    (folder / "results").mkdir()
    commands = (["test", *FILES, final, image], ["valid", *FILES, final], ["map", *FILES, final, final])
    for words in (["train", *FILES, "-map"], *commands):
        toyset.check_notes(run(folder, "detector", *words).stderr, said)
    cfg.write_text(text.replace("mosaic=1", "mosaic=0").replace("iou_loss=ciou", "iou_loss=mse"))
    toyset.check_notes(run(folder, "detector", *commands[0]).stderr)
    cfg.write_text(text.replace("[yolo]", "[route]\nlayers=-1\ngroups=2\n\n[yolo]", 1))
    for words in (["train", *FILES], *commands):
        done = run(folder, "detector", *words, status=1)
        assert "groups=2 in [route]: this Darknet ignores it" in done.stderr, done.stderr
        assert "mixed_precision=1 trains it" in done.stderr and "weights file" not in done.stderr, done.stderr


def check_fp32(folder):
    """Stock Darknet has no training to compare with."""
    done = run(folder, "amp", "profile", "toy.cfg")
    assert "-- amp_dtype=fp32, milliseconds --" in done.stdout and "Darknet's FP32" not in done.stdout, done.stdout
    assert re.search("mixed precision plan: fp32", done.stderr), done.stderr
    # Of a copy of the cfg, whose lines are others.
    assert "rules: fork (amp_dialect=fork)\n" in done.stderr, done.stderr
    if subprocess.run(["/usr/bin/python3", "-c", "import scipy"], capture_output=True).returncode:
        print("SKIPPED compare.sh: no scipy")
        return
    compare = ["/usr/bin/python3", "-B", ROOT / "scripts/compare", "--darknet", DARKNET, *FILES, "--out", folder / "out",
               "--seeds", "1", "--stock"]
    refused = subprocess.run(compare, cwd=folder, capture_output=True, text=True)
    line = (folder / "toy.cfg").read_text().splitlines().index("amp_dialect=fork") + 1
    assert refused.returncode == 1 and f"(line {line}: amp_dialect=fork), which stock Darknet" in refused.stderr, refused
    assert not (folder / "out").exists()


def main():
    with tempfile.TemporaryDirectory() as scratch:
        fork = toyset.make(Path(scratch) / "fork", net_keys=FORK, max_batches=120)
        lines = check_training(fork)
        check_number(fork, lines)
        check_thresh(fork)
        check_going_on(fork)
        check_detection(fork)
        check_idle_numbers(fork)
        check_refusals(fork)
        check_fp32(fork)
        check_labels(toyset.make(Path(scratch) / "places", net_keys=FORK, max_batches=12))
        check_windows(toyset.make(Path(scratch) / "windows", net_keys=FORK, max_batches=12))
        check_without_key(toyset.make(Path(scratch) / "keyless", net_keys="mosaic=1", max_batches=12))
        check_stock(toyset.make(Path(scratch) / "stock", net_keys=KEYS, max_batches=120))


main()
