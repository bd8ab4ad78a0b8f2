"""Training that is stopped and goes on from a weights file and its sidecar is the run that never
stopped, byte for byte; and what happens where the sidecar cannot be used.

usage: resume.py FIXED_TRAINING_LINKED FIXED_TRAINING_STOCK DARKNET [--random]

--random: instead, 100 iterations with random=1 after a stop; Darknet draws a size every ten.
"""

import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

LINKED, STOCK, DARKNET = sys.argv[1:4]
AMP = "mixed_precision=1\n"
GROWS = "loss_scale_init=2\nloss_scale_window=3"
RESUMED = "mixed precision: resumed from "
MISSING = ".amp is not there: momentum"


def run(command, folder, status=0, limit=None):
    """Runs it in the folder; returns its stderr. limit: bytes that a file may have."""

    def set_limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True,
                          text=True, env=dict(os.environ, OMP_NUM_THREADS="2"),
                          preexec_fn=set_limit if limit else None)
    assert done.returncode == status, "status %d\n%s\n%s" % (
        done.returncode, done.stdout[-1000:], done.stderr[-3000:])
    return done.stderr


def train(folder, steps, weights, start=None, clear=False, program=LINKED, **settings):
    command = [program, "toy.cfg", steps, weights] + ([start] if start else [])
    return run(command + (["clear"] if clear else []), folder, **settings)


def pair(folder, name):
    """The bytes of a weights file and its sidecar."""
    return (folder / name).read_bytes(), (folder / (name + ".amp")).read_bytes()


def names(folder):
    return sorted(path.name for path in folder.iterdir() if "backup" in path.name)


def change_cfg(folder, old, new):
    cfg = folder / "toy.cfg"
    text = cfg.read_text()
    assert old in text, old
    cfg.write_text(text.replace(old, new))


def check_same(root, name, keys, before=4, after=5, start=None, changes=(), saved=".backup", **settings):
    """An unbroken run and one that stops after `before` steps. Returns the resumed one's stderr. saved: what the name
    of a backup ends with."""
    folder = toyset.make(root / name, net_keys=AMP + keys, **settings)
    for old, new in changes:
        change_cfg(folder, old, new)
    begin = None
    whole, half, resumed = (kind + saved for kind in ("whole", "half", "resumed"))
    if start:
        begin = "start.weights"
        train(folder, 0, begin)
        start(folder / begin)
    train(folder, before + after, "whole.backup", begin)
    train(folder, before, "half.backup", begin)
    assert pair(folder, whole) != pair(folder, half), "%s: no training" % name
    said = train(folder, after, "resumed.backup", half)
    assert said.count(RESUMED + "%s.amp: iteration " % half) == 1, said
    assert start or "iteration %d," % before in said, said
    assert pair(folder, whole) == pair(folder, resumed), name
    # It is the sidecar that makes it so.
    (folder / (half + ".amp")).unlink()
    assert RESUMED not in train(folder, after, "other.backup", half)
    assert pair(folder, whole) != pair(folder, "other" + saved), name
    return said


def blow_up(weights):
    """Scales of the first layer, after 8 biases, that carry its output out of FP16."""
    data = bytearray(weights.read_bytes())
    data[20 + 32:20 + 64] = struct.pack("<8f", *[1e6] * 8)
    weights.write_bytes(data)


def check_resumed_runs(root):
    said = check_same(root, "sgd", GROWS)
    assert re.search("raised [1-9]", said), said
    said = check_same(root, "searched", "loss_scale_window=50", before=1, after=1)
    assert "start-up search" not in said, said
    said = check_same(root, "adam", "adam=1\n" + GROWS)
    assert "momentum and Adam moments" in said, said
    check_same(root, "skip", "amp_on_overflow=skip\nloss_scale_init=16777216", before=6)
    check_same(root, "static", "loss_scale=128")
    check_same(root, "bf16", "amp_dtype=bf16")
    check_same(root, "averaged", "ema_alpha=0.99\n" + GROWS)
    said = check_same(root, "adamw", "optimizer=adamw\nclip_grad_value=0.01")
    assert "momentum and Adam moments" in said, said
    check_same(root, "lamb", "optimizer=lamb\nema_alpha=0.9\nclip_grad_norm=0.1\ndecay_bn=1")
    check_same(root, "lars", "optimizer=lars\namp_on_overflow=skip\nloss_scale_init=16777216", before=6)
    check_same(root, "fp32", "amp_dtype=fp32")
    check_same(root, "whole_batch", "", changes=[("subdivisions=2", "subdivisions=1")])
    check_same(root, "four_parts", "adam=1", batch=8, changes=[("subdivisions=2", "subdivisions=4")])
    check_same(root, "searching", "", before=2, start=blow_up)
    # Its loss is up to 1e11.
    said = check_same(root, "demoted", "amp_on_divergence=continue", before=8, start=blow_up)
    assert "layers that left FP16: " in said and "does not fit FP16" not in said, said
    for policy in "policy=onecycle", "policy=sgdr\nsgdr_cycle=3":
        check_same(root, policy[7:11], "", max_batches=9,
                   changes=[("burn_in=10\n", ""), ("policy=constant", policy)])
    dropout = ("[convolutional]\nsize=1", "[dropout]\nprobability=.3\n\n[convolutional]\nsize=1")
    check_same(root, "dropout", "seed=7", changes=[dropout])


def seen_before(iteration, batch=4):
    def set_seen(weights):
        data = bytearray(weights.read_bytes())
        data[12:20] = struct.pack("<Q", iteration * batch)
        weights.write_bytes(data)
    return set_seen


def check_fork_average(root):
    """By AlexeyAB's rule, with max_batches=2010, averages run from iteration 1005 to 1010. Stopped before, among and
    after these."""
    for before in 1, 4, 9:
        name = "fork_average%d" % before
        said = check_same(root, name, "amp_dialect=fork\nema_alpha=0.9\n" + GROWS, before, 11 - before,
                          start=seen_before(1003), saved="_last.weights", max_batches=2010)
        assert "has no moving average" not in said, said
        folder = root / name
        beside = [path.name for path in sorted(folder.glob("*_ema.weights"))]
        assert beside == (["half_ema.weights"] if before == 4 else []), beside
    # Iteration 1010 leaves the average of 1009 in place of the weights, of the first convolution 8 biases, 8 scales and
    # all filters, but not of its statistics.
    train(folder, 6, "before.backup", "start.weights")
    train(folder, 7, "taken.backup", "start.weights")
    before, average, taken = (toyset.read_weights(folder / name)[:32 + 216]
                              for name in ("before_last.weights", "before_ema.weights", "taken_last.weights"))
    assert taken[:16] == average[:16] != before[:16] and taken[32:] == average[32:] != before[32:]
    assert taken[16:32] != average[16:32] == before[16:32]


def check_dtype(root):
    """amp_dtype=auto goes on in what the run began with, and says so where it would have chosen another."""
    chosen = None
    for dtype, other in ("fp16", "bf16"), ("bf16", "fp16"), ("fp32", None):
        folder = toyset.make(root / ("auto_" + dtype), net_keys=AMP + "amp_dtype=" + dtype)
        train(folder, 9, "whole.backup")
        train(folder, 4, "half.backup")
        change_cfg(folder, "amp_dtype=" + dtype, "amp_dtype=auto")
        said = train(folder, 5, "resumed.backup", "half.backup")
        assert pair(folder, "whole.backup") == pair(folder, "resumed.backup"), dtype
        plan = said.split("mixed precision plan: ")[1][:4]
        assert chosen in (None, plan) and plan in ("fp16", "bf16"), said
        chosen = plan
        told = "goes on in %s, as the run began; amp_dtype=auto would take %s (this CPU multiplies" % (dtype, chosen)
        assert (told in said) == (dtype != chosen), said
        assert ("goes on in" in said) == (dtype != chosen), said
        assert said.split("mixed precision plan: ")[-1].startswith(dtype), said
        if other:  # a cfg that names one always counts
            change_cfg(folder, "amp_dtype=auto", "amp_dtype=" + other)
            said = train(folder, 5, "other.backup", "half.backup")
            assert "goes on in" not in said and pair(folder, "whole.backup") != pair(folder, "other.backup")


def check_inexact(root):
    """What is in neither file is named."""
    folder = toyset.make(root / "inexact", net_keys=AMP)
    train(folder, 2, "a.backup")
    assert "not exactly" not in train(folder, 1, "b.backup", "a.backup")
    change_cfg(folder, "[convolutional]\nsize=1", "[convolutional]\ndontloadscales=1\nsize=1")
    said = train(folder, 1, "b.backup", "a.backup")
    assert "layer 6 (convolutional): the cfg keeps parameters of it out" in said, said
    folder = toyset.make(root / "between_sizes", net_keys=AMP, random_size=1)
    for steps in (10, 7):
        train(folder, steps, "a.backup")
        said = train(folder, 1, "b.backup", "a.backup")
        told = "layer 7 (yolo): random=1 draws its sizes at other iterations" in said
        assert told == (steps % 10 > 0), said


def check_detector(root):
    """The same through `darknet detector train`, with loader threads and augmentation."""
    for name, keys in (("detector", "seed=7"), ("detector_adam", "seed=7\nadam=1")):
        runs = {}
        for part, batches, start in (("whole", 7, None), ("half", 3, None), ("resumed", 7, "half")):
            folder = toyset.make(root / name / part, net_keys=AMP + keys, max_batches=batches)
            command = [DARKNET, "detector", "train", "toy.data", "toy.cfg"]
            if start:
                command.append(root / name / start / "backup" / "toy_final.weights")
            said = run(command, folder)
            assert (RESUMED in said) == (start is not None), said
            runs[part] = pair(folder / "backup", "toy_final.weights")
        assert runs["whole"] == runs["resumed"] != runs["half"], name
    folder = toyset.make(root / "detector" / "cleared", net_keys=AMP, max_batches=1)
    start = root / "detector" / "half" / "backup" / "toy_final.weights"
    said = run([DARKNET, "detector", "train", "toy.data", "toy.cfg", start, "-clear"], folder)
    assert "toy_final.weights.amp is not used, because" in said and RESUMED not in said, said


def train_random(folder, start=None):
    """Up to iteration 200 of 1000; returns the sizes drawn. The last 200 all have one size."""
    toyset.make(folder, net_keys=AMP + "seed=7\namp_sidecar=all\nloss_scale_init=2\nloss_scale_window=30",
                max_batches=1000, batch=2, random_size=1)
    change_cfg(folder, "learning_rate=0.001", "learning_rate=0.00001")
    command = [DARKNET, "detector", "train", "toy.data", "toy.cfg"] + ([start] if start else [])
    program = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.DEVNULL)
    sizes = []
    for line in program.stdout:
        sizes += [int(line)] if line.strip().isdigit() else []
        if (folder / "backup" / "toy_200.weights").exists():
            break
    program.kill()
    program.wait()
    return sizes


def check_random(root):
    sizes = train_random(root / "whole")
    assert len(set(sizes[10:20])) > 2, sizes
    start = root / "whole" / "backup" / "toy_100.weights"
    assert train_random(root / "resumed", start)[:10] == sizes[10:20]
    weights = [pair(root / part / "backup", "toy_200.weights") for part in ("whole", "resumed")]
    assert weights[0] == weights[1]


def check_policies(root):
    for policy, expected in (("", {"a.backup", "a_final.weights"}), ("none", set()),
                             ("all", {"a.backup", "a_final.weights", "a_100.weights"})):
        keys = AMP + ("amp_sidecar=%s\n" % policy if policy else "")
        folder = toyset.make(root / ("policy" + policy), net_keys=keys)
        for name in ("a.backup", "a_final.weights", "a_100.weights"):
            said = train(folder, 1, name)
            assert said.count("Saved as %s\n" % name) == 1, said
            assert (folder / (name + ".amp")).exists() == (name in expected), (policy, name)
        assert not [path for path in folder.iterdir() if ".part-" in path.name]
    change_cfg(folder, "amp_sidecar=all", "amp_sidecar=none")
    train(folder, 1, "a.backup")
    assert names(folder) == ["a.backup", "backup"], "the sidecar of overwritten weights stays"


def check_other_programs(root):
    """Weights files are Darknet's, and a cfg without our key neither makes nor reads sidecars."""
    folder = toyset.make(root / "others", net_keys=AMP)
    train(folder, 2, "a.backup")
    change_cfg(folder, AMP + "amp_dtype=fp16", "")
    stock = train(folder, 0, "copy.backup", "a.backup", program=STOCK)
    assert (folder / "copy.backup").read_bytes() == (folder / "a.backup").read_bytes()
    linked = train(folder, 0, "copy2.backup", "a.backup")
    assert (folder / "copy2.backup").read_bytes() == (folder / "a.backup").read_bytes()
    assert linked.replace("copy2", "copy") == stock, linked
    assert names(folder) == ["a.backup", "a.backup.amp", "backup", "copy.backup", "copy2.backup"]


def check_clear(root):
    folder = toyset.make(root / "clear", net_keys=AMP)
    train(folder, 3, "a.backup")
    said = train(folder, 2, "cleared.backup", "a.backup", clear=True)
    assert "a.backup.amp is not used, because" in said and RESUMED not in said, said
    (folder / "a.backup.amp").unlink()
    said = train(folder, 2, "without.backup", "a.backup", clear=True)
    assert MISSING not in said, said
    assert pair(folder, "cleared.backup") == pair(folder, "without.backup")


def check_missing(root):
    """Weights of a run that stopped, copied without their sidecar, are told from weights to start from."""
    folder = toyset.make(root / "missing", net_keys=AMP)
    train(folder, 3, "good.backup")
    weights = pair(folder, "good.backup")[0]
    names = ("a.backup", "a_100.weights", "a.weights", "a_final.weights", "a.conv.3")
    for policy, warned in (("backup", names[:1]), ("all", names[:2]), ("none", ())):
        change_cfg(folder, AMP, AMP + "amp_sidecar=%s\n" % policy)
        for name in names:
            (folder / name).write_bytes(weights)
            said = train(folder, 2, "b.backup", name)
            told = said.count("mixed precision: " + name + MISSING)
            assert told == said.count(MISSING) == (name in warned), (policy, name, said)
        change_cfg(folder, "amp_sidecar=%s\n" % policy, "")
    train(folder, 0, "untrained.backup")
    (folder / "untrained.backup.amp").unlink()
    assert MISSING not in train(folder, 1, "b.backup", "untrained.backup")


def check_refused(root):
    """A sidecar that cannot be used: one warning with the reason, and training as without it."""
    folder = toyset.make(root / "refused", net_keys=AMP)
    train(folder, 3, "good.backup")
    weights, sidecar = pair(folder, "good.backup")
    (folder / "none.backup").write_bytes(weights)
    train(folder, 2, "expected.backup", "none.backup")
    older = train(folder, 2, "older.backup") and pair(folder, "older.backup")[1]
    flipped = sidecar[:-30] + bytes([sidecar[-30] ^ 8]) + sidecar[-29:]
    newer = sidecar[:8] + b"\4" + sidecar[9:]
    for bad, reason in ((sidecar[:-1], "is cut off"), (b"", "is cut off"), (flipped, "is damaged"),
                        (newer, "has format version 4"), (older, "belongs to other weights")):
        (folder / "a.backup").write_bytes(weights)
        (folder / "a.backup.amp").write_bytes(bad)
        said = train(folder, 2, "b.backup", "a.backup")
        assert said.count("a.backup.amp: " + reason) == 1, said
        assert "momentum and loss scale start anew" in said and RESUMED not in said, said
        assert pair(folder, "b.backup") == pair(folder, "expected.backup"), reason
    change_cfg(folder, AMP, AMP + "adam=1\n")
    said = train(folder, 1, "c.backup", "good.backup")
    assert "good.backup.amp: belongs to another network" in said, said


def check_average(root):
    """The averages beside backup and final weights, and a run that begins to average or ends it."""
    folder = toyset.make(root / "average", net_keys=AMP)
    train(folder, 3, "plain.backup")
    assert (folder / "plain.backup.amp").read_bytes()[8] == 2
    assert not list(folder.glob("*_ema*"))
    change_cfg(folder, AMP, AMP + "ema_alpha=0.9\n")
    said = train(folder, 4, "a.backup", "plain.backup")
    assert "plain.backup.amp has no moving average: it begins with these weights" in said, said
    assert "Saved as a_ema.weights" in said, said
    weights, average = (folder / "a.backup").read_bytes(), (folder / "a_ema.weights").read_bytes()
    assert len(weights) == len(average) and weights != average
    assert weights[:20] == average[:20] and not (folder / "a_ema.weights.amp").exists()
    assert (folder / "a.backup.amp").read_bytes()[8] == 3
    train(folder, 1, "toy_final.weights", "a.backup")
    assert (folder / "toy_final_ema.weights").exists()
    train(folder, 1, "toy_100.weights", "a.backup")
    assert not (folder / "toy_100_ema.weights").exists()
    change_cfg(folder, "ema_alpha=0.9\n", "")
    said = train(folder, 2, "b.backup", "a.backup")
    assert RESUMED + "a.backup.amp: iteration 7," in said, said
    assert (folder / "b.backup.amp").read_bytes()[8] == 2 and not (folder / "b_ema.weights").exists()
    change_cfg(folder, AMP, AMP + "optimizer=adamw\n")
    said = train(folder, 1, "c.backup", "b.backup")
    assert "b.backup.amp: belongs to another network" in said and RESUMED not in said, said


def check_other_cfg(root):
    """The same parameters, otherwise another cfg: training goes on with the state and says nothing."""
    folder = toyset.make(root / "other_cfg", net_keys=AMP)
    change_cfg(folder, "burn_in=10", "burn_in=1")  # a longer one than the run would be named
    train(folder, 3, "a.backup")
    change_cfg(folder, "activation=leaky", "activation=relu")
    said = train(folder, 1, "b.backup", "a.backup")
    assert RESUMED + "a.backup.amp: iteration 3," in said and "darknet-amp: " not in said, said
    change_cfg(folder, "filters=4\n", "filters=8\n")
    said = train(folder, 1, "b.backup", "a.backup")
    assert "a.backup.amp: belongs to another network: it has " in said and RESUMED not in said, said


def check_previous_pair(root):
    """Killed between the new sidecar and the new weights."""
    folder = toyset.make(root / "previous", net_keys=AMP)
    train(folder, 3, "a.backup")
    train(folder, 5, "next.backup")
    for name in ("a.backup", "a.backup.amp"):
        os.link(folder / name, folder / name.replace("a.backup", "a.backup.prev"))
    os.rename(folder / "next.backup.amp", folder / "a.backup.amp")
    said = train(folder, 2, "resumed.backup", "a.backup")
    assert "the last good pair is loaded, a.backup.prev\n" in said, said
    assert RESUMED + "a.backup.prev.amp: iteration 3," in said, said
    train(folder, 2, "a.backup", "a.backup")
    assert not (folder / "a.backup.prev").exists() and not (folder / "a.backup.prev.amp").exists()
    train(folder, 5, "whole.backup")
    assert pair(folder, "a.backup") == pair(folder, "resumed.backup") == pair(folder, "whole.backup")


def check_write_errors(root):
    folder = toyset.make(root / "errors", net_keys=AMP)
    for name, status in (("a.backup", 0), ("a_final.weights", 1)):
        train(folder, 1, name)
        before = pair(folder, name), sorted(os.listdir(folder))
        for limit, reason in ((5000, "only 5000 of 9700 bytes"), (9800, "File too large")):
            said = train(folder, 2, name, status=status, limit=limit)
            assert "weights are not saved: " in said and reason in said and name in said, said
            assert (pair(folder, name), sorted(os.listdir(folder))) == before, name
        said = train(folder, 1, "none/" + name, status=status)
        assert "none/%s: cannot write a file beside it: No such file" % name in said, said


def check_links(root):
    """A link stays one; a device is written to, not replaced."""
    folder = toyset.make(root / "links", net_keys=AMP)
    (folder / "far").mkdir()
    train(folder, 2, "far/a.backup")
    (folder / "far" / "a.backup").chmod(0o640)
    (folder / "b.backup").symlink_to("far/a.backup")
    said = train(folder, 3, "b.backup", "b.backup")
    assert RESUMED in said, said
    assert (folder / "b.backup").is_symlink() and not (folder / "b.backup.amp").exists()
    assert (folder / "far" / "a.backup").stat().st_mode & 0o777 == 0o640
    train(folder, 5, "c.backup")
    assert pair(folder, "c.backup") == pair(folder / "far", "a.backup")
    (folder / "null.backup").symlink_to("/dev/null")
    train(folder, 1, "null.backup")
    assert Path("/dev/null").is_char_device() and (folder / "null.backup").is_symlink()
    assert not (folder / "null.backup.amp").exists()


def main():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if "--random" in sys.argv:
            check_random(root)
            return
        check_resumed_runs(root)
        check_fork_average(root)
        check_dtype(root)
        check_inexact(root)
        check_detector(root)
        check_policies(root)
        check_other_programs(root)
        check_clear(root)
        check_missing(root)
        check_refused(root)
        check_average(root)
        check_other_cfg(root)
        check_previous_pair(root)
        check_write_errors(root)
        check_links(root)


main()
