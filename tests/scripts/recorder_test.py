# SPDX-License-Identifier: Apache-2.0
"""recorder_test.py ROOT: what scripts/recorder finds in dumps, and what it does not take for a fault.

The dumps are written by hand here; tests/ranks/failure has those of real ranks.
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def call(sequence, verb="all_reduce", **more):
    record = {"sequence": sequence, "verb": verb, "dtype": "float32", "element_bytes": 4, "count": 10,
              "reduction": "Sum" if verb == "all_reduce" else None, "root": None, "algorithm": None, "layout": 0,
              "site": "a.cpp:1 (f)", "state": "finished", "age": 5.0, "waits_for": None}
    return {**record, **more}


def waiting(sequence, rank, **more):
    return call(sequence, state="begun", waits_for=rank, **more)


class Job:
    """Dumps of `size` ranks; the scripts' verdict on them."""

    def __init__(self, root, folder, size):
        self.root, self.folder, self.size = root, folder, size
        self.dumps = {rank: {"tandem_recorder": 1, "rank": rank, "process": 100 + rank, "host": "h", "time": 1000.0,
                             "reason": "signal", "communicators": []} for rank in range(size)}

    def world(self, rank, *records, failure=None, begun=None):
        self.communicator(rank, 1, list(range(self.size)), rank, *records, failure=failure, begun=begun)

    def communicator(self, rank, number, members, inner, *records, failure=None, begun=None):
        self.dumps[rank]["communicators"].append(
            {"id": number, "rank": inner, "members": members, "failure": failure,
             "begun": len(records) if begun is None else begun, "records": list(records)})

    def verdict(self, *options):
        for rank, dump in self.dumps.items():
            (self.folder / f"rank{rank}.json").write_text(json.dumps(dump))
        return run(self.root, *options, self.folder)


def run(root, *arguments):
    done = subprocess.run([sys.executable, root / "scripts/recorder", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def all_agree(job):
    for rank in range(3):
        job.world(rank, call(1), call(2, "barrier"))
    status, text = job.verdict()
    assert status == 0 and text == "In the world, ranks 0-2 agree; the last operation is 2\n", text


def a_running_job(job):
    """Dumps are not of one moment: who is ahead has waited for a moment only."""
    job.world(0, call(1), waiting(2, 1, age=0.2))
    job.world(1, call(1))
    job.world(2, call(1), waiting(2, 1, age=0.1))
    status, text = job.verdict()
    assert status == 0 and "note: in the world, rank 1 has come to operation 1 and others to 2" in text, text
    status, text = job.verdict("--patience", "0.05")
    assert status == 1 and "rank 1 has not called operation 2, all_reduce of 10 float32, Sum" in text, text


def long_computing(job):
    """Begun long ago and waiting for nobody: a pending operation, or a rank at work."""
    for rank in range(3):
        job.world(rank, call(1), call(2, state="begun", age=100.0))
    assert job.verdict()[0] == 0


def no_dump(job):
    job.world(0, call(1), waiting(2, 1))
    job.world(2, call(1), call(2, state="failed", waits_for=1), failure="rank 1 died")
    del job.dumps[1]
    status, text = job.verdict()
    assert status == 1 and text.startswith("Rank 1 has no dump"), text
    assert "rank 0 waits for rank 1 (begun 5.0 s ago); rank 2 waited for rank 1" in text, text
    assert "rank 2 has failed: rank 1 died" in text, text


def finished_on_some(job):
    job.world(0, call(1))
    job.world(1, waiting(1, 2))
    job.world(2, call(1, state="begun"))
    status, text = job.verdict()
    assert status == 1 and "rank 1 waits for rank 2" in text, text
    assert "rank 0 has finished it; rank 2 is in it and waits for nobody" in text, text


def another_count(job):
    for rank in range(3):
        job.world(rank, call(1), call(2, count=10 if rank else 11, state="failed"))
    status, text = job.verdict()
    assert status == 1 and "operation 2 is the first that differs, in the number of elements: rank 0 has all_reduce " \
        "of 11 float32, Sum, called from a.cpp:1 (f); ranks 1 and 2 have all_reduce of 10" in text, text
    assert "left out" not in text, text


def left_out(job):
    one, two, three = ({"site": f"a.cpp:{line} (f)"} for line in (1, 2, 3))
    begin = [call(1, **one), call(2, **two), call(3, "barrier", **three), call(4, **one)]
    job.world(0, *begin, call(5, **two))
    job.world(1, *begin, call(5, **two))
    job.world(2, *begin, call(5, "barrier", **three))
    status, text = job.verdict()
    assert status == 1 and "Rank 2 seems to have left out all_reduce of 10 float32, Sum, called from a.cpp:2 (f): " \
        "it came at this point before (operation 2)" in text, text
    assert text.count("left out") == 1, text


def other_places(job):
    for rank in range(3):
        job.world(rank, call(1, site=f"a.cpp:{rank // 2} (f)"))
    status, text = job.verdict()
    assert status == 0 and "note: in the world, operation 1 is called from different places: " \
        "ranks 0 and 1 from a.cpp:0 (f); rank 2 from a.cpp:1 (f)" in text, text


def part_of_the_world(job):
    """Ranks are those of the world, whatever a communicator calls them."""
    for rank in range(3):
        job.world(rank, call(1, "split"))
    job.communicator(2, 77, [2, 0], 0, call(1))
    job.communicator(0, 77, [2, 0], 1, call(1), waiting(2, 0))
    status, text = job.verdict()
    assert status == 1 and text.startswith("In the communicator of ranks 0 and 2 (number 77), rank 2 has not called "
                                           "operation 2"), text
    assert "rank 0 has, 5.0 s ago" in text, text


def messages(job):
    job.world(0, call(1, "send", peer=1, count=5), begun=1)
    job.world(1, call(1, "recv", peer=0, count=6, state="failed"),
              waiting(2, 0, verb="recv", peer=0, reduction=None), begun=2)
    job.world(2, begun=0)
    status, text = job.verdict()
    assert status == 1 and "rank 0 has sent send of 5 float32, called from" in text, text
    assert "rank 1 waits in message 2 with rank 0" in text, text
    assert "rank 0 has not sent it, its last to rank 1 is number 1" in text, text


def an_earlier_join(job):
    """Newest first: what is left of a world that failed says nothing of the one that was joined after it."""
    for rank in range(3):
        job.world(rank, call(1))
        job.world(rank, call(1), call(2, state="failed"), failure="long ago")
    assert job.verdict()[0] == 0


def gone(job):
    """Who has left is missing only to those that still wait."""
    job.world(0, call(1))
    job.world(1, call(1))
    status, text = job.verdict()
    assert status == 0 and "note: in the world, rank 2 has no part: not joined" in text, text
    job.dumps[0]["communicators"][0]["records"].append(waiting(2, 2))
    job.dumps[1]["communicators"][0]["records"].append(waiting(2, 2))
    status, text = job.verdict()
    assert status == 1 and "In the world, rank 2 has no part: not joined" in text, text


def old_dumps(job):
    for rank in range(3):
        job.world(rank, call(1))
    job.dumps[1]["time"] -= 3600
    status, text = job.verdict()
    assert status == 0 and "note: the dump of rank 1 is 3,600 s older than the newest" in text, text


def only_the_newest_operations(job):
    """A recorder that is full of messages does not know which operation was its last."""
    job.world(0, *[call(n, "send", peer=1) for n in range(7, 10)], begun=2000)
    job.world(1, call(1))
    job.world(2, call(1), waiting(2, 0))
    status, text = job.verdict()
    assert status == 1 and "rank 1 has not called" in text and "ranks 0 and 1" not in text, text


def wrong_use(job):
    root, folder = job.root, job.folder
    assert run(root)[0] == 2
    assert run(root, folder / "none.json")[0] == 2
    (folder / "rank0.json").write_text('{"tandem_recorder": 1, "communicators": [')
    assert run(root, folder)[0] == 2
    (folder / "rank0.json").write_text("[]")
    status, text = run(root, folder / "rank0.json")
    assert status == 2 and "is no dump of a flight recorder" in text, text
    (folder / "rank0.json").unlink()
    status, text = run(root, folder)
    assert status == 2 and "no dumps in" in text, text
    assert run(root, "--help")[0] == 0


def main():
    root = pathlib.Path(sys.argv[1])
    for case in (all_agree, a_running_job, long_computing, no_dump, finished_on_some, another_count, left_out,
                 other_places, part_of_the_world, messages, an_earlier_join, gone, old_dumps,
                 only_the_newest_operations, wrong_use):
        with tempfile.TemporaryDirectory() as folder:
            case(Job(root, pathlib.Path(folder), 3))
        print(f"{case.__name__}: ok")


if __name__ == "__main__":
    main()
