"""`classifier train -topk`: top 1 and top 5 while it trains, the best weights kept, and what both must not change.

usage: classifier.py ROOT DARKNET
"""

import json
import re
import subprocess
import sys
import tempfile
import xml.dom.minidom
from pathlib import Path

ROOT, DARKNET = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import classset

LINE = re.compile(r"^accuracy at iteration (\d+): top 1 ([\d.]+) %, top 5 ([\d.]+) %; (the best so far)?", re.M)


def run(folder, *words, status=0):
    done = subprocess.run([DARKNET, "classifier", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, (words, done.returncode, done.stdout[-2000:], done.stderr[-3000:])
    return done


def make(folder, iterations, keys=""):
    classset.make(folder)
    text = (ROOT / "cfg/mixed-classifier.cfg").read_text()
    text = re.sub(r"(?m)^batch=.*", "batch=32", text)
    text = re.sub(r"(?m)^max_batches=.*", f"max_batches={iterations}", text)
    (folder / "net.cfg").write_text(text.replace("mixed_precision=1", f"mixed_precision=1\nseed=1\n{keys}"))
    (folder / "c.data").write_text((folder / "c.data").read_text() + "top=5\n")
    return folder


def valid(folder, weights):
    """Top 1 and top 5 of Darknet's own command."""
    said = run(folder, "valid", "c.data", "net.cfg", weights).stdout
    return tuple(map(float, re.findall(r"^\d+: top 1: ([\d.]+), top 5: ([\d.]+)$", said, re.M)[-1]))


def check_best(folder, lines):
    """What is kept is what was best first, by the numbers that `classifier valid` gives."""
    best = json.loads((folder / "backup/net_best.json").read_text())
    top1 = [float(line[1]) for line in lines]
    assert str(best["iteration"]) == lines[top1.index(max(top1))][0], (best, lines)
    assert [bool(line[3]) for line in lines] == [value > max([-1, *top1[:i]]) for i, value in enumerate(top1)], lines
    found = valid(folder, "backup/net_best.weights")
    assert abs(found[0] - best["top1"]) < 1e-6 and abs(found[1] - best["top5"]) < 1e-6, (found, best)
    found = valid(folder, "backup/net.weights")
    assert [f"{100 * value:.2f}" for value in found] == [*lines[-1][1:3]], (found, lines)


def check_training(root):
    bare, watched = make(root / "bare", 90), make(root / "watched", 90, "amp_log=log")
    run(bare, "train", "c.data", "net.cfg")
    done = run(watched, "train", "c.data", "net.cfg", "-topk", "-topk_every", "20", "-chart", "chart.svg")
    for name in ("net.weights", "net.weights.amp"):
        assert (bare / "backup" / name).read_bytes() == (watched / "backup" / name).read_bytes(), name
    lines = LINE.findall(done.stdout)
    assert [line[0] for line in lines] == ["20", "40", "60", "80", "90"], done.stdout[-2000:]
    assert float(lines[-1][1]) > 30 > float(lines[0][1]) or float(lines[0][1]) < float(lines[-1][1]), lines
    check_best(watched, lines)
    logged = [json.loads(line) for line in (watched / "log").read_text().splitlines()]
    found = [(str(row["iteration"]), f"{100 * row['evaluation']['top1']:.2f}", f"{100 * row['evaluation']['top5']:.2f}")
             for row in logged if "evaluation" in row]
    assert found == [line[:3] for line in lines], (found, lines)
    chart = (watched / "chart.svg").read_text()
    xml.dom.minidom.parseString(chart)
    assert re.search(r"top 1 [\d.]+ %, best [\d.]+ % at iteration \d+; thin: top 5", chart), chart[:2000]
    return watched, lines


def check_quiet(root):
    """Of stdout only the lines of accuracy stay, and nothing else changes."""
    loud, quiet = make(root / "loud", 40), make(root / "quiet", 40)
    words = ("train", "c.data", "net.cfg", "-topk", "-topk_every", "20")
    said, kept = run(loud, *words), run(quiet, *words, "-quiet")
    seconds = re.compile(r"; [\d.]+ s$", re.M)
    assert re.search(r"^\d+, [\d.]+: ", said.stdout, re.M), said.stdout
    expected = [line for line in said.stdout.splitlines() if line.startswith("accuracy at")]
    assert len(expected) == 2 and seconds.sub("", kept.stdout) == seconds.sub("", "\n".join(expected) + "\n"), kept.stdout
    assert "mixed precision: 40 iterations in " in kept.stderr, kept.stderr[-2000:]
    assert (loud / "backup/net.weights").read_bytes() == (quiet / "backup/net.weights").read_bytes()
    cfg = quiet / "net.cfg"
    cfg.write_text(cfg.read_text().replace("mixed_precision=1", "mixed_precision=0"))
    said = run(quiet, "train", "c.data", "net.cfg", "-quiet", status=1).stderr
    assert "-quiet leaves out Darknet's lines for the progress line of mixed_precision=1" in said, said


def check_going_on(folder, lines):
    """Only better weights replace the best, also after a stop."""
    cfg = folder / "net.cfg"
    cfg.write_text(cfg.read_text().replace("max_batches=90", "max_batches=92").replace("learning_rate=0.05",
                                                                                       "learning_rate=5"))
    before = (folder / "backup/net_best.weights").read_bytes()
    done = run(folder, "train", "c.data", "net.cfg", "backup/net.weights", "-topk", "-topk_every", "1")
    new = LINE.findall(done.stdout)
    assert [line[0] for line in new] == ["91", "92"], done.stdout[-2000:]
    best = max(float(line[1]) for line in lines)
    kept = []
    for line in new:
        kept.append(float(line[1]) > best)
        best = max(best, float(line[1]))
    assert [bool(line[3]) for line in new] == kept, (lines, new)
    assert any(kept) or (folder / "backup/net_best.weights").read_bytes() == before


def check_patience(root):
    """A rate of 0 changes nothing, so no evaluation is better than the first."""
    folder = make(root / "patient", 90)
    cfg = folder / "net.cfg"
    cfg.write_text(re.sub(r"(?m)^learning_rate=.*", "learning_rate=0", cfg.read_text()))
    done = run(folder, "train", "c.data", "net.cfg", "-topk", "-topk_every", "10", "-patience", "3")
    lines = LINE.findall(done.stdout)
    best = max(range(len(lines)), key=lambda i: (float(lines[i][1]), -i))
    assert len(lines) == best + 4, lines  # batch-norm's statistics still move
    assert f"accuracy has not been better than {lines[best][1]} % for 3 evaluations (-patience 3): training ends at iteration " \
        f"{lines[-1][0]}; the best was iteration {lines[best][0]}: backup/net_best.weights" in done.stderr, done.stderr[-2000:]
    assert (folder / "backup/net.weights").is_file() and (folder / "backup/net.weights.amp").is_file()
    assert re.findall(r"(?m)^(\d+), [\d.]+: ", done.stdout)[-1] == lines[-1][0], done.stdout[-1000:]


def amp(folder, *words, statuses=(0,)):
    done = subprocess.run([DARKNET, "amp", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode in statuses, (words, done.returncode, done.stderr[-3000:])
    return done


def check_tools(folder):
    """They load and look at images as `classifier train` does."""
    found = json.loads(amp(folder, "check", "c.data", "net.cfg", "--json", statuses=(0, 2)).stdout)
    assert [layer["type"] for layer in found["layers"]][-1] == "softmax", found
    found = json.loads(amp(folder, "lr-find", "c.data", "net.cfg", "--json").stdout)
    assert 1e-6 < found["suggested_rate"] < 1, found["suggested_rate"]
    found = json.loads(amp(folder, "profile", "net.cfg", "c.data", "--json").stdout)
    assert found["loading"]["images"] > 0, found["loading"]
    listed = (folder / "train.txt").read_text()
    (folder / "train.txt").write_text(listed + str(folder / "none.png") + "\n")
    for words in (("check", "c.data", "net.cfg"), ("lr-find", "c.data", "net.cfg"), ("profile", "net.cfg", "c.data")):
        said = amp(folder, *words, statuses=(1,)).stderr
        assert "none.png" in said, (words, said[-2000:])
    (folder / "train.txt").write_text(listed)


def check_refused(folder):
    """Before the first iteration, with the file's name."""
    train = ("train", "c.data", "net.cfg")
    for words, says in ((("-topk_every", "5"), "-topk_every and -patience have no effect without -topk"),
                        (("-topk", "-topk_every", "0"), "-topk_every 0: allowed: a whole number, at least 1"),
                        (("-topk", "-gpus", "0,1"), "-gpus"),  # a build for CPUs refuses any
                        (("-topk", "-chart", "none/a.svg"), "none/a.svg")):
        done = run(folder, *train, *words, status=1)
        assert says in done.stderr and "iteration" not in done.stdout, (words, done.stderr[-2000:])
    listed = (folder / "valid.txt").read_text()
    first = listed.splitlines()[0]
    odd = folder / "odd.png"
    odd.write_bytes(Path(first).read_bytes())
    for line, says in ((odd, "odd.png: holds no label"), (folder / "kind1_none.png", "kind1_none.png")):
        (folder / "valid.txt").write_text(f"{line}\n{listed}")
        done = run(folder, *train, "-topk", status=1)
        assert says in done.stderr, done.stderr[-2000:]
    whole = Path(first).read_bytes()
    Path(first).write_bytes(whole[:200])
    (folder / "valid.txt").write_text(listed)
    done = run(folder, *train, "-topk", status=1)
    assert f"{first}: cannot be decoded as an image" in done.stderr, done.stderr[-2000:]
    Path(first).write_bytes(whole)
    data = (folder / "c.data").read_text()
    (folder / "c.data").write_text(data + "tag=1\n")
    done = run(folder, *train, "-topk", status=1)
    assert "tag=1: -topk needs images with one class each" in done.stderr, done.stderr[-2000:]
    (folder / "c.data").write_text(data)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder, lines = check_training(Path(scratch))
        check_going_on(folder, lines)
        check_patience(Path(scratch))
        check_quiet(Path(scratch))
        check_tools(make(Path(scratch) / "tools", 90))
        check_refused(folder)


main()
