"""What several processes refuse at the start, and that each says so with its own name.

usage: refused.py DARKNET STOCK PLUGIN CHECKOUT

As processes.py.
"""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import processes
from processes import AMP, DARKNET, FAST, OPEN_MPI, PLUGIN, STOCK, change, end, engine_layout, make, refused, start, train

FIXED = Path(STOCK).parent / "fixed_training_linked"
OWN_NAME = "rank 1 on %s: " % socket.gethostname()


def launch(folder, n, *words):
    return subprocess.Popen(["mpirun", "-np", str(n), *map(str, words)], cwd=folder, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ, **OPEN_MPI))


def launch_others(folder, preload, program, *others):
    """Rank 1 gets other words after `detector train` than toy.data toy.cfg."""
    (folder / "rank.sh").write_text('program="$1"; shift\n[ $OMPI_COMM_WORLD_RANK = 0 ] && set -- toy.data toy.cfg\n'
                                    'LD_PRELOAD="%s" exec "$program" detector train "$@"\n' % preload)
    return launch(folder, 2, "sh", "rank.sh", program, *others)


# ---- nets, programs, commands ----


def train_fixed(folder):
    said = end(launch(folder, 2, FIXED, "toy.cfg", "3", "out.weights"), 1)[1]
    assert not (folder / "out.weights").exists()
    return said


def check_refused_nets(root):
    """Nets and trainers that several processes cannot train."""
    recurrent = make(root / "recurrent", FAST)
    flat, image = "inputs=16\n", "width=4\nheight=4\nchannels=2\n"
    state, conv = "output=16\nhidden=16\nactivation=tanh\n", "[convolutional]\nfilters=2\nsize=3\npad=1\n\n"
    for kind, inputs, before, keys in (("rnn", flat, "", state), ("gru", flat, "", "output=16\n"),
                                       ("lstm", flat, "", "output=16\n"),
                                       ("crnn", image, conv, "hidden_filters=2\noutput_filters=2\nactivation=leaky\n")):
        (recurrent / "toy.cfg").write_text("[net]\nbatch=8\nsubdivisions=4\n%s%s\n%s[%s]\n%s\n[softmax]\n\n[cost]\ntype=sse\n"
                                           % (inputs, FAST, before, kind, keys))
        assert "layer %d (%s) hands its state from one pass to the next; several processes cannot train that: start it " \
            "without mpirun or srun" % (bool(before), kind) in train_fixed(recurrent)
    # fixed_training makes its images itself.
    assert "this program trains on 8 images a step that it did not load with load_data one by one, 4 are this " \
        "process's: several processes cannot train with it; start one" in train_fixed(make(root / "trainer", FAST))


def check_commands(root):
    folder = make(root / "plain", "seed=7\n")
    refused(folder, 2, "Open MPI's mpirun started 2 processes; several train together only with mixed_precision=1")
    said = end(launch(folder, 2, DARKNET, "detector", "map", "toy.data", "toy.cfg", "x"), 1)[1]
    assert "started 2 processes of `darknet detector map`: only training is shared out" in said, said


# ---- processes that differ ----


def check_differing(root):
    """In the cfg file, or in the list of images."""
    folder = make(root, FAST)
    (folder / "other.cfg").write_text((folder / "toy.cfg").read_text() + "\n# not the same\n")
    images = (folder / "train.txt").read_text().splitlines()
    (folder / "other.txt").write_text("\n".join(images[1:] + images[:1]) + "\n")
    data = (folder / "toy.data").read_text()
    (folder / "other.data").write_text(data.replace("train=%s" % (folder / "train.txt"), "train=other.txt"))
    for words, what in (("toy.data", "other.cfg"), "cfg file"), (("other.data", "toy.cfg"), "list of training images"):
        for preload, program in (("", DARKNET), (PLUGIN, STOCK)):
            said = end(launch_others(folder, preload, program, *words), 1)[1]
            assert re.search(r"nothing was trained: rank 1 on \S+ and rank 0 on \S+ differ in their %s\n" % what, said), said
            assert not any((folder / "backup").iterdir()), said


# ---- who says what ----


def check_names(root):
    """Notes on the cfg, which all have read before they find each other, come from rank 0; what another rank finds wrong
    until then comes with its name."""
    folder = make(root / "note", FAST + "amp_dtype=bf16\nloss_scale=128\n")
    one = train(folder, 0)
    notes = re.findall(r"^darknet-amp: toy.cfg:.*$", one, re.M)
    assert notes, one
    for program in DARKNET, STOCK:
        said = train(folder, 3, program=program)
        assert [said.count(note) for note in notes] == [1] * len(notes), said

    folder = make(root / "wrong", FAST)
    (folder / "other.cfg").write_text((folder / "toy.cfg").read_text().replace(AMP, AMP + "amp_dtype=fp17\n"))
    for preload, program in (("", DARKNET), (PLUGIN, STOCK)):
        said = end(launch_others(folder, preload, program, "toy.data", "other.cfg"), 1)[1]
        assert "darknet-amp: %sother.cfg:" % OWN_NAME in said and said.count("fp17") == 1, said
    for words in ("toy.data", "toy.cfg", "-clera"), ("toy.data", "toy.cfg", "toy.weights", "-gpus", "a"):
        said = end(launch_others(folder, "", DARKNET, *words), 1)[1]
        assert "error: " + OWN_NAME in said and said.count("error: ") == 1, said
    # A file that Darknet itself cannot open, when this rank is silent already.
    (folder / "other.data").write_text((folder / "toy.data").read_text().replace("train=", "train=absent"))
    said = end(launch_others(folder, PLUGIN, STOCK, "other.data", "toy.cfg"), 1)[1]
    assert re.search(r"darknet-amp: %sabsent\S*train.txt: No such file or directory" % OWN_NAME, said), said
    # What -map needs is looked at then too.
    (folder / "other.data").write_text((folder / "toy.data").read_text().replace("valid=", "valid=absent"))
    said = end(launch_others(folder, "", DARKNET, "other.data", "toy.cfg", "-map"), 1)[1]
    assert "error: %sother.data" % OWN_NAME in said, said


# ---- MPI ----


def launch_preloaded(folder, library):
    return launch(folder, 2, "env", "LD_PRELOAD=%s" % (library / "libdarknet_amp.so"), STOCK, "detector", "train", "toy.data",
                  "toy.cfg")


def check_without_mpi(root):
    """No launcher: no MPI in the process. A launcher without our module: named."""
    folder = make(root / "none", FAST, iterations=100000)
    process = start(folder, 0)
    process.stdout.readline()
    while "images" not in process.stdout.readline():
        pass
    maps = Path("/proc/%d/maps" % process.pid).read_text()
    process.kill()
    process.communicate()
    assert "libdarknet_amp.so" in maps and "libmpi" not in maps and "libdarknet_amp_mpi" not in maps
    bare = root / "bare"
    bare.mkdir()
    shutil.copy(PLUGIN, bare / "libdarknet_amp.so")
    said = end(launch_preloaded(folder, bare), 1)[1]
    assert "started 2 processes, and libdarknet_amp_mpi.so cannot be loaded" in said, said


def check_other_mpi(root):
    """A launcher whose processes do not find each other, as MPICH's do not with Open MPI's library."""
    said = train(make(root, FAST), 0, env=dict(PMI_RANK="1", PMI_SIZE="2"), status=1)
    assert re.search(r"rank 1 on \S+: MPICH's mpirun started 2 processes, but MPI sees 1", said), said


def check_other_build(root):
    """A module whose table of functions is another one's."""
    folder, other = make(root / "set", FAST), root / "other"
    other.mkdir()
    shutil.copy(PLUGIN, other / "libdarknet_amp.so")
    module = (Path(PLUGIN).parent / "libdarknet_amp_mpi.so").read_bytes()
    layout = bytes.fromhex(engine_layout())
    assert module.count(layout[::-1]) == 1, "the module has another hash of engine.h"
    (other / "libdarknet_amp_mpi.so").write_bytes(module.replace(layout[::-1], layout))
    said = end(launch_preloaded(folder, other), 1)[1]
    assert "%s is of another build than %s: build both again" % (other / "libdarknet_amp_mpi.so",
                                                                 other / "libdarknet_amp.so") in said, said
    assert not any((folder / "backup").iterdir()), said


def main():
    processes.skip_without_mpi()
    processes.run_checks(globals(), [check_refused_nets, check_commands, check_differing, check_names, check_without_mpi,
                                     check_other_mpi, check_other_build])


if __name__ == "__main__":
    main()
