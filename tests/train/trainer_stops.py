"""Ctrl-C of every kind of trainer, with mixed_precision=1 and without: the iteration is finished, the weights are saved
where the trainer saves, status 130, and the same command goes on from the file that is named. `rnn train` and the others
with a fixed folder save to -backup's.

usage: trainer_stops.py DARKNET
"""

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

STOPPED = re.compile(r"stopped by (\w+) after iteration (\d+)\. To go on .*: t\.cfg (\S+)\n")
PRINTED = re.compile(r"^ *(\d+)[,:] .* avg", re.M)
NET = "[net]\nbatch=4\nsubdivisions=2\nlearning_rate=0.001\nmax_batches={most}\n{key}\n"
CLASSIFIER = "width=16\nheight=16\nchannels=3\n[convolutional]\nfilters=2\n[avgpool]\n[softmax]\n"
RNN = "inputs=256\ntime_steps=2\n[gru]\noutput=8\n[connected]\noutput=256\nactivation=linear\n[softmax]\n"
# The trainer, what its cfg is besides NET, its max_batches (0: classifier train never ends), and its words.
TRAINERS = (("classifier", CLASSIFIER, 0, ("t.data", "t.cfg")),
            ("rnn", RNN, 10**6, ("t.cfg", "-file", "text.txt", "-backup", "backup")),
            ("detector", None, 10**6, ("toy.data", "t.cfg")))


def write_set(folder, layers, most, key):
    toyset.make(folder, max_batches=most, net_keys=key)
    if not layers:
        return (folder / "toy.cfg").rename(folder / "t.cfg")
    (folder / "t.cfg").write_text(NET.format(most=most, key=key) + layers)
    rng = random.Random(1)
    for i in range(4):
        toyset.write_image(folder / f"{i}_{('cat', 'dog')[i % 2]}.png", rng, 32)
    (folder / "list.txt").write_text("".join(f"{i}_{('cat', 'dog')[i % 2]}.png\n" for i in range(4)))
    (folder / "labels.txt").write_text("cat\ndog\n")
    (folder / "t.data").write_text("classes=2\ntrain=list.txt\nlabels=labels.txt\nbackup=backup\n")
    return (folder / "text.txt").write_text("the cat sat on the mat. " * 50)


def stop(folder, trainer, words, number):
    """When it has trained; returns the iteration and the file that the message names."""
    output = folder / "said"
    with output.open("w") as said:
        process = subprocess.Popen(["stdbuf", "-oL", sys.argv[1], trainer, "train", *words], cwd=folder, stdout=said,
                                   stderr=said)
    while not PRINTED.search(output.read_text()):
        assert process.poll() is None, output.read_text()
        time.sleep(.01)
    process.send_signal(number)
    status = process.wait(timeout=1200)
    found = STOPPED.findall(output.read_text())
    assert status == 128 + number and len(found) == 1, (status, output.read_text()[-3000:])
    assert found[0][0] == number.name and (folder / found[0][2]).is_file(), found
    return int(found[0][1]), found[0][2]


def main():
    with tempfile.TemporaryDirectory() as root:
        for trainer, layers, most, words in TRAINERS:
            for key in ("", "mixed_precision=1\nseed=1"):
                folder = Path(root) / f"{trainer}{len(key)}"
                write_set(folder, layers, most, key)
                before, file = stop(folder, trainer, words, signal.SIGINT)
                assert Path(file).parent.name == "backup" and Path(file).name == "t.backup", file
                assert (folder / (file + ".amp")).is_file() == bool(key), list((folder / "backup").iterdir())
                place = words.index("t.cfg") + 1
                after, again = stop(folder, trainer, (*words[:place], file, *words[place:]), signal.SIGTERM)
                assert after > before and again == file, (before, after, again)
                # Weights of another run stay, unless the trainer has come to a backup of its own.
                kept = (folder / file).read_bytes()
                _, other = stop(folder, trainer, words, signal.SIGINT)
                stays = other.endswith("/t_stopped.backup") and (folder / file).read_bytes() == kept
                said = (folder / "said").read_text()
                saves = len(re.findall(rf"^(Saved as|Saving weights to) {re.escape(file)}$", said, re.M))
                assert stays or saves > 1, said[-3000:]


main()
