"""`detector test` where there is neither Debian's darknet package nor a display.

usage: detector_test.py DARKNET
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import toyset


def detect(program, folder, image, **environment):
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM", "DARKNET_LABELS")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [program, "detector", "test", "toy.data", "toy.cfg", "backup/toy_final.weights", image,
               "-thresh", "0.001"]
    return subprocess.run(command, cwd=folder, env=dict(env, **environment), capture_output=True,
                          text=True, timeout=1200)


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as root:
        folder = toyset.make(Path(root) / "set", max_batches=1)
        subprocess.run([program, "detector", "train", "toy.data", "toy.cfg"], cwd=folder, check=True,
                       capture_output=True)
        run = detect(program, folder, "image000.png")
        assert run.returncode == 0, run.stderr
        assert "red: " in run.stdout or "blue: " in run.stdout, run.stdout
        assert "Cannot load image" not in run.stderr, run.stderr
        assert "no display" in run.stderr, run.stderr
        assert (folder / "predictions.jpg").exists() and not (folder / "bad.list").exists()

        # An empty name of a display is none.
        run = detect(program, folder, "image000.png", DISPLAY="", WAYLAND_DISPLAY="")
        assert run.returncode == 0 and "no display" in run.stderr, run.stderr

        run = detect(program, folder, "image000.png", DARKNET_LABELS=str(folder / "nowhere"))
        assert run.returncode == 1, run.stdout
        assert str(folder / "nowhere" / "32_0.png") in run.stderr, run.stderr

        # Where there are no letters beside program and plugin; then in the current folder.
        built = Path(program).resolve().parents[1]
        (folder / "bin").mkdir()
        for path in (Path(program), *(built / "lib").glob("libdarknet_amp.so*")):
            shutil.copy(path, folder / "bin" / path.name)
        program, libraries = folder / "bin" / Path(program).name, "%s:%s" % (folder / "bin", built / "lib")
        run = detect(program, folder, "image000.png", LD_LIBRARY_PATH=libraries)
        assert run.returncode == 1 and "(32_0.png to 126_7.png) were not found; set DARKNET_LABELS" in run.stderr, run.stderr
        (folder / "data").mkdir()
        (folder / "data" / "labels").symlink_to(built / "share" / "darknet" / "labels")
        run = detect(program, folder, "image000.png", LD_LIBRARY_PATH=libraries)
        assert run.returncode == 0, run.stderr


main()
