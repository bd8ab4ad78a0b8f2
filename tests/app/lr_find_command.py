"""`darknet amp lr-find`: suggests a rate that trains, and leaves nothing but the picture behind.

usage: lr_find_command.py DARKNET
"""

import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def run(folder, *args, **how):
    return subprocess.run([sys.argv[1], *args], cwd=folder, capture_output=True, text=True, **how)


def find(folder, *args):
    told = run(folder, "amp", "lr-find", "toy.data", "toy.cfg", "-nogpu", *args)
    assert told.returncode == 0, told.stderr
    return told


def contents(folder):
    return {path: (path.stat().st_mtime_ns, path.read_bytes())
            for path in folder.rglob("*") if path.is_file()}


def check_points(result):
    points, least = result["points"], float("inf")
    for i, p in enumerate(points):
        assert abs(p["rate"] / (1e-6 * 1e6 ** (i / 99)) - 1) < 1e-5, (i, p)
        least = min(least, p["smoothed"])
        assert (p["smoothed"] > 4 * least) == (result["diverged"] and i == len(points) - 1), (i, p)
    best = min(points, key=lambda p: p["smoothed"])
    assert abs(result["best_rate"] / best["rate"] - 1) < 1e-6
    assert .9 * best["rate"] / 10 < result["suggested_rate"] <= best["rate"] / 10 * 1.000001, result


def losses(folder, rate):
    """Of a training with this rate, without burn-in."""
    cfg = folder / "toy.cfg"
    text = re.sub("^learning_rate=.*$", "learning_rate=%g" % rate, cfg.read_text(), flags=re.M)
    (folder / "rate.cfg").write_text(text.replace("burn_in=10\n", ""))
    done = run(folder, "detector", "train", "toy.data", "rate.cfg", "-clear")
    assert done.returncode == 0, done.stderr
    return [float(x) for x in re.findall(r"^\d+: ([\d.]+),", done.stdout, re.M)]


def check_suggestion_trains(folder, rate):
    """Better than a hundredth of it, and to less than a tenth of where it began."""
    good, slow = losses(folder, rate), losses(folder, rate / 100)
    end = [sum(run[-10:]) / 10 for run in (good, slow)]
    assert end[0] < end[1] / 2 and end[0] < good[0] / 10, (rate, end, good[0])


def check_signal(folder, weights):
    """A sweep that is ended writes nothing: not even over weights that are a backup."""
    before = contents(folder)
    child = subprocess.Popen([sys.argv[1], "amp", "lr-find", "toy.data", "toy.cfg", weights, "-nogpu",
                              "--iterations", "100000"], cwd=folder, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if "iterations" in line and "amp lr-find" in line:
            break
    child.send_signal(signal.SIGINT)
    child.stderr.read()
    assert child.wait() == -signal.SIGINT, child.returncode
    assert contents(folder) == before


def check_full_disk(folder):
    """A limit on the size of files, which stops writing as a full disk does: at the end of the picture, and before."""
    picture, cfg = folder / "rates.svg", folder / "plain.cfg"
    cfg.write_text((folder / "toy.cfg").read_text().replace("ema_alpha=.9\n", ""))  # a save is smaller than the picture
    args = ("amp", "lr-find", "toy.data", "plain.cfg", "-nogpu", "--iterations", "300", "--chart", "rates.svg")
    assert run(folder, *args).returncode == 0
    size = picture.stat().st_size
    picture.unlink()
    before = contents(folder)
    for most in (size - 1, size - 5000):
        told = run(folder, *args, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))
        assert told.returncode == 1, told
        assert "error: rates.svg: cannot be written: File too large\n" in told.stderr, told.stderr
        assert contents(folder) == before
    cfg.unlink()


def main():
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "toy", images=16, max_batches=120, net_keys=
                             "mixed_precision=1\nseed=1\namp_log=log.json\nema_alpha=.9\nclip_grad_norm=1000")
        before = contents(folder)
        result = json.loads(find(folder, "--json").stdout)
        assert contents(folder) == before, "a file was written"
        assert (result["data"], result["cfg"], result["weights"]) == ("toy.data", "toy.cfg", None)
        assert result["images_per_iteration"] == 4 and result["line"] == 10
        check_points(result)
        again = find(folder, "--chart", "rates.svg")
        rate = re.search(r"^    learning_rate=(\S+)$", again.stdout, re.M)
        assert float(rate[1]) == result["suggested_rate"], again.stdout  # seed=1: the same sweep
        assert "In line 10 of toy.cfg, in place of 0.001:" in again.stdout, again.stdout
        assert "is above that" not in again.stdout, again.stdout
        root = ET.parse(folder / "rates.svg").getroot()
        dots = root.findall("{http://www.w3.org/2000/svg}circle")
        assert len(dots) == len(result["points"])
        # Nothing else of the cfg's changes the rates. The picture is replaced.
        picture, text = (folder / "rates.svg").read_bytes(), (folder / "toy.cfg").read_text()
        (folder / "toy.cfg").write_text(text.replace("burn_in=10\n", "")
                                        .replace("policy=constant", "policy=steps\nsteps=5\nscales=.1"))
        find(folder, "--chart", "rates.svg")
        assert (folder / "rates.svg").read_bytes() == picture
        (folder / "toy.cfg").write_text(text)
        (folder / "rates.svg").unlink()
        before = contents(folder)
        for name, said in (("toy.names", "toy.names: is there and is another kind of file"), ("no/dir.svg", "no/dir.svg")):
            told = run(folder, "amp", "lr-find", "toy.data", "toy.cfg", "--chart", name)
            assert told.returncode == 1 and said in told.stderr, told.stderr
        assert contents(folder) == before
        high = re.sub("^learning_rate=.*$", "learning_rate=.9\nlearning_rate_min=.5", text, flags=re.M)
        (folder / "toy.cfg").write_text(re.sub("^policy=.*$", "policy=cosine", high, flags=re.M))
        assert "\nlearning_rate_min=0.5 is above that: lower it, too.\n" in find(folder).stdout
        (folder / "toy.cfg").write_text(text)
        check_full_disk(folder)
        check_suggestion_trains(folder, result["suggested_rate"])
        backup = folder / "backup/rate.backup"
        (folder / "backup/rate_final.weights").rename(backup)
        (folder / "backup/rate_final.weights.amp").unlink()
        before = contents(folder)
        result = json.loads(find(folder, "backup/rate.backup", "--json").stdout)
        assert result["weights"] == "backup/rate.backup" and result["points"][0]["loss"] < 10, result
        assert contents(folder) == before
        check_signal(folder, "backup/rate.backup")
        for keys in ("optimizer=adamw\n", "policy=onecycle\n", "policy=steps\nsteps=5\nscales=.1\nadam=1\n"):
            text = (folder / "rate.cfg").read_text().replace("policy=constant\n", keys)
            (folder / "toy.cfg").write_text(text)
            check_points(json.loads(find(folder, "--json").stdout))
        (folder / "toy.cfg").write_text(text.replace("mixed_precision=1\n", ""))
        assert "mixed precision is off" in find(folder, "--json").stderr
        for args, said in (((), "needed: DATA CFG"), (("toy.data", "none.cfg"), "none.cfg"),
                           (("toy.data", "toy.cfg", "--iterations", "5"), "20 to 100000")):
            refused = run(folder, "amp", "lr-find", *args)
            assert refused.returncode == 1 and said in refused.stderr, refused


main()
