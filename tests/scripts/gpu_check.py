"""scripts/gpu-check.sh with stand-ins for a GPU, its tools, our programs and PyTorch's: both calls to their end, and what
becomes of failures. Also scripts/gpu-pack.sh.

usage: gpu_check.py ROOT
"""

import concurrent.futures
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "scripts"))
import gpu_report

CARD = "NVIDIA H100 80GB HBM3"
MOST = {"first": 345, "second": 310}
START, BOTH = 30, 700  # seconds: until a machine runs a command; both calls with that
PROGRAMS = ("copy", "batchnorm", "batchnorm_pool", "image_gradient", "losses", "conv_update")

# Every stand-in does first what a file of its name under `does` says.
DOES = 'd=$FOLDER/does/{name}\n[ ! -e "$d" ] || . "$d"\n'
STANDINS = {
    "path/nvidia-smi": f"""case $* in
-L) echo "GPU 0: {CARD}" ;;
*--query-gpu*) echo "{CARD}, 580.159.04, 81559 MiB, 1980 MHz" ;;
dmon*) echo clocks; exec sleep 1000 ;;
esac
""",
    "path/compute-sanitizer": 'echo "========= $*"\n',
    "path/cuda-gdb": "echo it stands in ampk_kernel\n",
    "path/ldd": "true\n",
    "path/find": "true\n",
    "path/timeout": f'echo "$*" >>"$FOLDER/limits"\nexec {shutil.which("timeout")} "$@"\n',
    "path/python3": f"""case $1 in
*/bench-gpu) . "$FOLDER/bench" ;;
*/gpu/*.py) name=${{1##*/}}; d=$FOLDER/does/${{name%.py}}; [ ! -e "$d" ] || . "$d"; echo as they must be; exit ;;
*/torch_net.py) exit ;;
esac
exec {sys.executable} "$@"
""",
    "bench": """while [ $# -gt 0 ]; do [ "$1" != --json ] || json=$2; shift; done
name=${json##*/}; d=$FOLDER/does/${name%.json}; [ ! -e "$d" ] || . "$d"
echo '{"date": "d", "machine": {}, "errors": {}, "runs": []}' >$json
exit
""",
    "binaries/bin/bench_step": "echo trained\n",
    "binaries/bin/darknet": "true\n",
    "binaries/tests/gpu_device_properties": f"""echo '{{"deviceName": "{CARD}"}}'\n""",
    "binaries/tests/test_conformance_gpu_conv": """[ "$1" != --list ] || { printf '%s\\n' conv_forward conv_backward; exit; }
echo "$AMPK_CUDA_UNTIMED conv $1"
""",
    **{f"binaries/tests/test_conformance_gpu_{name}": "echo 1 tests, 0 failed\n" for name in PROGRAMS},
}


def make_executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Machine:
    """One with a GPU, as far as the script can tell. does: {stand-in: what it does before its usual}."""

    def __init__(self, folder, does={}, more={}):
        self.folder, self.out = folder, folder / "out"
        for name, text in {**STANDINS, **more}.items():
            make_executable(folder / name, "#!/bin/sh\n" + DOES.format(name=Path(name).name) + text)
        for name, text in does.items():
            (folder / "does").mkdir(exist_ok=True)
            (folder / "does" / name).write_text(text + "\n")

    def check(self, *arguments, binaries=None, out=None, **environment):
        """What it said and its exit status; the verdicts of OUT's record as {name: (result, words)}."""
        out = out or self.out
        done = subprocess.run(
            ["sh", ROOT / "scripts/gpu-check.sh", *arguments, "--binaries", binaries or self.folder / "binaries",
             "--out", out], text=True, stdin=subprocess.DEVNULL, capture_output=True, env={
                 **os.environ, "PATH": f"{self.folder}/path:{os.environ['PATH']}", "FOLDER": str(self.folder),
                 "XDG_CACHE_HOME": str(self.folder / "cache"), **environment})
        record = out / "gpu-check.json"
        stages = json.loads(record.read_text())["stages"] if record.exists() else []
        return done, {stage["name"]: (stage["result"], stage["words"]) for stage in stages}

    def log(self, name):
        """What one stage or task said."""
        parts = re.split(r"(?m)^==== (.*)\.log\n", (self.out / "logs.txt").read_text())[1:]
        return dict(zip(parts[::2], parts[1::2]))[name]


def results(stages):
    return {name: result for name, (result, _) in stages.items()}


def planned(said, part):
    """({stage: seconds, those at once as one}, all) of the line that a part begins with."""
    line = next(line for line in said.splitlines() if line.startswith(f"{part}, in seconds by estimate: "))
    stages, all_of_them, most = re.fullmatch(r"\w+, .*?: (.*); in all (\d+) of at most (\d+)", line).groups()
    found = {name: int(seconds) for name, seconds in (stage.rsplit(" ", 1) for stage in stages.split(", "))}
    assert sum(found.values()) == int(all_of_them) <= int(most) == MOST[part], line
    return found, int(all_of_them)


def limits(machine):
    """[(seconds, command)] of what `timeout` was to end."""
    lines = [line.split(" ", 3) for line in (machine.folder / "limits").read_text().splitlines()]
    return [(int(seconds), command) for _, _, seconds, command in lines]


def bench_calls(machine):
    """The arguments of every call of bench-gpu, as that reads them, with the limit that ends it."""
    loader = importlib.machinery.SourceFileLoader("bench_gpu_script", str(ROOT / "scripts/bench-gpu"))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(script)
    for limit, command in limits(machine):
        if "/bench-gpu " in command:
            words = command.split("bench-gpu ")[1].split()
            budget = int(words[words.index("--budget") + 1])
            with mock.patch.object(sys, "argv", ["bench-gpu", *words]):
                yield limit, budget, script.parse()


# ---- scenarios ----


def test_rehearsal(folder):
    """Both calls as they are meant: each to its end, in time, with what it is for."""
    machine = Machine(folder)
    with tarfile.open(folder / "pack.tar.xz", "w:xz") as pack:
        pack.add(folder / "binaries", ".")
    calls, every, took = {}, {}, 0
    for part in MOST:
        (folder / "limits").unlink(missing_ok=True)
        calls[part], stages = machine.check(part, binaries=folder / "pack.tar.xz")
        assert calls[part].returncode == 0 and not calls[part].stderr, calls[part]
        assert set(results(stages).values()) == {"pass"}, stages
        estimates, seconds = planned(calls[part].stdout, part)
        took += seconds + START
        names = [name for name in stages if name not in every]
        assert sorted(names) == sorted(name for group in estimates for name in group.split("+") if name != "start"), names
        every.update(stages)
        for limit, budget, args in bench_calls(machine):
            assert budget + 30 < limit, (part, limit, budget)
            assert {"fixed", "torch", "torch-graphs", "fp16"} <= set(args.contestants), args
        # All verdicts once more, in few lines, at the end.
        last = calls[part].stdout.split("== all verdicts")[1].splitlines()[1:]
        assert len(last) == len(names) and all(line.startswith("pass") for line in last), last
    assert took <= BOTH, took
    assert args.end_to_end and not args.no_check and {"stock", "torch-compile"} <= set(args.contestants), args
    assert sorted(path.name for path in machine.out.iterdir()) == [
        "clocks.txt", "gpu-check.json", "gpu-check.md", "logs.txt", "verdicts.txt"], list(machine.out.iterdir())

    # What ran, and how. The second call has the results of both.
    record = json.loads((machine.out / "gpu-check.json").read_text())
    assert record["card"] == CARD and set(record["bench"]) == {"tiny", "yolov3", "all"}, record
    assert record["device_properties"] == {"deviceName": CARD}, record
    assert every["conformance"][1] == "8 of 8 pass" and every["sanitizers"][1] == "10 of 10 pass", every
    said = {name: machine.log(name) for name in ("conv.conv_forward", "memcheck.conv.conv_forward_of_images", "racecheck.losses")}
    assert said["conv.conv_forward"] == "1 conv conv_forward\n", said
    assert re.match("========= --kernel-name kns=ampk_ .*--tool memcheck .*_gpu_conv conv_forward_of_images\n",
                    said["memcheck.conv.conv_forward_of_images"]), said
    assert re.match("========= .*--tool racecheck .*_gpu_losses\n", said["racecheck.losses"]), said
    raced = re.findall(r"(?m)^==== racecheck\.(.*)\.log$", (machine.out / "logs.txt").read_text())
    assert sorted(raced) == ["batchnorm", "batchnorm_pool", "losses"], raced  # cuDNN is not called there
    # A call for another card has no results of this one.
    make_executable(folder / "path/nvidia-smi", STANDINS["path/nvidia-smi"].replace(CARD, "NVIDIA T4"))
    _, stages = machine.check("second")
    assert list(stages) == ["sanitizers", "bench-all"], stages


def test_failures(folder):
    """What fails is named with its words, and does not keep the rest from running."""
    machine = Machine(folder, {
        "test_conformance_gpu_copy": "echo FAILED it: 3 checks; exit 1",
        "invariants": "echo two runs differ; exit 1", "processes": "echo no mpirun in the PATH; exit 77",
        "bench-yolov3": "echo Not measured: torch; exit 75"})
    done, stages = machine.check()
    assert done.returncode == 1, done
    assert results(stages) == {
        "device": "pass", "smoke": "pass", "conformance": "FAIL", "losses.fp16": "pass", "losses.bf16": "pass",
        "invariants": "FAIL", "processes": "skipped", "profile": "pass", "bench-tiny": "pass",
        "bench-yolov3": "cut off"}, stages  # and no second part
    assert stages["conformance"][1] == "7 of 8 pass; wrong: copy(1)", stages
    assert "\n== copy(1)\nFAILED it: 3 checks\n" in done.stdout, done.stdout
    assert "END first: 2 failures, 1 cut off" in done.stdout, done.stdout
    assert stages["processes"][1] == "no mpirun in the PATH", stages
    page = (machine.out / "gpu-check.md").read_text()
    assert "| invariants | FAIL |" in page and page.count("# Training steps on") == 1, page

    # What PyTorch lacks alone is no failure.
    for name in ("test_conformance_gpu_copy", "invariants"):
        (folder / "does" / name).unlink()
    done, stages = machine.check("first")
    assert done.returncode == 75 and results(stages)["conformance"] == "pass", (done, stages)


# ---- what it is made of ----


def test_names(_):
    """The tests of conformance programs that the script names are there."""
    script, *programs = ((ROOT / path).read_text() for path in
                         ("scripts/gpu-check.sh", "tests/kernels/conv.c", "tests/kernels/image_gradient.c"))
    tests = re.findall(r"AMP_TEST\((\w+)\)", "".join(programs))
    named = re.findall(r"[:.](conv_\w+)", script)
    assert {"conv_forward_of_images", "conv_bn_backward_of_several_tiles_a_warp"} <= set(named), named
    assert [name for name in named if not any(name in test for test in [*tests, "conv_update"])] == [], tests
    ways = set(re.findall(r"AMPK_CUDA_\w+(?==)", script))
    context = (ROOT / "kernels/cuda/runtime/context.h").read_text()
    assert len(ways) == 4 and all(way in context for way in ways), ways


def test_pack(folder):
    """A build with OpenCV is refused, as is a pack that is too large to carry; it says what was built."""
    for name in ("bin/bench_step", "bin/darknet", "lib/libdarknet.so", "lib/libdarknet_amp.so.1",
                 "tests/test_conformance_gpu_copy"):
        (folder / "build" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", folder / "build" / name)
    (folder / "cfg").mkdir()
    for net in ("yolov3", "yolov3-tiny", "yolov2", "darknet19", "darknet53"):
        (folder / f"cfg/{net}.cfg").write_text("[net]\n")
    cache = folder / "build/CMakeCache.txt"

    def pack(opencv, out):
        cache.write_text(f"AMP_OPENCV:BOOL={opencv}\nDARKNET_SOURCE_DIR:PATH={folder}\n")
        return subprocess.run(["sh", ROOT / "scripts/gpu-pack.sh", folder / out, folder / "build"], text=True,
                              capture_output=True, env={**os.environ, "PATH": f"{folder}/path:{os.environ['PATH']}"})

    done = pack("ON", "pack")
    assert done.returncode == 1 and "-DAMP_OPENCV=OFF" in done.stderr and not (folder / "pack").exists(), done
    done = pack("OFF", "pack.tar.gz")
    assert done.returncode == 1 and "a folder or NAME.tar.xz" in done.stderr, done
    assert pack("OFF", "pack.tar.xz").returncode == 0
    with tarfile.open(folder / "pack.tar.xz") as packed:
        assert packed.extractfile("./commit").read().strip(), packed.getnames()
        assert "./tests/test_conformance_gpu_copy" in packed.getnames(), packed.getnames()
    make_executable(folder / "path/tar", '#!/bin/sh\ntruncate -s 61M "$4"\n')
    done = pack("OFF", "large.tar.xz")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "61 MiB" in done.stderr, done
    assert not (folder / "large.tar.xz").exists()


def run(test):
    with tempfile.TemporaryDirectory() as scratch:
        test(Path(scratch))


# Most of their time they wait.
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for ended in [pool.submit(run, test) for test in (test_rehearsal, test_failures, test_names, test_pack)]:
        ended.result()
