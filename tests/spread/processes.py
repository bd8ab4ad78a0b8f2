"""Several processes that train one network, started by mpirun.

usage: processes.py DARKNET STOCK PLUGIN CHECKOUT

DARKNET has the plugin in it. STOCK is Darknet's own program, which gets PLUGIN by LD_PRELOAD; CHECKOUT one whose
own Makefile linked it.

amp_reduce=ordered is, byte for byte, what one process trains; the default adds gradients up in another order.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests"))
import toyset
from ends import ranks_of

DARKNET, STOCK, PLUGIN, CHECKOUT = sys.argv[1:5]
WIRE = Path(STOCK).parent / "spread_wire"
AMP = "mixed_precision=1\n"
ORDERED = AMP + "amp_reduce=ordered\nseed=7\n"
FAST = AMP + "seed=7\n"
DROPOUT = ("[convolutional]\nsize=1", "[dropout]\nprobability=.3\n\n[convolutional]\nsize=1")
# Root may start processes only if it says so; more processes than cores; each may use all of them.
OPEN_MPI = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1",
                OMPI_MCA_hwloc_base_binding_policy="none", OMP_NUM_THREADS="1")


def make(folder, keys, subdivisions=4, batch=8, iterations=20, changes=(), **settings):
    toyset.make(folder, net_keys=keys, batch=batch, max_batches=iterations, **settings)
    for old, new in (("subdivisions=2", "subdivisions=%d" % subdivisions), *changes):
        change(folder, old, new)
    return folder


def change(folder, old, new):
    cfg = folder / "toy.cfg"
    assert old in cfg.read_text(), old
    cfg.write_text(cfg.read_text().replace(old, new))


def start(folder, n, *words, program=DARKNET, env={}):
    """n processes; 0: one, without mpirun."""
    command = ["mpirun", "-np", str(n)] if n else []
    if program == STOCK:
        command += ["env", "LD_PRELOAD=" + env.get("PRELOAD", PLUGIN)]  # not into mpirun itself
    command += [program, "detector", "train", "toy.data", "toy.cfg", *words]
    return subprocess.Popen([str(word) for word in command], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ, **OPEN_MPI, **env))


def end(process, status=0):
    out, said = process.communicate(timeout=1200)
    assert process.returncode == status, "status %d\n%s\n%s" % (process.returncode, out[-500:], said[-3000:])
    return out, said


def train(folder, n, *words, status=0, **settings):
    """Returns what was printed on stderr."""
    out, said = end(start(folder, n, *words, **settings), status)
    if status == 0:
        iterations = re.findall(r"^\d+: [\d.]+, ", out, re.M)
        assert iterations and len(iterations) == len(set(iterations)), "rank 0 alone prints\n" + out
        assert said.count("mixed precision plan: ") == said.count("iterations in ") == 1, said
    return said


def pair(folder, name="toy_final.weights"):
    return [(folder / "backup" / (name + kind)).read_bytes() for kind in ("", ".amp")]


def engine_layout():
    """The hash that plugin and module of MPI compare, as CMake makes it (plugin/spread)."""
    return hashlib.sha256((SOURCE / "plugin/spread/engine.h").read_bytes()).hexdigest()[:16]


def check_one_of_one(root):
    """mpirun -np 1 is one process: nothing of MPI is loaded."""
    one, launched = (make(root / name, FAST) for name in ("one", "launched"))
    train(one, 0)
    said = train(launched, 1)
    assert pair(one) == pair(launched) and "processes" not in said, said


def check_part_of_a_step(root):
    """Weights of another batch: 56 images are no whole number of steps of 6, so the last 2 count as not seen."""
    one = make(root / "one", FAST, iterations=7)
    train(one, 0)
    several = make(root / "several", FAST, subdivisions=3, batch=6, iterations=12)
    said = train(several, 3, one / "backup" / "toy_final.weights")
    assert said.count("have seen 56 images, which is no whole number of steps; counted as 54") == 1, said
    seen = int.from_bytes((several / "backup" / "toy_final.weights").read_bytes()[12:20], "little")
    assert seen == 72, seen


def check_other_state(root):
    """Nothing is trained if one of two hosts lacks NAME.amp, whatever the optimizer keeps in it."""
    for optimizer in "sgd", "adamw":
        one = make(root / optimizer, FAST + "optimizer=%s\n" % optimizer, iterations=3)
        train(one, 0)
        change(one, "max_batches=3", "max_batches=5")
        for rank in "01":
            (one / rank).mkdir()
            for name in ["toy_final.weights"] + ["toy_final.weights.amp"] * (rank == "0"):
                shutil.copy(one / "backup" / name, one / rank)
        command = 'cd $OMPI_COMM_WORLD_RANK; exec "$0" detector train ../toy.data ../toy.cfg toy_final.weights'
        process = subprocess.Popen(["mpirun", "-np", "2", "sh", "-c", command, DARKNET], cwd=one, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, **OPEN_MPI))
        said = end(process, 1)[1]
        assert "differ in their weights or training state" in said, (optimizer, said)


def check_other_ways_to_attach(root):
    for name, program in (("preloaded", STOCK), ("checkout", CHECKOUT)):
        one, several = make(root / name / "one", ORDERED), make(root / name / "several", ORDERED)
        train(one, 0, program=program)
        train(several, 3, program=program)
        assert pair(one) == pair(several), name


# ---- the default order ----


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b)) ** .5


def weights_of(folder):
    return toyset.read_weights(folder / "backup" / "toy_final.weights")


def trained(folder, n, keys, iterations, rate="0.001"):
    make(folder, keys, iterations=iterations)
    change(folder, "learning_rate=0.001", "learning_rate=" + rate)
    change(folder, "burn_in=10", "burn_in=0")
    train(folder, n)
    return weights_of(folder)


def check_default_order(root):
    """One step differs from one process's by rounding; fifty, which amplify it, by no more than one process's does
    from itself with another learning rate."""
    for dtype, most in (("fp32", 1e-5), ("fp16", 2e-3), ("bf16", 1e-2)):
        keys = FAST + "amp_dtype=%s\n" % dtype
        at = trained(root / dtype / "at", 0, keys, 1, "0")
        one = trained(root / dtype / "one", 0, keys, 1)
        for n in (2, 3, 4) if dtype == "fp32" else (3,):
            several = trained(root / dtype / str(n), n, keys, 1)
            far, step = distance(several, one), distance(one, at)
            assert far < most * step, "%s, %d processes: %g of a step" % (dtype, n, far / step)
            assert several != at
    keys = FAST + "amp_dtype=fp32\n"
    one, other = trained(root / "50", 0, keys, 50), trained(root / "50_other", 0, keys, 50, "0.001001")
    several = trained(root / "50_several", 3, keys, 50)
    assert distance(several, one) < distance(other, one), (distance(several, one), distance(other, one))


def check_scale(root):
    """What an overflow does to the loss scale does not depend on which process has it."""
    logs = []
    for n in (0, 3):
        folder = make(root / str(n), FAST + "amp_on_overflow=skip\nloss_scale_init=16777216\namp_log=log\n")
        train(folder, n)
        logs.append([json.loads(line) for line in (folder / "log").read_text().splitlines() if '"summary"' not in line])
    assert [[line[key] for key in ("iteration", "loss_scale", "skipped")] for line in logs[0]] == \
        [[line[key] for key in ("iteration", "loss_scale", "skipped")] for line in logs[1]]
    assert logs[0][-1]["skipped"] > 5
    assert abs(logs[0][0]["loss"] / logs[1][0]["loss"] - 1) < 1e-3, logs
    for line in logs[1]:
        assert line["slowest_rank"] in range(3), line
        assert 0 <= line["wait_seconds"] + line["reduce_seconds"] <= line["seconds"], line
    assert "wait_seconds" not in logs[0][0]


def layers_of(cfg):
    """Parameters and rolling statistics of a cfg whose layers follow each other."""
    channels, parameters, rolling = 3, 0, 0
    for section in cfg.split("[convolutional]")[1:]:
        keys = dict(re.findall(r"^(\w+)=(\w+)$", section.partition("[")[0], re.M))
        filters, size, normalized = int(keys["filters"]), int(keys["size"]), "batch_normalize" in keys
        parameters += filters * (channels * size ** 2 + 1 + normalized)
        rolling += 2 * filters * normalized
        channels = filters
    return parameters, rolling


def check_bytes(root):
    """A step hands over 4 bytes of each parameter (with amp_wire=bf16 2), 8 of each rolling statistic, and a vote; a
    skipped one a vote."""
    cfg = (SOURCE / "cfg" / "small160.cfg").read_text()
    for old, new in (("batch=16", "batch=2"), ("subdivisions=1", "subdivisions=2"), ("max_batches=500", "max_batches=14")):
        assert old in cfg, old
        cfg = cfg.replace(old, new)
    parameters, rolling = layers_of(cfg)
    keys = FAST + "amp_dtype=fp16\namp_on_overflow=skip\nloss_scale_init=16777216\nloss_scale_backoff=0.25\namp_log=log\n"
    for wire, size in ("fp32", 4), ("bf16", 2):
        folder = make(root / wire, "")
        (folder / "toy.data").write_text((folder / "toy.data").read_text().replace("classes=2", "classes=3"))
        (folder / "toy.names").write_text("red\nblue\nnone\n")
        (folder / "toy.cfg").write_text(cfg.replace("[net]\n", "[net]\namp_wire=%s\n" % wire + keys))
        train(folder, 2)
        skipped, steps = 0, {False: set(), True: set()}
        for line in map(json.loads, (folder / "log").read_text().splitlines()[:-1]):  # the last is the summary
            steps[line["skipped"] > skipped].add(line["exchanged_bytes"])
            skipped = line["skipped"]
        assert len(steps[True]) == len(steps[False]) == 1, steps
        vote = steps[True].pop()
        assert steps[False] == {size * parameters + 8 * rolling + vote} and vote < 1000, (steps, parameters, rolling, vote)


def check_wire(root):
    """amp_wire=bf16: sums within their bound; a step that differs by no more than the gradients that it is made of;
    the same weights in all processes, which are compared at iteration 100."""
    seed = os.environ.get("AMP_TEST_SEED", str(time.time_ns() // 1000 % 1000000))
    print("AMP_TEST_SEED=" + seed)
    for n in 2, 3, 4:
        end(subprocess.Popen(["mpirun", "-np", str(n), WIRE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=dict(os.environ, **OPEN_MPI, LD_LIBRARY_PATH=Path(PLUGIN).parent, AMP_TEST_SEED=seed)))
    # 2^-7 of the parts' magnitude, which is less than three times that of their sum.
    keys = FAST + "amp_dtype=fp32\n"
    at = trained(root / "at", 0, keys, 1, "0")
    exact, rounded = (trained(root / wire, 3, keys + "amp_wire=%s\n" % wire, 1) for wire in ("fp32", "bf16"))
    far, step = distance(rounded, exact), distance(exact, at)
    assert 0 < far < 3 * 2 ** -7 * step, far / step
    train(make(root / "long", FAST + "amp_wire=bf16\n", iterations=101, subdivisions=3, batch=6), 3)
    folder = make(root / "refused", ORDERED + "amp_wire=bf16\n")
    refused(folder, 2, "amp_wire=bf16: amp_reduce=ordered in line ", "needs amp_wire=fp32")


def check_without_seed(root):
    """Rank 0 draws one for all, and says which."""
    folder = make(root / "chosen", AMP + "amp_reduce=ordered\n")
    said = train(folder, 3)
    seed = re.findall(r"all processes use seed=(\d+), which was drawn now", said)
    assert len(seed) == 1, said
    again = make(root / "again", AMP + "amp_reduce=ordered\nseed=%s\n" % seed[0])
    train(again, 0)
    assert pair(folder) == pair(again)


def check_long(root):
    """The weights of all processes are compared every 100 iterations; rank 0 saves."""
    folder = make(root / "long", FAST, iterations=101, subdivisions=3, batch=6)
    said = train(folder, 3)
    assert said.count("Saved as ") == 3, said  # backup, 100, final
    assert sorted(path.name for path in (folder / "backup").iterdir()) == [
        "toy.backup", "toy.backup.amp", "toy_100.weights", "toy_final.weights", "toy_final.weights.amp"]


# ---- -map ----


def measured(out):
    return [re.sub(r"[\d.]+ s$", "", line) for line in out.splitlines() if line.startswith("mAP at iteration")]


def start_map(folder, n, words="-map_every 100"):
    """Each rank has images of its own to measure on."""
    command = 'cd ${OMPI_COMM_WORLD_RANK:-0}; exec "$0" detector train ../toy.data ../toy.cfg -map ' + words
    launcher = ["mpirun", "-np", str(n)] if n else []
    return subprocess.Popen([*launcher, "sh", "-c", command, DARKNET], cwd=folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=dict(os.environ, **OPEN_MPI))


def make_map(folder, keys, ranks):
    make(folder, keys + "amp_dtype=fp32\namp_log=log\n", iterations=300)
    change(folder, "learning_rate=0.001", "learning_rate=0.002")
    data = folder / "toy.data"
    data.write_text(re.sub("valid=.*", "valid=valid.txt", data.read_text()))
    names = [path.name for path in sorted(folder.glob("image*.png"))]
    for rank in range(ranks):
        (folder / str(rank)).mkdir()
        for name in names:
            for path in folder.glob(Path(name).stem + ".*"):
                shutil.copy(path, folder / str(rank) / path.name)
        (folder / str(rank) / "valid.txt").write_text("\n".join(names) + "\n")
    return folder


def break_image(folder, rank, index):
    (folder / str(rank) / ("image%03d.png" % index)).write_bytes(b"P6 no image")


def check_map(root):
    """Each process measures its share of the images, in their order: with 8 images and 3 processes 0-1, 2-4, 5-7. The
    figure is one process's. What a process does not measure it does not read."""
    one, several = make_map(root / "one", ORDERED, 1), make_map(root / "several", ORDERED, 3)
    expected = measured(end(start_map(one, 0))[0])
    for rank, others in ((1, (0, 1, 5, 6, 7)), (2, (0, 1, 2, 3, 4))):
        for index in others:
            break_image(several, rank, index)
    out, said = end(start_map(several, 3))
    assert len(expected) == 3 and re.search("mAP@0.5 [1-9]", "".join(expected)), expected
    assert [line.replace("several", "one") for line in measured(out)] == expected, (expected, out)
    for name in "toy_best.json", "toy_best.weights", "toy_final.weights":
        assert (one / "backup" / name).read_bytes() == (several / "backup" / name).read_bytes(), name
    logs = [[line.get("evaluation", {}).get("map50") for line in map(json.loads, (folder / "0" / "log").read_text().splitlines())]
            for folder in (one, several)]
    assert logs[0] == logs[1] and any(logs[0]), logs
    broken = make_map(root / "broken", FAST, 3)
    break_image(broken, 2, 6)
    out, said = end(start_map(broken, 3), 1)
    assert re.search(r"rank 2 on \S+ cannot go on, in iteration 100: image \"image006.png\" cannot be read or decoded.*The "
                     r"state after iteration 100 is saved", said), said
    assert not measured(out), out


def check_patience(root):
    """A rate that learns nothing more: all processes end, as after max_batches."""
    folder = make_map(root / "patient", FAST, 2)
    change(folder, "learning_rate=0.002", "learning_rate=0")
    out, said = end(start_map(folder, 2, "-map_every 10 -patience 2"))
    told = re.search(r"\(-patience 2\): training ends at iteration (\d+); the best was iteration (\d+)", said)
    assert told and int(told[1]) == int(told[2]) + 20 < 300 and said.count("training ends") == 1, said
    assert measured(out)[-1].startswith("mAP at iteration %s:" % told[1]), out
    assert (folder / "backup" / "toy_final.weights").exists() and "mpirun has exited" not in said, said


# ---- faults of one process ----


def check_bad_label(root):
    """A label that is no number, in an image of some pass: the step is skipped in all, and rank 0 names the image.
    (DARKNET would look at the labels before.)"""
    runs = []
    for n in (0, 4):
        folder = make(root / str(n), ORDERED)
        (folder / "image003.txt").write_text("1 nan nan .2 .2\n")
        said = train(folder, n, program=STOCK)
        bad = [line for line in said.splitlines() if "image003.png" in line]
        assert bad and all("step skipped" in line for line in bad), said
        runs.append(pair(folder))
        assert n == 0 or any("rank " in line for line in bad), said
    assert runs[0] == runs[1]
    folder = make(root / "fast", FAST + "amp_log=log\n")
    (folder / "image003.txt").write_text("1 nan nan .2 .2\n")
    said = train(folder, 4, program=STOCK)
    last = json.loads((folder / "log").read_text().splitlines()[-2])  # the last one is the summary
    assert last["skipped"] > 0 and said.count("image003.png") >= last["skipped"], (last, said)


def check_failing(root):
    """A file that goes ends the run on all, with its name, and leaves the files of before."""
    folder = make(root / "gone", FAST, iterations=1000000)
    process = start(folder, 3)
    for line in process.stdout:
        if (folder / "backup" / "toy.backup.amp").exists():
            break
    for path in folder.glob("*.png"):
        path.unlink()
    said = end(process, 1)[1]
    assert re.search(r"darknet-amp: (rank [12] on \S+: )?.*image00\d.png", said), said
    assert toyset.read_weights(folder / "backup" / "toy.backup")


# ---- signals ----


def check_stopped(root):
    """A signal to any process: all finish the step, rank 0 saves, and the run goes on from there."""
    whole = make(root / "whole", ORDERED, iterations=60)
    train(whole, 0)
    for rank in (0, 2):
        folder = make(root / str(rank), ORDERED, iterations=60)
        process = start(folder, 3)
        for line in process.stdout:
            if line.startswith("4: "):
                break
        os.kill(ranks_of(process)[rank], signal.SIGTERM)
        said = end(process, 128 + signal.SIGTERM)[1]
        stopped = re.findall(r"stopped by SIGTERM after iteration (\d+)\. .*: toy.cfg (\S+)\n", said)
        assert len(stopped) == 1, said
        train(folder, 2, stopped[0][1])
        assert pair(folder) == pair(whole), rank


def check_launcher_stopped(root):
    """A signal to mpirun, which then reads no more of what rank 0 prints: it saves all the same, and the run goes on
    from there. mpirun gives it 10 s in place of 1, for a busy machine."""
    whole = make(root / "whole", ORDERED, iterations=600)
    train(whole, 0)
    folders = {number: make(root / number.name, ORDERED, iterations=600) for number in (signal.SIGTERM, signal.SIGINT)}
    started = [(number, start(folder, 2, env=dict(OMPI_MCA_odls_base_sigkill_timeout="10")))
               for number, folder in folders.items()]
    for number, process in started:
        for line in process.stdout:
            if line.startswith("4: "):
                break
        process.send_signal(number)
        threading.Thread(target=process.stdout.read).start()
    for number, process in started:
        said, saved = process.stderr.read(), folders[number] / "backup" / "toy.backup"
        assert process.wait() and saved.exists(), (number, said)
        train(folders[number], 0, saved)
        assert pair(folders[number]) == pair(whole), number


def refused(folder, n, *expected, **settings):
    said = train(folder, n, status=1, **settings)
    for words in expected:
        assert words in said, (words, said)
    assert not any((folder / "backup").iterdir()), said


def check_diverged(root):
    """All stop together, rank 0 says why once, and the files of before stay."""
    folder = make(root / "diverged", FAST + "amp_dtype=fp32\n", iterations=1000)
    change(folder, "learning_rate=0.001", "learning_rate=1e12")
    change(folder, "burn_in=10", "burn_in=0")
    said = end(start(folder, 3), 1)[1]
    assert said.count("training diverged") == 1, said
    assert not re.search(r"\brank \d", said) and "mpirun noticed" not in said, said
    assert not (folder / "backup" / "toy_final.weights").exists()


def check_gpus(root):
    """-gpus 0,1 starts a process for each, with -map as well; with no mpirun in the PATH it says what to install."""
    folder, two = make(root / "gpus", FAST), make(root / "two", FAST)
    command = [DARKNET, "detector", "train", "toy.data", "toy.cfg", "-gpus", "0,1", "-map"]
    root_only = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " if os.geteuid() == 0 else ""
    out, said = end(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     env=dict(os.environ, **OPEN_MPI)))
    assert "darknet-amp: -gpus 0,1 with mixed_precision=1 is a process for each GPU: %smpirun -np 2 --bind-to none " \
        "%s detector train toy.data toy.cfg -gpus 0,1 -map\n" % (root_only, DARKNET) in said, said
    assert said.count("2 processes train this network") == 1 and (folder / "backup" / "toy_best.weights").exists(), said
    train(two, 2)
    assert pair(folder) == pair(two)
    (root / "empty").mkdir()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, PATH=str(root / "empty")))
    assert done.returncode == 1 and "no mpirun in the PATH: install openmpi-bin" in done.stderr, done.stderr
    # More processes of a host than GPUs named.
    done = subprocess.run(["mpirun", "-np", "3", *command], cwd=folder, capture_output=True, text=True,
                          env=dict(os.environ, **OPEN_MPI))
    assert done.returncode == 1 and "-gpus 0,1 names 2 GPUs, and this is process 3 of its host" in done.stderr


def skip_without_mpi():
    module = Path(PLUGIN).parent / "libdarknet_amp_mpi.so"
    if not shutil.which("mpirun") or not module.exists():
        print("SKIPPED several processes: no %s; install openmpi-bin and libopenmpi-dev"
              % ("mpirun" if module.exists() else module.name))
        sys.exit(77)


def run_checks(known, usual, *arguments):
    """Each in a folder of its own. Words of the command line choose others, for a developer."""
    chosen = [known[word] for word in sys.argv[1:] if word.startswith("check_")]
    with tempfile.TemporaryDirectory() as root:
        for check in chosen or usual:
            began = time.monotonic()
            check(Path(root) / check.__name__, *arguments)
            print("%s: %.1f s" % (check.__name__, time.monotonic() - began), flush=True)


def main():
    skip_without_mpi()
    run_checks(globals(), [
        check_one_of_one, check_part_of_a_step, check_other_state, check_other_ways_to_attach, check_default_order,
        check_scale, check_bytes, check_wire, check_without_seed, check_long, check_map, check_patience,
        check_bad_label, check_failing, check_stopped, check_launcher_stopped, check_diverged, check_gpus])


if __name__ == "__main__":
    main()
