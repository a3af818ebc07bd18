# SPDX-License-Identifier: Apache-2.0
"""compare_weights.py A B: prints as JSON how many weights two safetensors files have, and how many differ in bits.

Read by the format's own library, and apart from what wrote them.
"""
import json
import sys

import numpy
from safetensors.numpy import load_file


def main():
    first, second = (load_file(path) for path in sys.argv[1:3])
    if first.keys() != second.keys():
        sys.exit(f"the names differ: {sorted(first.keys() ^ second.keys())}")
    weights = differing = 0
    for name, values in first.items():
        other = second[name]
        if values.shape != other.shape or values.dtype != numpy.float32 or other.dtype != numpy.float32:
            sys.exit(f"{name} is {values.dtype} {values.shape} here and {other.dtype} {other.shape} there")
        weights += values.size
        differing += int(numpy.count_nonzero(values.view(numpy.int32) != other.view(numpy.int32)))
    print(json.dumps({"weights": weights, "differing": differing}))


if __name__ == "__main__":
    main()
