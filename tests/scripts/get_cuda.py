"""scripts/get-cuda.sh in a copy of its own, with a stand-in for pip. What the packages really hold is seen
where somebody calls it.

usage: get_cuda.py ROOT
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
FILES = ["cu13/bin/nvcc", "cu13/lib/libcudart.so.13", "cu13/lib/libcudart_static.a",
         "cu13/lib/libnvrtc-builtins.so.13.0", "cudnn/lib/libcudnn.so.9", "cudnn/include/cudnn.h"]

# Installs FILES to what follows --target, unless $PIP says otherwise.
PIP = """#!/bin/sh
[ "$1 $2" = "-m pip" ] || exit 9
[ "$3" = --version ] && exit
case $PIP in
fails) exit 2 ;;
interrupted) kill -s INT 0; sleep 10 ;;
slow) sleep 1 ;;
esac
[ -d "$TMPDIR" ] || exit 8
while [ "$1" != --target ]; do shift; done
for file in $FILES; do
    mkdir -p "$2/nvidia/$(dirname "$file")"
    echo "$PIP" >"$2/nvidia/$file"
    chmod 755 "$2/nvidia/$file"
done
echo "$PIP_REQUIRE_VIRTUALENV$PIP_USER" >"$2/settings"
"""


def start(folder, pip, files=FILES):
    environment = dict(os.environ, PATH=f"{folder}/bin:{os.environ['PATH']}", PIP=pip, FILES=" ".join(files),
                       PIP_USER="1", PIP_REQUIRE_VIRTUALENV="1")
    return subprocess.Popen([folder / "scripts/get-cuda.sh"], env=environment, text=True, start_new_session=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finish(process):
    out, err = process.communicate(timeout=1200)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def run(folder, pip, files=FILES):
    return finish(start(folder, pip, files))


def contents(folder):
    return sorted(path.name for path in (folder / "build").iterdir() if path.name != "toolkit.lock")


def main():
    folder = Path(tempfile.mkdtemp(dir=SCRATCH)) / "a folder.so.1"
    folder.mkdir()
    for name in ("scripts", "bin"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "scripts/get-cuda.sh", folder / "scripts")
    pip = folder / "bin/python3"
    pip.write_text(PIP)
    pip.chmod(0o755)

    # Nothing is left of what fails.
    done = run(folder, "fails")
    assert done.returncode == 1 and "pip could not load cuda-toolkit[" in done.stderr, done
    assert contents(folder) == [], contents(folder)
    assert run(folder, "interrupted").returncode == -signal.SIGINT, "who called it would go on"
    assert contents(folder) == [], contents(folder)
    for lacking in ("cu13/bin/nvcc", "cudnn/lib/libcudnn.so.9"):
        done = run(folder, "first", [file for file in FILES if file != lacking])
        assert done.returncode == 1 and "do not hold nvcc or cuDNN" in done.stderr, done
        assert contents(folder) == [], contents(folder)

    done = run(folder, "first")
    assert done.returncode == 0 and contents(folder) == ["toolkit"], done
    nvidia = folder / "build/toolkit/nvidia"
    for link, to in (("cu13/lib/libcudart.so", "libcudart.so.13"), ("cudnn/lib/libcudnn.so", "libcudnn.so.9"),
                     ("cu13/lib/libnvrtc-builtins.so", "libnvrtc-builtins.so.13.0"), ("cu13/lib64", "lib")):
        assert os.readlink(nvidia / link) == to, link
    assert (folder / "build/toolkit/settings").read_text() == "00\n", "pip's own settings would refuse --target"
    assert (folder / "build/toolkit").stat().st_mode & 0o077 == 0o055

    # It is there; another list of packages replaces it, but not by half of one.
    assert run(folder, "second").returncode == 0
    assert (nvidia / "cu13/bin/nvcc").read_text() == "first\n"
    (folder / "build/toolkit/packages").write_text("others\n")
    assert run(folder, "fails").returncode == 1
    assert (nvidia / "cu13/bin/nvcc").read_text() == "first\n"
    at_once = [start(folder, "slow") for _ in range(2)]
    assert [finish(process).returncode for process in at_once] == [0, 0]
    assert (nvidia / "cu13/bin/nvcc").read_text() == "slow\n"
    assert contents(folder) == ["toolkit"], contents(folder)


with tempfile.TemporaryDirectory() as SCRATCH:
    main()
