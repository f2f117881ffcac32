#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws trace files of `memstat trace` or `gemini-bench` as one SVG picture, to the same scale.

    tools/draw_timeline.py OUTPUT.svg 'on demand=before.json' 'planned=after.json' [--process actual]

One row a lane, one band a file, and DEVICE bytes beneath; figures stand beside the rows, and a legend below them.
TITLE=FILE@PROCESS takes that process of the file. Needs nothing but Python.
"""
import argparse
import html
import json
import pathlib
import sys

WIDTH, LEFT, RIGHT, ROW, GAP, BAND_GAP, TOP = 1300, 110, 120, 26, 6, 44, 24
LEGEND, DOT = 24, 5
COLOURS = {"operator": "#4c78a8", "fetch": "#54a24b", "evict": "#f2a53a", "update": "#b279a2",
           "nvme read": "#72b7b2", "nvme write": "#9d755d", "device update": "#e377c2"}
WAIT = "#d62728"
COUNTER = "#bab0ac"
IDLE = "#f4f4f4"
# What a lane's boxes are, for the legend.
MEANINGS = {"operator": "operators compute", "fetch": "copies to DEVICE", "evict": "copies from DEVICE",
            "update": "updates in HOST", "nvme read": "reads of NVMe", "nvme write": "writes to NVMe",
            "device update": "updates on DEVICE"}


def read_process(path, process):
    """({lane: [(begin_us, end_us, is_wait)]}, [(us, DEVICE bytes)]) of one process of a trace file."""
    events = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["traceEvents"]
    pids = {event["pid"]: event["args"]["name"] for event in events
            if event["ph"] == "M" and event["name"] == "process_name"}
    chosen = [pid for pid, name in pids.items() if name == process]
    if not chosen:
        raise SystemExit(f"{path} has no process '{process}'; it has {sorted(pids.values())}")
    rows = {event["tid"]: event["args"]["name"] for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == chosen[0]}
    lanes = {}
    for event in events:
        if event["ph"] == "X" and event["pid"] == chosen[0]:
            lanes.setdefault(rows[event["tid"]], []).append(
                (event["ts"], event["ts"] + event["dur"], event["name"].startswith("wait")))
    counters = [(event["ts"], event["args"]["bytes"]) for event in events
                if event["ph"] == "C" and event["pid"] == chosen[0]]
    return lanes, sorted(counters)


def merged(spans, least_us):
    """Joins spans of one kind that lie closer than a pixel: thousands of events, hundreds of boxes."""
    joined = []
    for begin, end, is_wait in sorted(spans):
        if joined and joined[-1][2] == is_wait and begin - joined[-1][1] < least_us:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end, is_wait])
    return joined


def busy_fraction(spans, length_us):
    covered, last = 0.0, 0.0
    for begin, end, is_wait in sorted(spans):
        if not is_wait:
            covered += max(0.0, end - max(begin, last))
            last = max(last, end)
    return covered / length_us if length_us else 0.0


def counter_row(counters, end_us, most_bytes, scale, y):
    """The elements of a row that shows `counters` as steps, full at most_bytes."""
    points = [f"{LEFT},{y + ROW}"]
    height = 0.0
    for us, size in counters:
        points.append(f"{LEFT + us * scale:.1f},{y + ROW - height:.1f}")
        height = ROW * size / most_bytes
        points.append(f"{LEFT + us * scale:.1f},{y + ROW - height:.1f}")
    right = LEFT + end_us * scale
    points += [f"{right:.1f},{y + ROW - height:.1f}", f"{right:.1f},{y + ROW}"]
    most = max(size for _, size in counters)
    return [f'<text x="{LEFT - 8}" y="{y + ROW * 0.65:.0f}" text-anchor="end">DEVICE bytes</text>',
            f'<polygon points="{" ".join(points)}" fill="{COUNTER}"/>',
            figure(y, f"at most {most / 2**20:,.1f} MiB")]


def figure(y, text):
    """A row's figure, beside its boxes."""
    return f'<text x="{WIDTH - RIGHT + 8}" y="{y + ROW * 0.65:.0f}" fill="#555">{text}</text>'


def legend(bands, y):
    """The elements of one line that says what each colour in `bands` means."""
    entries = [(colour, MEANINGS[lane]) for lane, colour in COLOURS.items()
               if any(lane in lanes for _, lanes, _ in bands)]
    if any(is_wait for _, lanes, _ in bands for spans in lanes.values() for *_, is_wait in spans):
        entries.append((WAIT, "an operator waits"))
    if any(counters for *_, counters in bands):
        entries.append((COUNTER, "DEVICE bytes"))
    entries.append((IDLE, "idle"))
    parts, x = [], LEFT
    for colour, meaning in entries:
        parts.append(f'<circle cx="{x + DOT}" cy="{y + DOT}" r="{DOT}" fill="{colour}" stroke="#999"/>'
                     f'<text x="{x + 2 * DOT + 5}" y="{y + 2 * DOT}" font-size="12">{meaning}</text>')
        x += 2 * DOT + 18 + round(6.6 * len(meaning))
    return parts


def draw(bands):
    """The SVG text of [(title, lanes, counters)]."""
    length = max((end for _, lanes, _ in bands for spans in lanes.values() for _, end, _ in spans),
                 default=1.0)
    most_bytes = max((size for *_, counters in bands for _, size in counters), default=0) or 1
    scale = (WIDTH - LEFT - RIGHT) / length
    parts, y = [], TOP
    for title, lanes, counters in bands:
        own = max((end for spans in lanes.values() for _, end, _ in spans), default=0.0)
        parts.append(f'<text x="{LEFT}" y="{y}" font-weight="bold">{html.escape(title)}: '
                     f'{own / 1e3:,.0f} ms</text>')
        y += GAP
        for lane, colour in COLOURS.items():
            if lane not in lanes:
                continue
            parts.append(f'<text x="{LEFT - 8}" y="{y + ROW * 0.65:.0f}" text-anchor="end">{lane}'
                         f'</text><rect x="{LEFT}" y="{y}" width="{length * scale:.1f}" '
                         f'height="{ROW}" fill="{IDLE}"/>')
            for begin, end, is_wait in merged(lanes[lane], 0.7 / scale):
                parts.append(f'<rect x="{LEFT + begin * scale:.1f}" y="{y}" '
                             f'width="{max((end - begin) * scale, 0.4):.1f}" height="{ROW}" '
                             f'fill="{WAIT if is_wait else colour}"/>')
            parts.append(figure(y, f"{busy_fraction(lanes[lane], own):.0%} busy"))
            y += ROW + GAP
        if counters:
            parts += counter_row(counters, own, most_bytes, scale, y)
            y += ROW + GAP
        y += BAND_GAP - GAP
    parts += legend(bands, y - BAND_GAP + TOP)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y - BAND_GAP + TOP + LEGEND}" '
            f'font-family="sans-serif" font-size="13">\n<rect width="100%" height="100%" '
            f'fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("trace", nargs="+", help="TITLE=FILE or TITLE=FILE@PROCESS")
    parser.add_argument("--process", default="actual", help="which of a file's processes")
    options = parser.parse_args(arguments)
    bands = []
    for entry in options.trace:
        title, separator, path = entry.rpartition("=")
        if not separator:
            parser.error(f"'{entry}' is not TITLE=FILE")
        path, at, process = path.partition("@")
        bands.append((title, *read_process(path, process if at else options.process)))
    options.output.write_text(draw(bands), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
