"""`darknet detector train` that is stopped by signals and goes on from what it saved then is the run
that never stopped, byte for byte; and stopping as it is done in practice: while images are loaded,
with `nohup`, with `timeout`, when the reader of the output has gone. The same for a run whose images
or labels go while it trains.

usage: stopped.py DARKNET SAVED_FILES [--rounds N] [--seed S]
"""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset

AMP = "mixed_precision=1\nseed=7\n"
STOPPED = re.compile(r"stopped by (\w+) after iteration (\d+)\. To go on .*: toy\.cfg (\S+)\n")
BEGUN = "mixed precision: 100.0 %"


def start(args, folder, weights=None, before=(), stdout=None):
    command = [*before, args.darknet, "detector", "train", "toy.data", "toy.cfg"]
    with open(folder / "said", "w") as error, open(folder / "out", "w") as out:
        return subprocess.Popen(command + ([weights] if weights else []), cwd=folder,
                                stdout=stdout or out, stderr=error,
                                env=dict(os.environ, OMP_NUM_THREADS="2"))


def said(folder):
    return (folder / "said").read_text()


def wait_for(process, folder, words):
    while words not in said(folder):
        assert process.poll() is None, said(folder)
        time.sleep(.002)


def end(process, folder, status):
    found = process.wait(timeout=1200)
    assert found == status, "status %d\n%s" % (found, said(folder))


def check_saved(args, folder, found):
    """Returns the iteration and the file of the one message, which are those of a good pair."""
    assert len(found) == 1, said(folder)
    iteration, path = int(found[0][-2]), Path(found[0][-1])
    size = path.stat().st_size
    listed = subprocess.run([args.saved_files, path.parent, str(size)], check=True, text=True,
                            capture_output=True).stdout
    assert "pair %s %d\n" % (path.name, iteration * 4) in listed, listed
    return iteration, path


def check_stopped(args, folder, name):
    found = STOPPED.findall(said(folder))
    assert found and found[0][0] == name, said(folder)
    return check_saved(args, folder, found)


def pair(folder):
    return [(folder / "backup" / ("toy_final.weights" + kind)).read_bytes() for kind in ("", ".amp")]


def stop_now_and_then(args, rng, folder, rounds):
    """Up to that many stops at random moments; then the run goes on to its end. Returns how many of
    the signals stopped it, and how many found that nothing had been trained yet."""
    weights, stops, early = None, 0, 0
    for i in range(rounds):
        process, number = start(args, folder, weights), rng.choice((2, 15, 1, 24))
        trained = "resumed from " if weights else "start-up search done"
        wait_for(process, folder, BEGUN if i % 2 else trained)
        time.sleep(rng.uniform(0, .25))
        process.send_signal(number)
        status = process.wait(timeout=1200)
        if status == 0:  # it had come to its end
            return stops, early
        if status == -number:  # as without the plugin: no pass had begun
            early += 1
            assert "iterations in" not in said(folder), said(folder)
            continue
        assert status == 128 + number, "status %d\n%s" % (status, said(folder))
        assert weights is None or "resumed from " in said(folder), said(folder)
        weights = check_stopped(args, folder, signal.Signals(number).name)[1]
        stops += 1
    end(start(args, folder, weights), folder, 0)
    return stops, early


def check_goes_on(args, rng, root):
    for name, keys in (("sgd", ""), ("adam", "adam=1\n")):
        settings = dict(net_keys=AMP + "loss_scale_window=30\n" + keys, max_batches=600)
        whole = toyset.make(root / name / "whole", **settings)
        stopped = toyset.make(root / name / "stopped", **settings)
        end(start(args, whole), whole, 0)
        stops, early = stop_now_and_then(args, rng, stopped, args.rounds)
        assert pair(whole) == pair(stopped), name
        print("%s: stopped %d times, %d of the signals came before the first pass" % (
            name, stops, early))
        assert stops, "no signal came in time"


def make_large(folder, **settings):
    """Images that take longer to load than to train on."""
    toyset.make(folder, images=2, max_batches=100000, **settings)
    for path in sorted(folder.glob("*.png")):
        toyset.write_png(path, 1500, 1500, bytes(1500 * 1500 * 3))
    return folder


def check_while_loading(args, root):
    """Nothing is trained after the signal; that nobody reads the output any more does not matter."""
    folder = make_large(root / "loading", net_keys=AMP)
    process = start(args, folder)
    wait_for(process, folder, "start-up search done")
    time.sleep(.1)
    process.send_signal(signal.SIGINT)
    wait_for(process, folder, "told to stop: ")
    end(process, folder, 128 + signal.SIGINT)
    iteration, _ = check_stopped(args, folder, "SIGINT")
    assert (folder / "out").read_text().count("Loaded: ") == iteration > 0

    process = start(args, folder, stdout=subprocess.PIPE)
    wait_for(process, folder, "start-up search done")
    process.send_signal(signal.SIGINT)
    wait_for(process, folder, "told to stop: ")
    process.stdout.close()
    end(process, folder, 128 + signal.SIGINT)
    check_stopped(args, folder, "SIGINT")


def check_head(args, root):
    """`darknet ... 2>&1 | head`: the reader of all output goes, and no signal is sent."""
    for both in (False, True):
        folder = toyset.make(root / ("head%d" % both), net_keys=AMP, max_batches=100000)
        with open(folder / "said", "w") as error:
            process = subprocess.Popen(
                [args.darknet, "detector", "train", "toy.data", "toy.cfg"], cwd=folder,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT if both else error,
                env=dict(os.environ, OMP_NUM_THREADS="2"))
        while b"Loaded: " not in process.stdout.readline():
            pass
        process.stdout.close()
        end(process, folder, 128 + signal.SIGPIPE)
        if not both:
            check_stopped(args, folder, "SIGPIPE")
        assert (folder / "backup" / "toy.backup.amp").exists(), both


def check_practice(args, root):
    folder = toyset.make(root / "practice", net_keys=AMP, max_batches=100000)
    process = start(args, folder, before=["nohup"])
    wait_for(process, folder, "start-up search done")
    process.send_signal(signal.SIGHUP)
    time.sleep(.2)
    process.send_signal(signal.SIGTERM)
    end(process, folder, 128 + signal.SIGTERM)
    check_stopped(args, folder, "SIGTERM")
    # It passes the signal on to the program, and to its group, at once.
    process = start(args, folder, before=["timeout", "1000"])
    wait_for(process, folder, "start-up search done")
    process.terminate()
    end(process, folder, 128 + signal.SIGTERM)
    check_stopped(args, folder, "SIGTERM")


def check_lost_files(args, root):
    """Labels and images that go while it trains: named, and the last backup is whole."""
    for kind, why in ((".txt", "%s: cannot be opened: "), (".png", 'image "%s" cannot be read')):
        folder = toyset.make(root / kind[1:], net_keys=AMP, max_batches=100000)
        process = start(args, folder)
        while not (folder / "backup" / "toy.backup.amp").exists():  # Darknet's of iteration 100
            assert process.poll() is None, said(folder)
            time.sleep(.01)
        files = sorted(folder.glob("image*" + kind))
        for path in files:
            path.rename(path.with_suffix(".gone"))
        end(process, folder, 1)
        assert any(why % path in said(folder) for path in files), said(folder)
        for path_of in files:
            path_of.with_suffix(".gone").rename(path_of)
        process = start(args, folder, "backup/toy.backup")
        wait_for(process, folder, "resumed from backup/toy.backup.amp: iteration ")
        process.terminate()
        process.wait(timeout=1200)


def check_one_at_a_time(args, root):
    """Two trainings that would write the same files: the second is refused; in a folder of its own,
    or when the first has ended, it is not."""
    folder = toyset.make(root / "two", net_keys=AMP, max_batches=100000)
    first = start(args, folder)
    wait_for(first, folder, "start-up search done")
    other = toyset.make(root / "other", net_keys=AMP, max_batches=100000)
    data = (other / "toy.data").read_text()
    (other / "toy.data").write_text(re.sub("backup *=.*", "backup=%s/./backup" % folder, data))
    first.send_signal(signal.SIGSTOP)  # it writes nothing meanwhile
    saved = sorted((folder / "backup").iterdir())
    second = start(args, other)
    end(second, other, 1)
    assert ("toy.cfg: process %d is training toy and saves to the same folder, " % first.pid
            in said(other)), said(other)
    assert sorted((folder / "backup").iterdir()) == saved
    first.send_signal(signal.SIGCONT)
    (other / "toy.data").write_text(data)
    second = start(args, other)
    wait_for(second, other, "start-up search done")
    for process, of in (second, other), (first, folder):
        process.kill()
        process.wait(timeout=120)
        assert "is training" not in said(of)
    first = start(args, folder)
    wait_for(first, folder, "start-up search done")
    first.kill()
    first.wait(timeout=120)


def check_without_the_key(args, root):
    """The weights are saved alone (trainer_stops.py has more)."""
    folder = toyset.make(root / "stock", max_batches=100000)
    process = start(args, folder, stdout=subprocess.PIPE)
    while b"Loaded" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGTERM)
    end(process, folder, 128 + signal.SIGTERM)
    assert [found[0] for found in STOPPED.findall(said(folder))] == ["SIGTERM"], said(folder)
    assert [path.name for path in (folder / "backup").iterdir()] == ["toy.backup"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("darknet")
    parser.add_argument("saved_files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    args = parser.parse_args()
    print("--rounds %d --seed %d" % (args.rounds, args.seed), flush=True)
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        check_goes_on(args, rng, root)
        check_while_loading(args, root)
        check_head(args, root)
        check_practice(args, root)
        check_lost_files(args, root)
        check_one_at_a_time(args, root)
        check_without_the_key(args, root)


main()
