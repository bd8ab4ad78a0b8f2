"""Other launchers than Open MPI's mpirun: srun of Slurm, and MPICH with the engine built for it.

usage: launchers.py DARKNET STOCK PLUGIN CHECKOUT SOURCE

As processes.py; SOURCE is the root of the project. What is not installed is skipped, with its reason.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import processes
import slurm
from processes import DARKNET, FAST, ORDERED, PLUGIN, STOCK, change, end, engine_layout, make, pair, train

SOURCE = Path(sys.argv[5])
# The default depends on max_batches, which differs between a run that is stopped and one that is not.
WINDOW = ORDERED + "loss_scale_init=2\nloss_scale_window=30\n"
TRAIN = ["detector", "train", "toy.data", "toy.cfg"]


def launch(folder, env, *words):
    return subprocess.Popen([str(word) for word in words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=dict(env, OMP_NUM_THREADS="1"))


# ---- Slurm ----


def job_of(env):
    return subprocess.run(["squeue", "-h", "-o", "%i"], env=env, capture_output=True, text=True).stdout.strip()


def check_slurm(root):
    """Processes of srun are one network's; scancel's signal ends them as any signal does."""
    if slurm.skip_if_missing("srun"):
        return
    whole = make(root / "whole", ORDERED, iterations=60)
    train(whole, 0)
    several, stopped = make(root / "several", ORDERED, iterations=60), make(root / "stopped", WINDOW, iterations=10**6)
    lost = make(root / "lost", FAST, iterations=1000000)
    with slurm.cluster(root / "slurm") as env:
        said = end(launch(several, env, "srun", "--mpi=pmix", "-n", 3, DARKNET, *TRAIN))[1]
        assert said.count("3 processes train this network, started by srun") == 1, said
        assert pair(several) == pair(whole)

        process = launch(stopped, env, "srun", "--mpi=pmix", "-n", 3, DARKNET, *TRAIN)
        for line in process.stdout:
            if line.startswith("4: "):
                break
        subprocess.run(["scancel", "--signal=TERM", job_of(env)], env=env, check=True)
        out, said = process.communicate(timeout=600)
        saved = re.findall(r"stopped by SIGTERM after iteration (\d+)\. .*: toy.cfg (\S+)\n", said)
        assert len(saved) == 1, said
        assert process.returncode == 128 + 15, (process.returncode, said)
        unstopped = make(root / "unstopped", WINDOW, iterations=int(saved[0][0]) + 5)
        change(stopped, "max_batches=1000000", "max_batches=%d" % (int(saved[0][0]) + 5))
        train(unstopped, 0)
        train(stopped, 2, saved[0][1])
        assert pair(stopped) == pair(unstopped)

        process = launch(lost, env, "srun", "--mpi=pmix", "-n", 3, DARKNET, *TRAIN)
        for line in process.stdout:
            if line.startswith("101: "):
                break
        ranks = [pid for pid in os.listdir("/proc") if pid.isdigit() and is_rank(pid, 1, root / "slurm")]
        assert len(ranks) == 1, ranks
        os.kill(int(ranks[0]), 9)
        assert process.communicate(timeout=600) and process.returncode != 0
        assert (lost / "backup" / "toy.backup.amp").exists()

        # Without --mpi=pmix the processes do not find each other: MPI itself says so and ends them.
        none = make(root / "none", FAST)
        process = launch(none, env, "srun", "--mpi=none", "-n", 2, DARKNET, *TRAIN)
        assert process.communicate(timeout=600) and process.returncode != 0
        assert not any((none / "backup").iterdir())


def is_rank(pid, rank, folder):
    try:
        words = Path("/proc/%s/environ" % pid).read_bytes().split(b"\0")
        name = Path("/proc/%s/comm" % pid).read_text().strip()
    except OSError:
        return False
    return (name == Path(DARKNET).name and b"SLURM_PROCID=%d" % rank in words
            and any(word.startswith(b"SLURM_CONF=" + bytes(folder)) for word in words))


# ---- MPICH ----


def check_mpich(root):
    """The same source is the engine for MPICH, beside a copy of the plugin."""
    missing = [name for name in ("mpicc.mpich", "mpirun.mpich") if not shutil.which(name)]
    if missing:
        print("SKIPPED MPICH: no %s; install mpich and libmpich-dev" % missing[0])
        return
    ours = root / "plugin"
    ours.mkdir(parents=True)
    shutil.copy(PLUGIN, ours / "libdarknet_amp.so")
    subprocess.run(["mpicc.mpich", "-std=gnu11", "-O2", "-fPIC", "-shared", "-DAMP_ENGINE_LAYOUT=0x" + engine_layout(),
                    "-I", SOURCE, SOURCE / "plugin/spread/mpi.c", "-o", ours / "libdarknet_amp_mpi.so"], check=True)
    one, several = make(root / "one", ORDERED), make(root / "several", ORDERED)
    train(one, 0, program=STOCK)
    preload = ["env", "LD_PRELOAD=%s" % (ours / "libdarknet_amp.so")]
    said = end(launch(several, os.environ, "mpirun.mpich", "-np", 3, *preload, STOCK, *TRAIN))[1]
    assert said.count("3 processes train this network, started by MPICH's mpirun") == 1, said
    assert pair(one) == pair(several)
    # The engine of the other MPI.
    process = launch(make(root / "wrong", FAST), os.environ, "mpirun.mpich", "-np", 2, DARKNET, *TRAIN)
    out, said = process.communicate(timeout=600)
    assert process.returncode != 0 and "MPICH's mpirun started 2 processes, but MPI sees 1" in said + out, said + out
    assert not any((root / "wrong" / "backup").iterdir())


def main():
    processes.skip_without_mpi()
    processes.run_checks(globals(), (check_slurm, check_mpich))


if __name__ == "__main__":
    main()
