"""scripts/preset.sh with stand-ins for nvidia-smi, nvcc and CMake on a PATH of its own.

usage: preset.py ROOT
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
TOOLS = ["awk", "basename", "cat", "grep", "head", "mkdir", "mv", "paste", "rm", "sed", "sh", "sort", "tail", "tr", "uniq"]

# What a CUDA 12.0 offers, and a CUDA 13.0.
CUDA_12 = "50 52 53 60 61 62 70 72 75 80 86 87 89 90"
CUDA_13 = "75 80 86 87 88 89 90 100 110 103 120 121"

# What CMake prints where cuDNN, or a toolkit that is new enough, is not found.
NO_CUDNN = """-- The CUDA compiler identification is NVIDIA 13.0.88
CMake Error at darknet/cuda.cmake:54 (message):
  AMP_CUDA needs cuDNN 8 or 9, but cudnn_version.h and libcudnn were not
  found.  Set CUDNN_INCLUDE_DIR and CUDNN_LIBRARY.
Call Stack (most recent call first):
  CMakeLists.txt:42 (include)


-- Configuring incomplete, errors occurred!
"""
OLD_TOOLKIT = """CMake Error at /usr/share/cmake-3.25/Modules/FindPackageHandleStandardArgs.cmake:230 (message):
  Could NOT find CUDAToolkit: Found unsuitable version "11.8.89", but
  required is at least "12" (found /usr)

Call Stack (most recent call first):
  /usr/share/cmake-3.25/Modules/FindCUDAToolkit.cmake:900 (find_package)
"""


def make_executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def nvcc_text(offered):
    return f'[ "$1" = --list-gpu-arch ] || exit 1\nfor a in {offered}; do echo compute_$a; done\n'


class Machine:
    """A folder with a PATH of its own: tools, and what the cases put there."""

    def __init__(self, folder, smi=None, nvcc=None, cmake_error=None, pci=(), fetched=None, patience=60):
        """smi: text of the stand-in; nvcc: what it offers; pci: [(vendor, class)]; fetched: what the
        nvcc offers that get-cuda.sh gets, None: it fails; patience: seconds of the stand-in for timeout"""
        self.folder, self.bin = Path(folder), Path(folder) / "bin"
        self.bin.mkdir()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        make_executable(self.bin / "timeout", f'shift 3\nexec {shutil.which("timeout")} {patience} "$@"\n')
        if smi is not None:
            make_executable(self.bin / "nvidia-smi", smi)
        if nvcc is not None:
            make_executable(self.bin / "nvcc", nvcc_text(nvcc))
        (self.folder / "cmake_error").write_text(cmake_error or "")
        # It also cures what CMake said.
        there = "build/toolkit/nvidia/cu13/bin/nvcc"
        make_executable(self.folder / there.replace("build", "got"), nvcc_text(fetched or ""))
        # The first time there is no pip.
        make_executable(self.folder / "scripts/get-cuda.sh", "[ -e asked ] || { : >asked; exit 3; }\n"
                        + ("echo got CUDA; mkdir -p build\n: >cmake_error\nmv got/toolkit build/\n" if fetched
                           else "echo no network >&2\nexit 1\n"))
        make_executable(self.bin / "cmake", 'echo "$@" >>arguments\n: >>build/cuda/CMakeCache.txt\n'
                        "[ ! -s cmake_error ] || { cat cmake_error >&2; exit 1; }\n"
                        "echo '-- CUDA 13.0.88, cuDNN 9.19, architectures 75'\n")
        for number, (vendor, kind) in enumerate(pci):
            device = self.folder / f"pci/0000:{number:02x}:00.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text(vendor + "\n")
            (device / "class").write_text(kind + "\n")

    def run(self, script, **environment):
        text = (f". {ROOT}/scripts/packages.sh\n. {ROOT}/scripts/preset.sh\nusual_cuda=$PWD/nowhere\n"
                f"pci_devices=$PWD/pci\ninstall_missing() {{ echo asked apt for $*; }}\n{script}")
        return subprocess.run([*SHELL, "-c", text], cwd=self.folder, text=True, timeout=1200,
                              env={"PATH": str(self.bin), **environment}, capture_output=True)

    def choose(self, **environment):
        """The preset, the line that says why, and CMake's arguments."""
        done = self.run('choose_preset\necho "$preset"', **environment)
        assert done.returncode == 0 and done.stderr in ("", "no network\n"), done
        *self.before, line, preset = done.stdout.splitlines()
        asked = self.folder / "arguments"
        return preset, line, asked.read_text().strip() if asked.exists() else None


def machine(**what):
    return Machine(tempfile.mkdtemp(dir=SCRATCH), **what)


def lists(*gpus, driver="570.86.15"):
    """A stand-in that lists these, with a driver that get-cuda.sh has nothing for."""
    rows = "".join(f"echo '{gpu}'\n" for gpu in gpus)
    return (f'case "$1 $2" in\n"--query-gpu=name,compute_cap --format=csv,noheader")\n{rows};;\n'
            f'"--query-gpu=driver_version --format=csv,noheader") echo {driver} ;;\n*) exit 9 ;;\nesac\n')


def expect(found, preset, *parts, architectures=None):
    assert found[0] == preset, found
    assert all(part in found[1] for part in parts), found
    expected = f'--preset cuda -DAMP_CUDA_ARCHITECTURES={architectures}' if architectures else None
    assert found[2] == expected, found


T4, H200 = "Tesla T4, 7.5", "NVIDIA H200, 9.0"


def test_cuda():
    expect(machine(smi=lists(T4), nvcc=CUDA_13).choose(), "cuda", "Preset cuda: Tesla T4; ",
           "CUDA 13.0.88, cuDNN 9.19", architectures="75")
    expect(machine(smi=lists(H200, T4, H200), nvcc=CUDA_13).choose(), "cuda",
           "2 x NVIDIA H200, Tesla T4;", architectures="75;90")
    expect(machine(smi=lists(T4, "NVIDIA TITAN RTX, 7.5"), nvcc=CUDA_13).choose(), "cuda",
           "NVIDIA TITAN RTX, Tesla T4;", architectures="75")
    expect(machine(smi=lists("NVIDIA GB10, 12.1", "NVIDIA A100, 8.0"), nvcc=CUDA_13).choose(), "cuda",
           architectures="80;121")
    expect(machine(smi=lists(T4), nvcc=CUDA_13).choose(AMP_CUDA_ARCHITECTURES="75;90"), "cuda",
           architectures="75;90")


def test_home():
    """CUDA_HOME comes before PATH, as in CMake."""
    here = machine(smi=lists("NVIDIA V100, 7.0"), nvcc=CUDA_13)
    home = here.folder / "home"
    make_executable(home / "bin/nvcc", f"for a in {CUDA_12}; do echo compute_$a; done\n")
    expect(here.choose(CUDA_HOME=str(home)), "cuda", architectures="70")


def test_no_match():
    """Older and newer cards than the compiler's."""
    old = "NVIDIA GeForce GTX 1080, 6.1"
    found = machine(smi=lists(old), nvcc=CUDA_12).choose()
    expect(found, "cpu", "GTX 1080 (6.1) is too old for", "7.5 (Turing) is the oldest")
    expect(machine(smi=lists("NVIDIA V100, 7.0"), nvcc=CUDA_13).choose(), "cpu", "V100 (7.0) is too old")
    expect(machine(smi=lists(old, H200), nvcc=CUDA_12).choose(), "cuda", "GTX 1080 (6.1) is too old",
           architectures="90")
    expect(machine(smi=lists("NVIDIA B200, 10.0"), nvcc=CUDA_12).choose(), "cuda",
           "B200 (10.0) is newer than what", "PTX for 90", architectures="90")
    same_generation = machine(smi=lists("NVIDIA Thor, 12.9"), nvcc=CUDA_13).choose()
    expect(same_generation, "cuda", architectures="121")
    assert "newer" not in same_generation[1], same_generation
    expect(machine(smi=lists(T4), nvcc="").choose(), "cpu", "names no architecture", "CUDA 12 or 13")


def test_no_toolkit():
    found = machine(smi=lists(T4)).choose()
    expect(found, "cpu", "Tesla T4 is here, but nvcc is neither on PATH nor in", "install CUDA 12 or 13")
    for error, reason in ((NO_CUDNN, "(AMP_CUDA needs cuDNN 8 or 9, but cudnn_version.h and libcudnn were "
                                     "not found. Set CUDNN_INCLUDE_DIR and CUDNN_LIBRARY;"),
                          (OLD_TOOLKIT, '(Could NOT find CUDAToolkit: Found unsuitable version "11.8.89", '
                                        'but required is at least "12" (found /usr);')):
        here = machine(smi=lists(T4), nvcc=CUDA_13, cmake_error=error)
        expect(here.choose(), "cpu", "Tesla T4 is here, but", reason, "build/cuda/configure.log",
               "install CUDA 12 or 13", architectures="75")
        assert (here.folder / "build/cuda/configure.log").read_text() == error
        assert not (here.folder / "build/cuda/CMakeCache.txt").exists(), "it would not be searched again"
    cache = here.folder / "build/cuda/CMakeCache.txt"
    cache.touch()
    here.choose()
    assert cache.exists(), "what a user has set there"
    cache.write_text("CMAKE_CUDA_COMPILER:FILEPATH=/gone/nvcc\n")
    here.choose()
    assert not cache.exists(), "CMake would not look for another one"


def test_fetched():
    """What is missing or too old is got, where driver and card are new enough."""
    new = lists(T4, driver="580.95.05")
    lacking = "Tesla T4 is here, but nvcc is neither"
    for what, said in (({}, lacking), ({"nvcc": ""}, "names no architecture"),
                       ({"nvcc": "35 50"}, "Tesla T4 (7.5) is too old for")):
        here = machine(smi=new, fetched=CUDA_13, **what)
        expect(here.choose(), "cuda", "Preset cuda: Tesla T4; ", architectures="75")
        assert said in here.before[0] and here.before[1:] == ["asked apt for python3-pip", "got CUDA"], here.before
        # The next time it is there.
        (here.folder / "arguments").unlink()
        expect(here.choose(), "cuda", architectures="75")
        assert not here.before, here.before
    for error in (NO_CUDNN, OLD_TOOLKIT):
        here = machine(smi=new, nvcc=CUDA_12, cmake_error=error, fetched=CUDA_13)
        assert here.choose()[:2] == ("cuda", "Preset cuda: Tesla T4; CUDA 13.0.88, cuDNN 9.19, architectures 75")
        assert "the preset cuda cannot be configured" in here.before[0], here.before

    # Not for what it does not cure, and not in place of what could be configured.
    for other in ("OpenCV was not found", "AMP_CUDA_ARCHITECTURES: 8.6 is not one of 75",
                  "cuDNN 9.19 in /x is too new for compute capability 70"):
        error = f"CMake Error at CMakeLists.txt:9 (message):\n  {other}.\n"
        expect(machine(smi=new, nvcc=CUDA_13, cmake_error=error, fetched=CUDA_13).choose(), "cpu", other,
               architectures="75")
    here = machine(smi=new, nvcc=CUDA_13, cmake_error=NO_CUDNN, fetched=CUDA_13)
    cache = here.folder / "build/cuda/CMakeCache.txt"
    cache.parent.mkdir(parents=True)
    cache.write_text(f"CMAKE_CUDA_COMPILER:FILEPATH={here.bin}/nvcc\n")
    (cache.parent / "Makefile").touch()
    expect(here.choose(), "cpu", "needs cuDNN", "or delete build/cuda", architectures="75")
    (cache.parent / "Makefile").unlink() # it never could
    cache.write_text(f"CMAKE_CUDA_COMPILER:FILEPATH={here.bin}/nvcc\n")
    (here.folder / "arguments").unlink()
    assert here.choose()[0] == "cuda", here.before

    # What it was built with counts, not an older one that comes first elsewhere.
    home = here.folder / "home"
    make_executable(home / "bin/nvcc", nvcc_text("35 50"))
    cache.write_text(f"CMAKE_CUDA_COMPILER:FILEPATH={here.folder}/build/toolkit/nvidia/cu13/bin/nvcc\n")
    (here.folder / "arguments").unlink()
    expect(here.choose(CUDA_HOME=str(home)), "cuda", architectures="75")

    expect(machine(smi=lists("NVIDIA B200, 10.0", driver="580.1"), fetched=CUDA_13).choose(), "cuda",
           architectures="100")
    for unknown in ("[N/A]", "", "NVIDIA-SMI has failed"):
        found = machine(smi=lists(T4, driver=f"'{unknown}'"), fetched=CUDA_13)
        expect(found.choose(), "cpu", lacking, "update NVIDIA's driver to 580")
    expect(machine(smi=lists("NVIDIA V100, 7.0", driver="580.1"), fetched=CUDA_13).choose(), "cpu", "nvcc is neither",
           "install CUDA 12 or 13")
    old = machine(smi=lists(T4, driver="570.86.15"), fetched=CUDA_13)
    expect(old.choose(), "cpu", lacking, "install CUDA 12", "update NVIDIA's driver 570.86.15 to 580")
    assert not old.before, old.before
    fails = machine(smi=new)
    expect(fails.choose(), "cpu", lacking, "getting CUDA failed; for the GPU, install CUDA 12 or 13")

    # Who does not want it is not asked again by the build.
    refused = machine(smi=new, fetched=CUDA_13)
    done = refused.run('agreed() { echo "$1"; return 1; }\nchoose_preset')
    assert done.stdout.splitlines()[1].startswith("Get CUDA 13.0") and "Preset cpu" in done.stdout, done
    assert not (refused.folder / "build/toolkit").exists()


def test_no_gpu():
    nothing = machine(nvcc=CUDA_13).choose()
    expect(nothing, "cpu", "Preset cpu: no NVIDIA GPU is here")
    assert "install" not in nothing[1], nothing
    expect(machine(pci=[("0x1234", "0x030000"), ("0x10de", "0x040300")]).choose(), "cpu", "no NVIDIA GPU")
    expect(machine(pci=[("0x1234", "0x030000"), ("0x10de", "0x030200")]).choose(), "cpu",
           "an NVIDIA card is here, but its driver's nvidia-smi is not", "install NVIDIA's driver")
    fails = machine(smi="echo 'NVIDIA-SMI has failed because'; exit 9\n", nvcc=CUDA_13)
    expect(fails.choose(), "cpu", "nvidia-smi ends with status 9 (NVIDIA-SMI has failed because)")
    expect(machine(smi="echo No devices were found\n", nvcc=CUDA_13).choose(), "cpu",
           "lists no GPU with a compute capability (No devices were found)")
    expect(machine(smi="exec sleep 3000\n".replace("sleep", shutil.which("sleep")), nvcc=CUDA_13,
                   patience=1).choose(), "cpu", "nvidia-smi gave no answer")
    for hidden in ("", "-1"):
        expect(machine(smi=lists(T4), nvcc=CUDA_13).choose(CUDA_VISIBLE_DEVICES=hidden), "cpu",
               "CUDA_VISIBLE_DEVICES hides")


def test_configured_as_it_was():
    """Without a GPU and without a wish, the architectures stay as they are."""
    here = machine(nvcc=CUDA_13)
    done = here.run('configure_cuda\necho "$configured"')
    assert done.stdout == "CUDA 13.0.88, cuDNN 9.19, architectures 75\n", done
    assert (here.folder / "arguments").read_text() == "--preset cuda\n"


with tempfile.TemporaryDirectory() as SCRATCH:
    for SHELL in (["sh", "-eu"], ["/bin/bash", "-euo", "pipefail"]):  # as test.sh and setup.sh have it
        test_cuda()
        test_home()
        test_no_match()
        test_no_toolkit()
        test_fetched()
        test_no_gpu()
        test_configured_as_it_was()
