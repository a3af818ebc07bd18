# SPDX-License-Identifier: Apache-2.0
"""check.py COMPILER FLAGS-FILE CASE.cpp

A case has one line `// expect: text`. It must compile as it is, and with TANDEM_SHOULD_FAIL defined fail with exactly
one error, which contains the text. -fsyntax-only: nothing is written, so cases may run side by side.
"""
import os
import re
import subprocess
import sys


def compile_case(compiler, flags, case, *more):
    command = [compiler, f"@{flags}", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
               "-fdiagnostics-color=never", *more, case]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return done.returncode, done.stdout + done.stderr


def main():
    compiler, flags, case = sys.argv[1:]
    with open(case) as source:
        expected = re.findall(r"^// expect: (.*\S)\s*$", source.read(), re.M)
    if len(expected) != 1:
        return f"needs exactly one line '// expect: text', has {len(expected)}"
    status, output = compile_case(compiler, flags, case)
    if status != 0:
        return f"must compile without TANDEM_SHOULD_FAIL, but:\n{output}"
    status, output = compile_case(compiler, flags, case, "-DTANDEM_SHOULD_FAIL")
    if status == 0:
        return f"compiles with TANDEM_SHOULD_FAIL, but should say: {expected[0]}"
    errors = re.findall(r"^.*?(?:fatal )?error: .*$", output, re.M)
    if len(errors) != 1:
        return f"must give exactly one error, but gives {len(errors)}:\n{output}"
    # clang 14 repeats the text as a string literal, with its quotes escaped.
    if expected[0] not in errors[0].replace('\\"', '"'):
        return f"the error does not contain the text\n  expected: {expected[0]}\n  error:    {errors[0]}"
    return None


if __name__ == "__main__":
    problem = main()
    if problem:
        print(f"{sys.argv[-1]}: {problem}")
    sys.exit(1 if problem else 0)
