"""`detector train ... -map -chart`: what is measured and kept, and that it leaves no trace.

usage: watch.py DARKNET
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.dom.minidom
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

LINE = re.compile(r"mAP at iteration (\d+): mAP@0.5 ([\d.]+) %, .*; (the best so far|best so far)")
MAP = ("-map", "-map_every", "4")


def run(folder, *args):
    return subprocess.run([sys.argv[1], *args], cwd=folder, capture_output=True, text=True)


def train(folder, *args, status=0):
    result = run(folder, "detector", "train", "toy.data", "toy.cfg", *args)
    assert result.returncode == status, (result.returncode, result.stdout[-2000:], result.stderr)
    return result


def make(folder, keys, max_batches=30, **settings):
    return toyset.make(folder, net_keys=keys, max_batches=max_batches, **settings)


def edit(path, old, new):
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new, 1))


def saved(folder):
    """Everything of the run itself: weights, and momentum where it is kept."""
    return {path.name: path.read_bytes() for path in (folder / "backup").iterdir()
            if "best" not in path.name}


def check_no_trace(root, name, keys):
    bare = make(root / (name + "-bare"), keys)
    train(bare)
    watched = make(root / (name + "-watched"), keys)
    out = train(watched, *MAP, "-chart", "chart.svg").stdout
    (watched / "said").write_text(out)
    assert saved(bare) == saved(watched), "%s: evaluating changes the training" % name
    return watched, [(int(i), float(value), what == "the best so far")
                     for i, value, what in LINE.findall(out)]


def check_best(folder, lines):
    """After burn-in (10), every fourth and the last; kept where better than all before."""
    assert [line[0] for line in lines] == [12, 16, 20, 24, 28, 30], lines
    best = json.loads((folder / "backup" / "toy_best.json").read_text())
    assert [i for i, _, kept in lines if kept][-1] == best["iteration"], (lines, best)
    assert max(value for _, value, _ in lines) == round(100 * best["map50"], 2), (lines, best)
    found = run(folder, "detector", "map", "toy.data", "toy.cfg", "backup/toy_best.weights",
                "--json", "map.json")
    assert found.returncode == 0, found.stderr
    exact = json.loads((folder / "map.json").read_text())
    for key in ("map50", "map75", "map"):
        assert abs(exact[key] - best[key]) <= 1e-8 * exact[key], (key, exact[key], best)
    assert exact["map50"] > 0, "the set is too hard for this test"


def check_chart(folder, iterations, measured):
    path = folder / "chart.svg"
    xml.dom.minidom.parse(str(path))
    assert path.stat().st_size < 200000
    text = path.read_text()
    assert re.findall(r"^loss (\d+) ", text, re.M) == [str(i) for i in iterations], text[:3000]
    assert re.findall(r"^map (\d+) ", text, re.M) == [str(i) for i in measured]
    return text


def check_average(text):
    """As Darknet prints it: a tenth of every loss, the first one whole."""
    points = [tuple(map(float, line)) for line in re.findall(r"^loss \d+ (\S+) \S+ (\S+) ", text, re.M)]
    average = points[0][0]
    for loss, drawn in points:
        average = .9 * average + .1 * loss
        assert abs(drawn - average) <= 1e-6 * average, (points, average)


def check_classes(out, evaluations):
    """Of each a line and an entry; the mean of the entries is the first number."""
    printed = re.findall(r"^class_id = (\d), name = (\w+), ap = ([\d.]+)%   \t \(TP = \d+, FP = \d+\)$", out, re.M)
    logged = [(str(k), row["name"], f"{100 * row['ap50']:.2f}") for e in evaluations for k, row in enumerate(e["classes"])]
    assert printed == logged and len(printed) == 2 * len(evaluations), (printed, logged)
    for e in evaluations:
        assert abs(sum(row["ap50"] for row in e["classes"]) / 2 - e["map50"]) < 1e-8, e


def check_runs(root):
    plain, lines = check_no_trace(root, "plain", "seed=1")
    check_best(plain, lines)
    text = check_chart(plain, range(1, 31), [12, 16, 20, 24, 28, 30])
    assert "iteration 30 of 30 (100.0 %), 0:00:00 left" in text and "loss scale" not in text
    check_average(text)

    mixed, lines = check_no_trace(root, "mixed", "seed=1\nmixed_precision=1\namp_log=log")
    check_best(mixed, lines)
    assert "loss scale" in check_chart(mixed, range(1, 31), [12, 16, 20, 24, 28, 30])
    objects = [json.loads(line) for line in (mixed / "log").read_text().splitlines()]
    found = [(o["iteration"], round(100 * o["evaluation"]["map50"], 2)) for o in objects
             if "evaluation" in o]
    assert found == [line[:2] for line in lines], (found, lines)
    assert all(o["evaluation"]["seconds"] > 0 for o in objects if "evaluation" in o)
    check_classes((mixed / "said").read_text(), [o["evaluation"] for o in objects if "evaluation" in o])
    best, exact = -1, [o["evaluation"]["map50"] for o in objects if "evaluation" in o]
    assert len(set(exact)) < len(exact), "there is no tie: %s" % exact
    for (_, _, kept), value in zip(lines, exact):
        assert kept == (value > best), (lines, exact)
        best = max(best, value)
    return plain, mixed


def check_burn_in(root):
    """The iteration that ends burn-in is part of it."""
    folder = make(root / "burn-in", "seed=1", max_batches=8)
    edit(folder / "toy.cfg", "burn_in=10", "burn_in=4")
    out = train(folder, "-map", "-map_every", "2").stdout
    assert [int(line[0]) for line in LINE.findall(out)] == [6, 8], out
    # Weights that have seen no image begin a run: the best of the one before does not count.
    record = folder / "backup" / "toy_best.json"
    record.write_text(json.dumps(dict(json.loads(record.read_text()), map50=0.9)) + "\n")
    body = (folder / "backup" / "toy_final.weights").read_bytes()
    (folder / "new.weights").write_bytes(body[:12] + bytes(8) + body[20:])
    train(folder, "new.weights", "-map", "-map_every", "2")
    assert json.loads(record.read_text())["map50"] < 0.9, "the old best was taken up"


def check_end(root):
    """A run that diverges at once, long before the next picture is due: all that it had is drawn, and no loss that is
    lost is drawn as 0."""
    folder = make(root / "diverges", "seed=1\nmixed_precision=1\namp_log=log", max_batches=100)
    edit(folder / "toy.cfg", "learning_rate=0.001", "learning_rate=10")
    edit(folder / "toy.cfg", "burn_in=10", "burn_in=0")
    said = train(folder, "-chart", "chart.svg", status=1).stderr
    log = map(json.loads, (folder / "log").read_text().splitlines())
    losses = {o["iteration"]: o["loss"] for o in log if "loss" in o}
    known = [i for i, loss in losses.items() if loss is not None and i < max(losses)]
    lost = [i for i, loss in losses.items() if loss is None and i < max(losses)]
    assert lost and len(known) > 1, (said, losses)
    check_chart(folder, known, [])
    assert all("iteration %d: its loss is lost" % i in said for i in lost), (said, losses)


def check_rate_marks(root):
    """One for each of steps=."""
    folder = make(root / "steps", "seed=1", max_batches=4)
    edit(folder / "toy.cfg", "policy=constant", "policy=steps\nsteps=2,3\nscales=.1,.25")
    train(folder, "-chart", "chart.svg")
    marks = re.findall(r'class="mark".*?class="small">(.*?)</text>', (folder / "chart.svg").read_text())
    assert len(marks) == 2 and "0.1" in marks[0] and "0.25" in marks[1], marks


def check_notes(root):
    """Of the user's cfg, not of the one that is measured with."""
    folder = make(root / "notes", "mixed_precision=1\nauthor=me", max_batches=8)
    edit(folder / "toy.cfg", "stride=2\n", "stride=2 # x\n")
    edit(folder / "toy.cfg", "burn_in=10", "burn_in=4")
    lines = (folder / "toy.cfg").read_text().splitlines()
    told = train(folder, "-map", "-map_every", "4")
    assert LINE.findall(told.stdout) and "/proc/self/fd" not in told.stderr, told
    toyset.check_notes(
        told.stderr,
        "toy.cfg:%d: author=me in [net]: has no effect in this section"
        % (lines.index("author=me") + 1),
        "toy.cfg:%d: stride=2 # x in [convolutional]: Darknet reads 2; put the remark on its own line"
        % (lines.index("stride=2 # x") + 1))


def check_going_on(folder):
    """The best so far outlives the process; -clear begins anew."""
    record, weights = folder / "backup" / "toy_best.json", folder / "backup" / "toy_best.weights"
    edit(folder / "toy.cfg", "max_batches=30", "max_batches=34")
    best = json.loads(record.read_text())
    record.write_text(json.dumps(dict(best, map50=0.9)) + "\n")  # out of reach
    before = weights.read_bytes()
    out = train(folder, "backup/toy_final.weights", *MAP, "-chart", "chart.svg").stdout
    assert [(int(i), what) for i, _, what in LINE.findall(out)] == [(32, "best so far"),
                                                                    (34, "best so far")], out
    assert weights.read_bytes() == before
    check_chart(folder, range(1, 35), [12, 16, 20, 24, 28, 30, 32, 34])
    record.write_text("{}")
    edit(folder / "toy.cfg", "max_batches=34", "max_batches=35")
    trained = train(folder, "backup/toy_final.weights", *MAP)
    assert re.search(r"toy_best.json is not of \S*toy_best.weights, which are measured again",
                     trained.stderr), trained.stderr
    kept = "; best so far %.2f %% at iteration %d" % (100 * best["map50"], best["iteration"])
    better = json.loads(record.read_text()).get("map50", 0) > best["map50"]
    assert better or kept in trained.stdout, trained.stdout
    assert better == (weights.read_bytes() != before)
    edit(folder / "toy.cfg", "max_batches=35", "max_batches=2")
    train(folder, "backup/toy_final.weights", "-clear", *MAP, "-chart", "chart.svg")
    assert weights.read_bytes() != before
    assert json.loads(record.read_text())["iteration"] == 2
    check_chart(folder, [1, 2], [2])
    # A record that cannot be written: told, nothing of it stays beside, and what is not kept is not the best so far.
    record.unlink()
    (record / "in the way").mkdir(parents=True)
    trained = train(folder, "backup/toy_final.weights", "-clear", *MAP)
    assert "the best weights are not kept: " in trained.stderr, trained.stderr
    assert "at iteration 2: " in trained.stdout and "at iteration 2; " not in trained.stdout, trained.stdout
    assert not list(record.parent.glob("toy_best.json?*")), list(record.parent.iterdir())


def check_best_is_resumed(folder):
    """With mixed_precision=1 the best weights have a sidecar: training goes on from them."""
    best = json.loads((folder / "backup" / "toy_best.json").read_text())["iteration"]
    edit(folder / "toy.cfg", "max_batches=30", "max_batches=%d" % (best + 1))
    err = train(folder, "backup/toy_best.weights").stderr
    assert "resumed from backup/toy_best.weights.amp: iteration %d" % best in err, err


def check_patience(root):
    """A rate that learns nothing more: mAP stays what it was, so the run ends, saves as a finished one, and says which
    iteration was the best. A run that goes on from there remembers it."""
    for keys in "seed=1", "seed=1\nmixed_precision=1\namp_log=log":
        folder = make(root / ("patience%d" % len(keys)), keys, max_batches=200)
        edit(folder / "toy.cfg", "burn_in=10", "burn_in=2")
        edit(folder / "toy.cfg", "learning_rate=0.001", "learning_rate=0")
        ended = train(folder, *MAP, "-patience", "3")
        found = LINE.findall(ended.stdout)
        assert [int(i) for i, _, _ in found] == [4, 8, 12, 16], found
        values = [value for _, value, _ in found]
        assert re.search(r"has not been better than %s %% for 3 evaluations \(-patience 3\): training ends at iteration 16; "
                         r"the best was iteration 4: \S*toy_best.weights" % values[0], ended.stderr), ended.stderr
        assert {"toy_final.weights", "toy_best.weights"} <= set(os.listdir(folder / "backup"))
        again = train(folder, "backup/toy_final.weights", *MAP, "-patience", "5")
        assert [int(i) for i, _, _ in LINE.findall(again.stdout)] == [20, 24], again.stdout
        assert "training ends at iteration 24; the best was iteration 4" in again.stderr, again.stderr
    # One that goes on learning is not ended.
    folder = make(root / "learns", "seed=1")
    best = [int(i) for i, _, what in LINE.findall(train(folder, *MAP).stdout) if what == "the best so far"]
    longest = max((b - a) // 4 for a, b in zip(best, best[1:] + [30]))
    ended = train(folder, *MAP, "-patience", str(longest + 1))
    assert "training ends" not in ended.stderr and LINE.findall(ended.stdout)[-1][0] == "30", ended


def check_quiet(root):
    """Of stdout only the lines of mAP and of its classes stay, and nothing else changes."""
    keys = "seed=1\nmixed_precision=1\namp_log=%s"
    loud = make(root / "loud", keys % "log")
    said = train(loud, *MAP)
    quiet = make(root / "quiet", keys % "/dev/stdout")
    kept = train(quiet, *MAP, "-quiet")
    assert "Avg IOU" in said.stdout and "Loaded: " in said.stdout, said.stdout
    lines = [line for line in kept.stdout.splitlines() if not line.startswith("{")]
    seconds = re.compile(r"; [\d.]+ s$")
    expected = [seconds.sub("", line) for line in said.stdout.splitlines() if line.startswith(("mAP at", "class_id = "))]
    assert [seconds.sub("", line.replace(str(quiet), str(loud))) for line in lines] == expected, lines
    assert [json.loads(line)["iteration"] for line in kept.stdout.splitlines() if '"loss"' in line] == list(range(1, 31))
    assert "mixed precision: 30 iterations in " in kept.stderr and "where the time went" in kept.stderr, kept.stderr
    for name, body in saved(loud).items():
        if not name.endswith(".amp"):
            assert saved(quiet)[name] == body, name


def check_open_files(root):
    """A better result replaces the best files, and the old ones are not held open."""
    folder = make(root / "open", "seed=1")
    process = subprocess.Popen([sys.argv[1], "detector", "train", "toy.data", "toy.cfg", *MAP],
                               cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    held = set()
    while process.poll() is None:
        try:
            held |= {os.readlink(fd) for fd in Path("/proc/%d/fd" % process.pid).iterdir()}
        except OSError:  # closed meanwhile
            pass
        time.sleep(.01)
    assert process.returncode == 0, process.returncode
    replaced = [name for name in held if "toy_best" in name and name.endswith("(deleted)")]
    assert not replaced, replaced


def check_epoch(root):
    """Without -map_every after every epoch, whose last iteration may have fewer new images; and at the end."""
    folder = make(root / "epoch", "seed=1", max_batches=103)
    images = (folder / "train.txt").read_text().split()
    (folder / "valid.txt").write_text("\n".join(images) + "\n")
    (folder / "train.txt").write_text("\n".join((images * 405)[:405]) + "\n")  # 101.25 iterations of 4
    edit(folder / "toy.data", "valid=%s" % (folder / "train.txt"), "valid=%s" % (folder / "valid.txt"))
    assert [int(i) for i, _, _ in LINE.findall(train(folder, "-map").stdout)] == [102, 103]


def check_refusals(root):
    folder = make(root / "refused", "seed=1")
    (folder / "valid.txt").write_text("%s\n%s\n" % (folder / "image000.png", folder / "gone.png"))
    edit(folder / "toy.data", "valid=%s" % (folder / "train.txt"), "valid=%s" % (folder / "valid.txt"))
    train(folder)  # nobody looks at it
    (folder / "old.svg").write_text("<svg/>")
    for args, said in (
            (MAP, "gone.png"),
            (("-map", "-map_every", "0"), "-map_every 0: allowed"),
            (("-map_every", "5"), "without -map"),
            (("-patience", "5"), "-patience has no effect without -map"),
            (("-map", "-patience", "0"), "-patience 0: allowed"),
            (("-map", "-patiense", "5"), "did you mean -patience?"),
            (("-quiet",), "-quiet leaves out Darknet's lines for the progress line of mixed_precision=1"),
            (("-quiet", "-quiet"), "-quiet is given twice"),
            (("-map", "-map_every"), "no value after -map_every"),
            (("-map", "-map_every", "4", "-chart"), "no value after -chart"),
            (("-chart", "a.svg", "-chart", "b.svg"), "-chart is given twice"),
            (("-map", "-map"), "-map is given twice"),
            (("-map", "-map_every", "4x"), "-map_every 4x: allowed"),
            (("-map", "-chart", "x.d/x.png"), "the chart is an SVG image: x.d/x.svg is written"),
            (("-chart", "-map"), "no file name after -chart"),
            (("-chart", "/no/such/folder/c.svg"), "/no/such/folder/c.svg"),
            (("-chart", "old.svg"), "old.svg: is there and is no chart")):
        err = train(folder, *args, status=1).stderr
        assert said in err, (args, err)
    (folder / "gone.png").write_text("P6 no image")
    (folder / "gone.txt").write_text("")
    err = train(folder, "-map", status=1).stderr
    assert "gone.png: cannot be decoded" in err and "nothing was trained" in err, err
    (folder / "valid.txt").write_text("%s\n" % (folder / "image000.png"))
    (folder / "image000.txt").write_text("")
    err = train(folder, "-map", status=1).stderr
    assert "no boxes" in err, err


def main():
    with tempfile.TemporaryDirectory() as root:
        plain, mixed = check_runs(Path(root))
        check_burn_in(Path(root))
        check_end(Path(root))
        check_rate_marks(Path(root))
        check_notes(Path(root))
        check_going_on(plain)
        check_best_is_resumed(mixed)
        check_open_files(Path(root))
        check_epoch(Path(root))
        check_patience(Path(root))
        check_quiet(Path(root))
        check_refusals(Path(root))


main()
