# SPDX-License-Identifier: Apache-2.0
"""snippets.py ROOT OUTPUT: writes the C++ snippets of README.md and docs/**/*.md as source files.

```cpp            a whole file (includes and all), written as such
```cpp fragment   statements: a function, in a namespace of its own in the one file of all fragments, after prelude.hpp
```cpp shared     kept, and put before every later fragment of the same page (declarations the page goes on using)

Prints one line per file, "bare PATH" or "torch PATH": what it has to be linked with. #line keeps the place in
the page in the compiler's messages. Every other kind of fenced block that calls itself C++ is an error, so that none
escapes by a misspelt mark.
"""
import pathlib
import re
import sys

FENCE = re.compile(r"^( *)```(\S*)[ \t]*(.*?)[ \t]*$")
NEEDS_LIBTORCH = re.compile(r"tandem/tandem\.hpp|tandem/(?:tensor|strategy|plan|trainer)/|<(?:torch|ATen|c10)/")


def blocks(path):
    """Yields (first line number, mark, text) of every fenced C++ block."""
    inside, kept = None, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if inside is None and fence:
            inside, kept = (number + 1, len(fence.group(1)), fence.group(2), fence.group(3)), []
        elif inside is not None and line.strip() == "```":
            first, indent, language, mark = inside
            if language.lower() in ("cpp", "c++", "cxx", "cc"):
                if language != "cpp" or mark not in ("", "fragment", "shared"):
                    sys.exit(f"{path}:{first - 1}: '```{language} {mark}' is none of cpp, cpp fragment, cpp shared")
                yield first, mark, "\n".join(text[indent:] for text in kept) + "\n"
            inside = None
        else:
            kept.append(line)
    if inside is not None:
        sys.exit(f"{path}:{inside[0] - 1}: this block is never closed")


def write_if_changed(path, text):
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def main():
    root, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    written = set()

    def write(name, kind, text):
        source = output / f"{name}.cpp"
        written.add(source)
        write_if_changed(source, text)
        print(kind, source.as_posix())

    fragments = ""
    pages = [root / "README.md"] + sorted((root / "docs").rglob("*.md"))
    for page in pages:
        name = page.relative_to(root).as_posix()
        shared = ""
        for first, mark, text in blocks(page):
            place = f'#line {first} "{name}"\n'
            label = f"{re.sub('[^A-Za-z0-9]+', '_', name)}_{first}"
            if mark == "shared":
                shared += place + text
                continue
            if mark == "fragment":
                fragments += (f"namespace {label} {{\n{shared}[[maybe_unused]] static void snippet() {{\n{place}{text}}}\n"
                              f"}}  // namespace {label}\n")
            else:
                write(label, "torch" if NEEDS_LIBTORCH.search(text) else "bare", place + text)
    if fragments:
        write("fragments", "torch", '#include "prelude.hpp"\n' + fragments)
    for stale in set(output.glob("*.cpp")) - written:
        stale.unlink()


if __name__ == "__main__":
    main()
