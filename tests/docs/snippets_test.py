# SPDX-License-Identifier: Apache-2.0
"""That snippets.py lets no snippet escape: each kind of block ends in a file, each misspelt one in an error."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parent / "snippets.py"


def cut(readme, page):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs/deep").mkdir(parents=True)
        (root / "README.md").write_text(readme)
        (root / "docs/deep/page.md").write_text(page)
        (root / "out").mkdir()
        (root / "out/stale.cpp").write_text("int x;")
        done = subprocess.run([sys.executable, SCRIPT, root, root / "out"], capture_output=True, text=True)
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        return done, [(kind, pathlib.Path(path).read_text()) for kind, path in lines], \
            {path.name for path in (root / "out").iterdir()}


def main():
    fence = "```"
    done, files, names = cut(
        f"{fence}cpp\n#include <vector>\nint a;\n{fence}\n{fence}sh\nls\n{fence}\n",
        f"Text\n{fence}cpp shared\nint kept = 1;\n{fence}\n- a list\n  {fence}cpp fragment\n  kept = 2;\n  {fence}\n"
        f"{fence}cpp fragment\nkept = 3;\n{fence}\n{fence}cpp\n#include \"tandem/tandem.hpp\"\n{fence}\n")
    assert done.returncode == 0, done.stderr
    assert names == {"README_md_2.cpp", "fragments.cpp", "docs_deep_page_md_13.cpp"}, names
    (kind, text), whole, fragment = files
    assert kind == "bare" and text == '#line 2 "README.md"\n#include <vector>\nint a;\n', text
    assert fragment[0] == "torch" and '#include "prelude.hpp"' in fragment[1]
    places = [fragment[1].index(text) for text in ("namespace docs_deep_page_md_7", "int kept = 1;", "snippet() {",
                                                   "\nkept = 2;\n", "namespace docs_deep_page_md_10", "kept = 3;")]
    assert places == sorted(places), fragment[1]
    assert whole[0] == "torch"
    for bad in (f"{fence}cpp fragmnt\nx;\n{fence}\n", f"{fence}c++\nx;\n{fence}\n", f"{fence}CPP\nx;\n{fence}\n",
                f"{fence}cpp\nx;\n"):
        done, _, _ = cut("nothing\n", bad)
        assert done.returncode != 0 and "page.md:1:" in done.stderr, (bad, done.stderr)


if __name__ == "__main__":
    main()
