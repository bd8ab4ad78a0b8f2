"""No circle of files: no source file needs another that needs it in turn, over however many files.

Which file needs which is read from the compiled objects: a file needs those that define what it leaves
undefined. One library at a time, so that a backend and its emulation are not mixed up.

usage: circles.py BUILD LIBRARY...    where LIBRARY is a target that compile_commands.json has
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path


def symbols(build, libraries):
    """Of each source file, the names it defines and those it needs. Objects of files that are no longer
    compiled may still lie in the folder: compile_commands.json says which ones count."""
    commands = json.loads((Path(build) / "compile_commands.json").read_text())
    outputs = {Path(command["directory"]) / re.search(r" -o (\S+)", command["command"])[1]:
               Path(command["file"]) for command in commands}
    objects = {output: source for output, source in outputs.items()
               if any(f"/{library}.dir/" in str(output) for library in libraries)}
    assert objects, f"no objects of {libraries} in {build}"
    defines, needs = {}, {}
    for path, source in sorted(objects.items()):
        lines = subprocess.run(["nm", "-g", path], check=True, capture_output=True, text=True).stdout
        fields = [line.split()[-2:] for line in lines.splitlines() if line.strip()]
        name = f"{source.parent.name}/{source.name}"
        assert name not in defines, f"two files are called {name}"
        defines[name] = {symbol for kind, symbol in fields if kind not in "Uw"}
        needs[name] = {symbol for kind, symbol in fields if kind in "Uw"}
    return defines, needs


def arrows(defines, needs):
    home = {symbol: name for name, found in defines.items() for symbol in found}
    found = defaultdict(dict)
    for name, wanted in needs.items():
        for symbol in sorted(wanted):
            target = home.get(symbol, name)
            if target != name:
                found[name].setdefault(target, []).append(symbol)
    return found


def circles(found):
    """Tarjan's strongly connected components, those of more than one file."""
    index, low, stack, result = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in found.get(name, {}):
            if target not in index:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == index[name]:
            part = []
            while not part or part[-1] != name:
                part.append(stack.pop())
            if len(part) > 1:
                result.append(sorted(part))

    for name in list(found):
        if name not in index:
            visit(name)
    return result


def main():
    build, libraries = sys.argv[1], sys.argv[2:]
    defines, needs = symbols(build, libraries)
    found = arrows(defines, needs)
    rings = circles(found)
    for ring in rings:
        print(f"{len(ring)} files need each other in a circle:")
        for name in ring:
            for target in ring:
                if target in found[name]:
                    print(f"  {name} -> {target}: {', '.join(found[name][target])}")
    if rings:
        sys.exit(1)
    print(f"{len(defines)} files, no circles")


if __name__ == "__main__":
    main()
