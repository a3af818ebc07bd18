# SPDX-License-Identifier: Apache-2.0
"""check.py COMPILER FLAGS-FILE CASE.cpp [HEADER]         HEADER is included first; HEADER.gch makes that quick
check.py --precompile COMPILER FLAGS-FILE HEADER         writes HEADER.gch

A case has one line `// expect: text`. It must compile as it is, and with TANDEM_SHOULD_FAIL defined fail with exactly
one error, which contains the text. -fsyntax-only: nothing is written, so cases may run side by side.
"""
import os
import re
import subprocess
import sys
import tempfile


def run(compiler, flags, *arguments):
    command = [compiler, f"@{flags}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fdiagnostics-color=never", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return done.returncode, done.stdout + done.stderr


def precompile(compiler, flags, header):
    status, output = run(compiler, flags, "-x", "c++-header", header, "-o", f"{header}.gch")
    return output if status != 0 else None


def check(compiler, flags, case, header=None):
    first = ["-include", header] if header else []
    with open(case) as source:
        expected = re.findall(r"^// expect: (.*\S)\s*$", source.read(), re.M)
    if len(expected) != 1:
        return f"needs exactly one line '// expect: text', has {len(expected)}"
    status, output = run(compiler, flags, "-fsyntax-only", *first, case)
    if status != 0:
        return f"must compile without TANDEM_SHOULD_FAIL, but:\n{output}"
    # The macro stands in a file of its own: a -D would not be the precompiled header's, which would then be left out.
    with tempfile.NamedTemporaryFile("w", suffix=".hpp") as fail:
        fail.write("#define TANDEM_SHOULD_FAIL\n")
        fail.flush()
        status, output = run(compiler, flags, "-fsyntax-only", *first, "-include", fail.name, case)
    if status == 0:
        return f"compiles with TANDEM_SHOULD_FAIL, but should say: {expected[0]}"
    errors = re.findall(r"^.*?(?:fatal )?error: .*$", output, re.M)
    if len(errors) != 1:
        return f"must give exactly one error, but gives {len(errors)}:\n{output}"
    # clang 14 repeats the text as a string literal, with its quotes escaped.
    if expected[0] not in errors[0].replace('\\"', '"'):
        return f"the error does not contain the text\n  expected: {expected[0]}\n  error:    {errors[0]}"
    return None


def main():
    if sys.argv[1] == "--precompile":
        return precompile(*sys.argv[2:])
    problem = check(*sys.argv[1:])
    return f"{sys.argv[3]}: {problem}" if problem else None


if __name__ == "__main__":
    problem = main()
    if problem:
        print(problem)
    sys.exit(1 if problem else 0)
