"""circles.py finds a circle of three files, with what they need of each other, and nothing where there is none.

usage: test_circles.py COMPILER
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CIRCLES = Path(__file__).resolve().parent / "circles.py"
# a -> b -> c -> a; d is used by all and uses none.
CHAIN = {"d": "int d(void) { return 1; }",
         "c": "int d(void); int c(void) { return d(); }",
         "b": "int c(void), d(void); int b(void) { return c() + d(); }",
         "a": "int b(void), own(void); int own(void) { return 2; } int a(void) { return b() + own(); }"}
RING = {**CHAIN, "c": "int a(void), d(void); int c(void) { return a() + d(); }"}


def run(sources, library="lib"):
    with tempfile.TemporaryDirectory() as folder:
        folder, commands = Path(folder), []
        (folder / "lib.dir").mkdir()
        for name, text in sources.items():
            source, output = folder / f"{name}.c", f"./lib.dir/{name}.c.o"
            source.write_text(text)
            command = f"{sys.argv[1]} -o {output} -c {source}"
            subprocess.run(command.split(), cwd=folder, check=True)
            commands.append({"directory": str(folder), "file": str(source), "command": command})
        (folder / "lib.dir/gone.c.o").write_text("of a file that is no longer compiled")
        (folder / "compile_commands.json").write_text(json.dumps(commands))
        return subprocess.run([sys.executable, "-B", CIRCLES, folder, library], capture_output=True, text=True)


done = run(CHAIN)
assert done.returncode == 0 and done.stdout == "4 files, no circles\n", done

done = run(RING)
lines = [line.split("/")[-1] for line in done.stdout.splitlines()]
assert done.returncode == 1 and done.stdout.startswith("3 files need each other in a circle:\n"), done
assert lines[1:] == ["b.c: b", "c.c: c", "a.c: a"], lines

assert run(CHAIN, "other").returncode != 0
