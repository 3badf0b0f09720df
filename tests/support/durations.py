"""Prints a table of seconds per test file and the slowest tests, from pytest's JUnit report.

python durations.py REPORT            # the table
python durations.py REPORT --store    # also the seconds that selection.py orders files by
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from pathlib import Path

SLOWEST = 50
STORED = Path(__file__).with_name("durations.json")


def read(path):
    """Yields the file, the test and its seconds, setup and teardown included."""
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        yield file, case.get("name"), float(case.get("time", 0)), case.find("skipped") is not None


def main(path, *options):
    cases = list(read(path))
    seconds, tests, skipped = defaultdict(float), defaultdict(int), defaultdict(int)
    for file, _, time, was_skipped in cases:
        seconds[file] += time
        tests[file] += 1
        skipped[file] += was_skipped
    print("| seconds | tests | of them skipped | file |\n|---|---|---|---|")
    for file in sorted(seconds, key=seconds.get, reverse=True):
        print(f"| {seconds[file]:.1f} | {tests[file]} | {skipped[file]} | {file} |")
    print(f"| {sum(seconds.values()):.1f} | {len(cases)} | {sum(skipped.values())} | all |\n")
    print("| seconds | test |\n|---|---|")
    for file, name, time, _ in sorted(cases, key=lambda case: -case[2])[:SLOWEST]:
        print(f"| {time:.1f} | {file}::{name} |")
    if "--store" in options:
        whole = {file: round(time) for file, time in sorted(seconds.items()) if time >= 1}
        STORED.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
