# SPDX-License-Identifier: Apache-2.0
"""syntax_only.py COMPILER ARGUMENTS: a compiler launcher that checks a file and writes an empty object for it.

Snippets are never linked, and making code of them takes longer than reading them.
"""
import subprocess
import sys

arguments = sys.argv[1:]
status = subprocess.run([*arguments, "-fsyntax-only"]).returncode
if status == 0:
    open(arguments[arguments.index("-o") + 1], "w").close()
sys.exit(status)
