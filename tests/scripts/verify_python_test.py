# SPDX-License-Identifier: Apache-2.0
"""verify_python_test.py ROOT: what scripts/verify_python makes of what the two sides give it, and what it refuses.

Runs a copy of it in a scratch folder, with stand-ins for training on both sides: no network, no compiler, no PyTorch.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# Both sides: the weights are the words of a file. SPOIL="RUN:STATEMENT" does something to one run's results.
TRAINING = """
import json, os, pathlib, sys
def option(name): return sys.argv[sys.argv.index(name) + 1]
def train(side, what):
    assert os.environ["ATEN_CPU_CAPABILITY"] == "avx2" and "RANK" not in os.environ, dict(os.environ)
    run = " ".join((side, what, option("--accumulate"), option("--ranks")))
    results = {"steps_clipped": 1, "weights": ["1", "2", "3", option("--accumulate")], "losses": [1.5] * int(option("--steps"))}
    spoilt, _, statement = os.environ.get("SPOIL", "").partition(":")
    if spoilt == run: exec(statement, results)
    pathlib.Path(option("--weights")).write_text(" ".join(results["weights"]))
    said = {name: results[name] for name in ("losses", "steps_clipped")}
    pathlib.Path(option("--json")).write_text(json.dumps(said))
"""
TRAIN = TRAINING + """
if "--weights" in sys.argv: train("tandem", option("--strategy"))
"""
PYTHON = TRAINING + """
if sys.argv[1] == "-c":
    print('["2.11.0+cu130", "AVX2"]')
elif sys.argv[1].endswith("compare_weights.py"):
    one, other = (pathlib.Path(path).read_text().split() for path in sys.argv[2:])
    print(json.dumps({"weights": len(one), "differing": sum(a != b for a, b in zip(one, other))}))
else:
    assert sys.argv[1].endswith("reference_train.py") and option("--data").endswith("shakespeare.txt"), sys.argv
    train("python", sys.argv[2])
"""


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)


class Place:
    """A clone with nothing in it but the script and the stand-ins."""

    def __init__(self, root, folder):
        self.root = folder / "a clone"
        for name in ("scripts/verify_python", "tests/python/requirements.txt"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, self.root / name)
        program(self.root / "scripts/train", TRAIN)
        program(self.root / "build/verify_python/venv/bin/python3", PYTHON)
        shutil.copy(self.root / "tests/python/requirements.txt", self.root / "build/verify_python/stamp")
        libtorch = self.root / "libtorch"
        (self.root / ".venv").mkdir()
        (self.root / ".venv/tandem.env").write_text(f"export TANDEM_LIBTORCH={libtorch}\n")
        self.results = folder / "rows.json"

    def verify(self, *arguments, expected=0, **more):
        self.results.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"}
        done = subprocess.run([self.root / "scripts/verify_python", *arguments, "--json", self.results],
                              capture_output=True, text=True, timeout=50, env=environment | {"RANK": "3"} | more)
        assert done.returncode == expected, done
        rows = [json.loads(line) for line in self.results.read_text().splitlines()] if self.results.exists() else None
        return done.stdout, done.stderr, rows


def equal(place):
    output, _, rows = place.verify("--ranks", "2,5", "--steps", "3", "--preset", "tiny")
    assert [(row["strategy"], row["ranks"], row["accumulate"]) for row in rows] == [
        (strategy, ranks, accumulate) for ranks in (2, 5) for strategy, accumulate in
        (("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 2), ("ddp", 1), ("zero1", 2),
         ("fsdp2", 2))], rows
    for row in rows:
        assert (row["losses_differing"], row["weights_differing"], row["weights"], row["steps"]) == (0, 0, 4, 3), row
        assert row["torch"] == "2.11.0+cu130" and row["cpu_capability"] == "avx2", row
    assert "libtorch None, Python torch 2.11.0+cu130: their results need not be equal" in output, output


def differences(place):
    """Each is counted, in its row alone, and is a failure."""
    cases = (("python zero_redundancy 2 2:weights[2] = '4'", 5, "weights_differing"),
             ("tandem zero2 2 2:losses[1] += 2**-52", 2, "losses_differing"),
             ("tandem ddp 1 2:losses[0] = -losses[0]", 4, "losses_differing"))
    for spoilt, number, key in cases:
        output, _, rows = place.verify("--ranks", "2", "--steps", "2", expected=1, SPOIL=spoilt)
        assert "1 of 7 rows differ" in output, output
        counts = [(row["losses_differing"], row["weights_differing"]) for row in rows]
        wrong = (1, 0) if key == "losses_differing" else (0, 1)
        assert counts == [wrong if row == number else (0, 0) for row in range(7)], (spoilt, counts)


def failures(place):
    for spoilt, said in (("tandem ddp 2 2:raise SystemExit('the reason')", "the reason"),
                         ("python ddp 2 2:losses.pop()", "has 1 losses, not 2")):
        _, error, rows = place.verify("--ranks", "2", "--steps", "2", expected=1, SPOIL=spoilt)
        assert said in error and rows is None, (spoilt, error)


def nothing_compared(place):
    """A count that is 0 whatever is counted is noticed."""
    path = place.root / "build/verify_python/venv/bin/python3"
    program(path, PYTHON.replace("sum(a != b for a, b in zip(one, other))", "0"))
    _, error, rows = place.verify("--ranks", "2", "--steps", "2", expected=1)
    assert "nothing was compared" in error and rows is None, error


def refusals(place):
    """Wrong arguments are told at once: status 2, and nothing is begun."""
    shutil.rmtree(place.root / "build")
    for arguments in (["--ranks", "1"], ["--ranks", "2,9"], ["--ranks", ""], ["--steps", "0"], ["--steps", "1.5"],
                      ["--preset", "base"], ["--json", place.root], ["--json", "missing/rows"], ["--rank", "2"],
                      ["more"]):
        done = subprocess.run([place.root / "scripts/verify_python", *arguments], capture_output=True, text=True,
                              timeout=20)
        assert done.returncode == 2 and "error: " in done.stderr and not done.stdout, (arguments, done)
    done = subprocess.run([place.root / "scripts/verify_python", "--help"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and "--ranks" in done.stdout, done
    assert not (place.root / "build").exists()


for scenario in (equal, differences, failures, nothing_compared, refusals):
    with tempfile.TemporaryDirectory() as scratch:
        scenario(Place(pathlib.Path(sys.argv[1]), pathlib.Path(scratch)))
