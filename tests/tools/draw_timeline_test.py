#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/draw_timeline.py on traces written here."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "draw_timeline.py"
SVG = "{http://www.w3.org/2000/svg}"
WAIT = "#d62728"


def trace(spans, process="actual"):
    rows = {"operator": 1, "fetch": 2}
    events = [{"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": process}}]
    events += [{"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": {"name": lane}}
               for lane, row in rows.items()]
    events += [{"ph": "X", "pid": 1, "tid": rows[lane], "name": name, "ts": begin, "dur": duration}
               for lane, name, begin, duration in spans]
    return {"traceEvents": events}


class DrawTimeline(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def draw(self, traces, *flags):
        entries = []
        for title, spans in traces.items():
            path = self.folder / f"{title}.json"
            path.write_text(json.dumps(trace(spans)), encoding="utf-8")
            entries.append(f"{title}={path}")
        output = self.folder / "out.svg"
        result = subprocess.run([sys.executable, TOOL, output, *entries, *flags],
                                capture_output=True, text=True, timeout=60)
        return result, ElementTree.parse(output).getroot() if output.exists() else None

    def boxes(self, picture, colour):
        return [float(box.get("width")) for box in picture.iter(SVG + "rect")
                if box.get("fill") == colour]

    def test_both_files_have_one_scale(self):
        _, picture = self.draw({"before": [("fetch", "param 1", 0, 2000)],
                                "after": [("fetch", "param 1", 0, 1000)]})
        before, after = self.boxes(picture, "#54a24b")
        self.assertAlmostEqual(before / after, 2.0, places=1)

    def test_waits_are_red_and_not_counted_as_busy(self):
        _, picture = self.draw({"run": [("operator", "wait: transfer", 0, 750),
                                        ("operator", "operator 0", 750, 250)]})
        wait, = self.boxes(picture, WAIT)
        work, = self.boxes(picture, "#4c78a8")
        self.assertAlmostEqual(wait / work, 3.0, places=1)
        texts = [text.text for text in picture.iter(SVG + "text")]
        self.assertIn("25% busy", texts)
        self.assertIn("run: 1 ms", texts)

    def test_a_gap_that_can_be_seen_stays(self):
        _, picture = self.draw({"run": [("fetch", "a", 0, 100), ("fetch", "b", 400, 100),
                                        ("fetch", "c", 500.01, 499.99)]})
        self.assertEqual(len(self.boxes(picture, "#54a24b")), 2)

    def test_device_bytes_are_steps_to_one_scale(self):
        paths = {}
        for title, size in (("small", 2**20), ("large", 2**21)):
            paths[title] = self.folder / f"{title}.json"
            events = trace([("operator", "operator 0", 0, 100)])
            events["traceEvents"].append({"ph": "C", "pid": 1, "name": "DEVICE bytes", "ts": 0,
                                          "args": {"bytes": size}})
            paths[title].write_text(json.dumps(events), encoding="utf-8")
        output = self.folder / "out.svg"
        subprocess.run([sys.executable, TOOL, output, f"a={paths['small']}",
                        f"b={paths['large']}@actual"], check=True, timeout=60)
        heights = []
        for shape in ElementTree.parse(output).getroot().iter(SVG + "polygon"):
            ys = [float(point.split(",")[1]) for point in shape.get("points").split()]
            heights.append(max(ys) - min(ys))
        self.assertEqual(len(heights), 2)
        self.assertAlmostEqual(heights[1] / heights[0], 2.0, places=1)

    def test_figures_stand_beside_the_rows_and_a_legend_names_each_colour(self):
        _, picture = self.draw({"run": [("operator", "wait: transfer", 0, 750), ("operator", "operator 0", 750, 250),
                                        ("fetch", "param 1", 0, 1000)]})
        right = max(float(box.get("x", 0)) + float(box.get("width")) for box in picture.iter(SVG + "rect")
                    if box.get("x") is not None)
        figures = [text for text in picture.iter(SVG + "text") if text.text.endswith("busy")]
        self.assertEqual(len(figures), 2)
        for figure in figures:
            self.assertGreater(float(figure.get("x")), right)
        drawn = {box.get("fill") for box in picture.iter(SVG + "rect")} - {"white"}
        self.assertEqual({dot.get("fill") for dot in picture.iter(SVG + "circle")}, drawn)
        self.assertLessEqual({"operators compute", "copies to DEVICE", "an operator waits", "idle"},
                             {text.text for text in picture.iter(SVG + "text")})

    def test_another_process_is_named(self):
        result, picture = self.draw({"run": [("fetch", "a", 0, 1)]}, "--process", "planned")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("no process 'planned'", result.stderr)
        self.assertIsNone(picture)


if __name__ == "__main__":
    unittest.main()
