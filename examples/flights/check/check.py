#!/usr/bin/env python3
"""The figures of the flights example, computed straight from the CSV.

    check.py CSV                      one line of JSON, the figures
    check.py --compare RESULT CSV     compares the last line of RESULT (`-`: standard input), which the
                                      example printed, with its own; names each difference and exits 1

An independent second opinion: another language than the example's, the standard library only, and no
service. RESULT may have more fields than these. If it has "stores" (flights counted in each store),
each count must equal "flights". CSV may be gzipped.
"""

import argparse
import collections
import csv
import gzip
import json
import math
import sys

# How the source writes "no value". An empty field would mean the same; it has none.
MISSING = ("", "NA")


def figures(path):
    flights = cancelled = no_tailnum = departed_without_arr_delay = 0
    delay_sum = delay_count = 0
    aircraft = set()
    by_carrier = collections.Counter()
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            flights += 1
            by_carrier[row["carrier"]] += 1
            departed = row["dep_time"] not in MISSING
            arr_delay = row["arr_delay"]
            if not departed:
                cancelled += 1
            elif arr_delay in MISSING:
                departed_without_arr_delay += 1
            if row["tailnum"] in MISSING:
                no_tailnum += 1
            else:
                aircraft.add(row["tailnum"])
            if arr_delay not in MISSING:
                # whole minutes: the sum is exact, and only the division rounds
                delay_sum += int(arr_delay)
                delay_count += 1
    return {
        "flights": flights,
        "cancelled": cancelled,
        "aircraft": len(aircraft),
        "no_tailnum": no_tailnum,
        "departed_without_arr_delay": departed_without_arr_delay,
        "mean_arr_delay_min": delay_sum / delay_count if delay_count else None,
        "by_carrier": dict(sorted(by_carrier.items())),
    }


def same(field, expected, found):
    if isinstance(found, bool) or not isinstance(found, (int, float, type(None))):
        return False
    if field == "mean_arr_delay_min" and None not in (expected, found):
        return math.isclose(expected, found, rel_tol=1e-9)
    return expected == found


def differences(expected, found):
    """One line of text for each field that differs."""
    for field, value in expected.items():
        if field not in found:
            yield f"{field}: missing, expected {value}"
        elif field != "by_carrier":
            if not same(field, value, found[field]):
                yield f"{field}: {found[field]!r}, expected {value}"
        elif not isinstance(found[field], dict):
            yield f"{field}: {found[field]!r}, expected an object"
        else:
            for carrier in sorted(value.keys() | found[field].keys()):
                mine, theirs = value.get(carrier), found[field].get(carrier)
                if carrier not in found[field] or not same(field, mine, theirs):
                    yield f"{field}.{carrier}: {theirs!r}, expected {mine}"
    stores = found.get("stores", {})
    if not isinstance(stores, dict):
        yield f"stores: {stores!r}, expected an object"
        return
    for store, count in stores.items():
        if not same("stores", expected["flights"], count):
            yield f"stores.{store}: {count!r}, expected {expected['flights']}"


def last_line(path):
    with sys.stdin if path == "-" else open(path, encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if line.strip()]
    if not lines:
        sys.exit(f"check.py: {path} is empty")
    try:
        found = json.loads(lines[-1])
    except json.JSONDecodeError as error:
        sys.exit(f"check.py: the last line of {path} is not JSON ({error}): {lines[-1][:200]}")
    if not isinstance(found, dict):
        sys.exit(f"check.py: the last line of {path} is not a JSON object")
    return found


def main():
    parser = argparse.ArgumentParser(description="The figures of the flights example, straight from the CSV.")
    parser.add_argument("--compare", metavar="RESULT", help="a file whose last line is the example's JSON")
    parser.add_argument("csv", metavar="CSV")
    arguments = parser.parse_args()
    expected = figures(arguments.csv)
    if arguments.compare is None:
        print(json.dumps(expected))
        return
    found = list(differences(expected, last_line(arguments.compare)))
    for line in found:
        print(f"differs: {line}", file=sys.stderr)
    if found:
        sys.exit(1)
    print(f"all figures of {expected['flights']} flights agree", file=sys.stderr)


if __name__ == "__main__":
    main()
