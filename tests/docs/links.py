# SPDX-License-Identifier: Apache-2.0
"""links.py ROOT: every relative link in README.md, CHANGELOG.md and docs/ leads to a file of the repository."""
import pathlib
import re
import sys


def main():
    root = pathlib.Path(sys.argv[1])
    broken, count = [], 0
    for page in [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            count += 1
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(root)}: {target}")
    print(*broken, f"{count} links", sep="\n")
    return 1 if broken or count < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
