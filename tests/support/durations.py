"""Prints a table of seconds per test file and the slowest tests, from pytest's JUnit report."""

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict

SLOWEST = 50


def read(path):
    """Yields the file, the test and its seconds, setup and teardown included."""
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        yield file, case.get("name"), float(case.get("time", 0)), case.find("skipped") is not None


def main(path):
    cases = list(read(path))
    seconds, tests, skipped = defaultdict(float), defaultdict(int), defaultdict(int)
    for file, _, time, was_skipped in cases:
        seconds[file] += time
        tests[file] += 1
        skipped[file] += was_skipped
    print("| seconds | tests | skipped | file |\n|---|---|---|---|")
    for file in sorted(seconds, key=seconds.get, reverse=True):
        print(f"| {seconds[file]:.1f} | {tests[file]} | {skipped[file]} | {file} |")
    print(f"| {sum(seconds.values()):.1f} | {len(cases)} | {sum(skipped.values())} | all |\n")
    print("| seconds | test |\n|---|---|")
    for file, name, time, _ in sorted(cases, key=lambda case: -case[2])[:SLOWEST]:
        print(f"| {time:.1f} | {file}::{name} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
