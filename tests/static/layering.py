# SPDX-License-Identifier: Apache-2.0
"""Checks the library's includes against docs/explanation/architecture.md, and the few rules that every header keeps.

Usage: layering.py ROOT            checks ROOT/include/tandem
       layering.py ROOT --self     checks that each rule finds a planted violation
"""
import fnmatch
import pathlib
import re
import sys
import tempfile

LIMIT = 400  # lines of a header
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LIBTORCH = ("torch/", "ATen/", "c10/", "caffe2/")


def between(text, name):
    found = re.search(rf"<!-- {name}: begin -->(.*?)<!-- {name}: end -->", text, re.S)
    if not found:
        sys.exit(f"architecture.md has no part '{name}'")
    return found.group(1)


def rules(root):
    text = (root / "docs/explanation/architecture.md").read_text()
    layers, order, waterline = {}, [], None
    for row in between(text, "layers").splitlines():
        cells = [cell.strip() for cell in row.strip().strip("|").split("|")]
        if cells[0] == "*waterline*":
            waterline = len(order)
        name = re.fullmatch(r"`([\w.]+)`", cells[0])
        if name:
            layers[name.group(1)] = set(re.findall(r"`([\w.]+)`", cells[1]))
            order.append(name.group(1))
    if waterline is None or len(order) < 8:
        sys.exit("architecture.md: the layer table cannot be read")
    for place, layer in enumerate(order):  # the table itself: each row names only rows above it, so there is no cycle
        for other in layers[layer]:
            if other not in order[:place]:
                sys.exit(f"architecture.md: `{layer}` names `{other}`, which does not stand above it")
    libtorch = re.findall(r"^- `([^`]+)`: (.+)$", between(text, "libtorch"), re.M)
    return layers, set(order[:waterline]), [(glob, set(re.findall(r"`([^`]+)`", what)), what.strip() == "any")
                                            for glob, what in libtorch]


def layer_of(path):
    return path.split("/", 1)[0]


def check(root, include):
    layers, above, libtorch = rules(root)
    problems = []
    headers = sorted(path for path in include.rglob("*") if path.is_file())
    for path in headers:
        name = path.relative_to(include).as_posix()
        layer = layer_of(name)
        lines = path.read_text().splitlines()

        def problem(number, text):
            problems.append(f"include/tandem/{name}:{number}: {text}")

        # A .inc is included more than once on purpose, by a header of its own layer.
        repeated = path.suffix == ".inc" and "/detail/" in name
        if path.suffix not in (".hpp", ".cuh") and not repeated:
            problem(1, "only .hpp (or .cuh) files belong here, and detail/*.inc")
            continue
        if layer not in layers:
            problem(1, f"`{layer}` is not in architecture.md's layer list")
            continue
        if not lines or lines[0] != "// SPDX-License-Identifier: Apache-2.0":
            problem(1, "the first line must be the SPDX line")
        if len(lines) < 2 or not re.match(r"// \S", lines[1]):
            problem(2, "the second line must start the sentence that says what the header is for")
        if ("#pragma once" in lines) == repeated:
            problem(1, "#pragma once must not stand in a .inc" if repeated else "#pragma once is missing")
        if len(lines) > LIMIT:
            problem(len(lines), f"{len(lines)} lines; split it by responsibility ({LIMIT} at most)")
        for number, line in enumerate(lines, 1):
            found = INCLUDE.match(line)
            if not found:
                continue
            quote, target = found.groups()
            if target.startswith("tandem/"):
                inner = target[len("tandem/"):]
                other = layer_of(inner)
                if quote != '"':
                    problem(number, f"write \"{target}\" with quotes")
                if not (include / inner).is_file():
                    problem(number, f"{target} does not exist")
                if other != layer and other not in layers[layer]:
                    problem(number, f"`{layer}` must not include `{other}`")
            elif quote == '"':
                problem(number, f"\"{target}\": the library's own headers are included as \"tandem/...\"")
            elif target.startswith(LIBTORCH):
                if layer in above:
                    problem(number, f"<{target}> stands above the waterline")
                elif not any(fnmatch.fnmatch(name, glob) and (everything or target in allowed)
                             for glob, allowed, everything in libtorch):
                    problem(number, f"<{target}>: not a header that architecture.md lets {name} include")
    return problems, len(headers)


def self_test(root):
    """Each planted header must be refused with the given words; the clean one must not be."""
    head = "// SPDX-License-Identifier: Apache-2.0\n// What it is for.\n#pragma once\n"
    planted = [
        ("core/up.hpp", head + '#include "tandem/comm/x.hpp"\n', "`core` must not include `comm`"),
        ("collective/side.hpp", head + '#include "tandem/transport/x.hpp"\n', "must not include `transport`"),
        ("comm/torch.hpp", head + "#include <ATen/core/Tensor.h>\n", "above the waterline"),
        ("tensor/more.hpp", head + "#include <torch/torch.h>\n", "not a header that"),
        ("trainer/more.hpp", head + "# include <torch/nn/module.h>\n", "not a header that"),
        ("core/long.hpp", head + "\n" * LIMIT, "split it"),
        ("core/spdx.hpp", "// What.\n#pragma once\n", "SPDX"),
        ("core/purpose.hpp", "// SPDX-License-Identifier: Apache-2.0\n#pragma once\n", "second line"),
        ("core/once.hpp", "// SPDX-License-Identifier: Apache-2.0\n// What.\n", "#pragma once"),
        ("core/angle.hpp", head + "#include <tandem/core/angle.hpp>\n", "with quotes"),
        ("core/relative.hpp", head + '#include "angle.hpp"\n', "are included as"),
        ("core/gone.hpp", head + '#include "tandem/core/nowhere.hpp"\n', "does not exist"),
        ("extra/x.hpp", head, "not in architecture.md"),
        ("core/readme.txt", "x", "only .hpp"),
        ("core/kernel.inc", head.replace("#pragma once\n", ""), "only .hpp"),
        ("core/detail/once.inc", head, "must not stand"),
        ("core/detail/kernel.inc", head.replace("#pragma once\n", ""), None),
        ("core/clean.hpp", head + "#include <vector>\n", None),
        ("tensor/torch.hpp", head + "#include <ATen/core/Tensor.h>\n", None),
        ("trainer/clean.hpp", head + '#include <torch/optim/optimizer.h>\n#include "tandem/core/clean.hpp"\n', None),
    ]
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        include = pathlib.Path(folder)
        for name, text, _ in planted + [("comm/x.hpp", head, None), ("transport/x.hpp", head, None)]:
            (include / name).parent.mkdir(parents=True, exist_ok=True)
            (include / name).write_text(text)
        problems, _ = check(root, include)
        for name, _, words in planted:
            own = [problem for problem in problems if problem.startswith(f"include/tandem/{name}:")]
            if words is None and own:
                failures.append(f"{name} was refused: {own}")
            if words is not None and not any(words in problem for problem in own):
                failures.append(f"{name}: nothing says '{words}', only {own}")
    return failures, len(planted)


def main():
    root = pathlib.Path(sys.argv[1])
    problems, count = self_test(root) if "--self" in sys.argv[2:] else check(root, root / "include/tandem")
    if count < 8:
        problems.append(f"only {count} files looked at: wrong folder?")
    for problem in problems:
        print(problem)
    print(f"{count} files, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
