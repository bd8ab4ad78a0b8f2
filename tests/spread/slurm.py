"""Slurm on this machine alone, for a test: a controller and a node of its own, with their files in one folder."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PACKAGES = "slurmctld, slurmd and slurm-client"

CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def why_missing():
    """None: Slurm can run here."""
    missing = [name for name in ("slurmctld", "slurmd", "srun") if not shutil.which(name)]
    if missing:
        return "no %s; install %s" % (missing[0], PACKAGES)
    if os.geteuid():
        return "slurmd needs root"
    if not list(Path("/usr/lib").glob("*/slurm*/mpi_pmix.so")):
        return "no mpi_pmix.so among Slurm's plugins"
    return None


def free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_until_idle(env, daemons, folder):
    for _ in range(600):
        found = subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, env=env)
        if found.stdout.strip() == "idle":
            return
        ended = [d.args[0] for d in daemons if d.poll() is not None]
        assert not ended, (ended, [path.read_text()[-2000:] for path in folder.glob("*.log")])
        time.sleep(.1)
    raise AssertionError("no node: %s" % [path.read_text()[-2000:] for path in folder.glob("*.log")])


@contextlib.contextmanager
def cluster(folder):
    """Yields the environment in which srun and scancel find it."""
    folder = Path(folder).resolve()
    for name in "state", "spool":
        (folder / name).mkdir(parents=True)
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=socket.gethostname().split(".")[0], ports=free_ports(2),
                                folder=folder))
    env = dict(os.environ, SLURM_CONF=str(conf))
    daemons = []
    try:
        for name in "slurmctld", "slurmd":
            with open(folder / (name + ".log"), "w") as log:
                daemons.append(subprocess.Popen([name, "-D"], env=env, stdout=log, stderr=log))
        wait_until_idle(env, daemons, folder)
        yield env
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait()


def skip_if_missing(what):
    why = why_missing()
    if why:
        print("SKIPPED %s: %s" % (what, why), flush=True)
    return bool(why)
