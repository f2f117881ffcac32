#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes whom, and the outer form of every source file (docs/style.md, 2 and 8).

include_rules.py ROOT        checks the tree, prints one line a violation, exits with 1 if any
include_rules.py --self-test plants every kind of violation and checks that it is found
"""
import pathlib
import re
import sys
import tempfile

# What the files of a top folder may include of ours beside itself.
MAY_INCLUDE = {
    "gemini": [],
    "policies": ["gemini"],
    "server": ["gemini", "policies"],
    "client": ["gemini", "policies"],
    "trainer": ["gemini", "policies", "client"],
    "tools": ["gemini", "policies", "server", "client", "trainer"],
    "docs/examples": ["gemini", "client"],
    "tests": ["gemini", "policies", "server", "client", "trainer", "tools"],
}
# The floors of a folder, from below: a sub-folder includes itself and the floors below it, not the others of its own.
# HERE is the folder's own files.
HERE = "."
FLOORS = {
    "gemini": [["system"], [HERE], ["config", "files", "shm", "plan"]],
    "policies": [["trace"], ["simulator", "mesh", "pipeline"], ["planner", "scaling"]],
    "server": [["loop"], ["wire", "tiers"], ["nvme"], ["spaces", "leases", "plans"], [HERE]],
    "client": [["wire"], ["copy"], ["kernels"], ["host"], ["device"], ["update", "plan"], ["session"], ["torch"],
               ["front"]],
    "client/torch": [["hook"], ["device"], ["model"]],
    "trainer": [["families"], ["tasks", "data", "config"], ["checkpoint"], [HERE], ["models", "store"], ["parallel"], ["forecast"], ["run"]],
}
# Besides the folder's own rule: the headers by which programs embed the server, and give it a GPU.
EMBEDDED_SERVER = {"server/embedded_server.h", "server/tiers/gpu_device.h"}
MAY_EMBED = re.compile(r"(client/front/.*|trainer/run/training_memory\.(h|cc)|docs/examples/.*|tools/.*|tests/.*)$")
# The front door, as it is installed.
INSTALLED_HEADER = "gemini/gemini.h"
MAY_USE_TORCH = re.compile(r"(client/torch|client/front|trainer(?!/families)|tools|tests|docs/examples)/")
# A build without a CUDA toolkit leaves these out.
MAY_USE_CUDA = re.compile(r"tests/gpu/|.*cuda[^/]*$")
CUDA_INCLUDE = re.compile(r"(cuda|nccl|nvml|cupti)[^/]*\.h$|.*/[^/]*cuda[^/]*\.h$")
TORCH_INCLUDE = re.compile(r"(torch|ATen|c10)/")
TORCH_NAME = re.compile(r"(?<!namespace )\b(at|c10|torch)::")
TORCH_DECLARATION = re.compile(r"\bnamespace (at|c10|torch)\b")
TEST_ONLY = re.compile(r"(^tests/|_(faulty|conformance|test|fuzz|bench)\.h$)")
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]', re.MULTILINE)
# Where it is a date that is asked for. Time-outs and durations are of gemini/system/monotonic_clock.h: the wall clock jumps.
WALL_CLOCK = re.compile(r"\babsl::Now\(|\bsystem_clock::now\(|\bCLOCK_REALTIME\b")
MAY_USE_WALL_CLOCK = re.compile(r"server/server_requests\.cc$|tests/")
TAKES_TIME = re.compile(r"absl::Now\(\)\s*[-+<>]|[-+<>]=?\s*absl::Now\(")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SOURCE_ROOTS = ["gemini", "policies", "server", "client", "trainer", "tools", "tests", "docs/examples"]
MOST_LINES = {".h": 300, ".cc": 600, ".cu": 600}
MOST_COLUMNS = 100


def top_of(path):
    """The top folder of ours that a path or an include is in, or None for somebody else's header."""
    return next((top for top in MAY_INCLUDE if path.startswith(top + "/")), None)


def floor_of(folder, path):
    """The floor of `folder` that the file at `path` is on, and its room there; None: no floor is named for it."""
    rest = path[len(folder) + 1:]
    room = rest.split("/")[0] if "/" in rest else HERE
    return next(((floor, room) for floor, rooms in enumerate(FLOORS[folder]) if room in rooms), None)


def refusal_of(path, include):
    """Why the file at `path` may not include `include`, a header of ours; None: it may."""
    top, other = top_of(path), top_of(include)
    if other != top and other not in MAY_INCLUDE[top]:
        return f"{top} may include {', '.join([top] + MAY_INCLUDE[top])} only"
    for folder in FLOORS:
        if not (path.startswith(folder + "/") and include.startswith(folder + "/")):
            continue
        floor, other_floor = floor_of(folder, path), floor_of(folder, include)
        if None in (floor, other_floor):
            return f"one of both is on no floor of {folder} (FLOORS in tests/tools/include_rules.py)"
        if floor[1] != other_floor[1] and floor[0] <= other_floor[0]:
            below = [room for rooms in FLOORS[folder][:floor[0]] for room in rooms]
            return f"of {folder}, {floor[1]} may include {', '.join([floor[1]] + below)} only"
    return None


def reaches_torch(root, path, seen):
    """Whether `path` includes a header of Torch, itself or through headers of ours."""
    if path in seen or not (root / path).exists():
        return False
    seen.add(path)
    code = COMMENT.sub("", (root / path).read_text(encoding="utf-8"))
    return any(TORCH_INCLUDE.match(include) or
               (top_of(include) and reaches_torch(root, include, seen))
               for _, include in INCLUDE.findall(code))


def violations_of(root, path):
    text = (root / path).read_text(encoding="utf-8")
    if not text.startswith("// SPDX-License-Identifier: Apache-2.0\n"):
        yield "does not begin with the SPDX line"
    num_lines = text.count("\n")
    most_lines = MOST_LINES[pathlib.PurePosixPath(path).suffix]
    if num_lines > most_lines:
        yield f"has {num_lines} lines, at most {most_lines}: look for the second concept"
    wide = [number for number, line in enumerate(text.split("\n"), 1) if len(line) > MOST_COLUMNS]
    if wide:
        yield (f"has {len(wide)} lines wider than {MOST_COLUMNS} columns, the first of them line {wide[0]}: a comment "
               "that wide has more than one idea")
    if path.endswith(".h") and "#pragma once" not in text:
        yield "has no #pragma once"
    code = COMMENT.sub("", text)
    includes = INCLUDE.findall(code)
    if not path.startswith("tests/") and any(path.startswith(folder + "/") and floor_of(folder, path) is None
                                               for folder in FLOORS):
        yield "is on no floor of its folder (FLOORS in tests/tools/include_rules.py)"
    in_tests = path.startswith("tests/")
    for quote, include in includes:
        home = top_of(include)
        if home == "gemini" and include.endswith("_generated.h"):
            continue
        if include == INSTALLED_HEADER and path.startswith("docs/examples/"):
            continue
        if home is not None:
            if quote != '"':
                yield f"includes <{include}>: ours are in quotes"
            if not (root / include).exists():
                yield f"includes {include}, which does not exist"
            refusal = refusal_of(path, include)
            if refusal and not (include in EMBEDDED_SERVER and MAY_EMBED.match(path)):
                yield f"includes {include}: {refusal}"
            if TEST_ONLY.search(include) and not in_tests and not path.endswith("_bench.cc"):
                yield f"includes {include}, which is for tests only"
        elif quote == '"' and "/" not in include:
            yield f'includes "{include}": includes start at the root of the repository'
        if TORCH_INCLUDE.match(include) and not MAY_USE_TORCH.match(path):
            yield f"includes {include}: only client/torch, client/front and trainer, but its families, see Torch"
        if CUDA_INCLUDE.match(include) and not MAY_USE_CUDA.match(path):
            yield f"includes {include}: only tests/gpu and files named after CUDA do"
    if TAKES_TIME.search(code) and not in_tests:
        yield "takes a time-out or a duration by the wall clock: MonotonicNow of gemini/system/monotonic_clock.h"
    elif WALL_CLOCK.search(code) and not MAY_USE_WALL_CLOCK.match(path):
        yield "asks the wall clock: for a date it is added to MAY_USE_WALL_CLOCK, else MonotonicNow serves"
    # The target verify_torch_headers compiles behind precompiled Torch headers and cannot see this.
    undeclared = set(TORCH_NAME.findall(code)) - set(TORCH_DECLARATION.findall(code))
    if path.endswith(".h") and undeclared and not reaches_torch(root, path, set()):
        yield "names Torch's types and includes no header of Torch: it does not compile alone"
    own_header = path[:-3] + ".h" if path.endswith((".cc", ".cu")) else ""
    if own_header and (root / own_header).exists() and includes:
        if includes[0] != ('"', own_header):
            yield f"must include {own_header} first: that shows that it compiles alone"


def check(root):
    found = []
    for source_root in SOURCE_ROOTS:
        for file in sorted((root / source_root).rglob("*")):
            if file.suffix in MOST_LINES and file.is_file():
                path = file.relative_to(root).as_posix()
                found += [f"{path}: {violation}" for violation in violations_of(root, path)]
    return found


def self_test():
    spdx = "// SPDX-License-Identifier: Apache-2.0\n"
    header = spdx + "#pragma once\n"
    good = {
        "gemini/a.h": header,
        "server/embedded_server.h": header + '#include "gemini/a.h"\n',
        "client/host/a.cc": spdx + '#include "client/host/a.h"\n\n#include <vector>\n#include "gemini/a.h"\n',
        "client/host/a.h": header + '// #include "server/embedded_server.h" in a comment is none.\n',
        "client/torch/hook/h.h": header + '#include "ATen/Tensor.h"\nvoid F(at::Tensor);\n',
        "client/torch/hook/j.h": header + '#include "client/torch/hook/h.h"\nvoid G(at::Tensor);\n',
        "client/torch/hook/k.h": header + "namespace torch::nn {\nclass Module;\n}\n"
                                     "void H(const torch::nn::Module&);\n",
        "server/tiers/gpu_device.h": header + '#include "gemini/a.h"\n',
        "trainer/run/training_memory.cc": spdx + '#include "server/embedded_server.h"\n'
                                          '#include "server/tiers/gpu_device.h"\n',
        "server/server_requests.cc": spdx + "wear.Add(absl::Now());  // absl::Now() + 1 s\n",
        "gemini/cuda_a.h": header + "#include <cuda.h>\n",
        "gemini/cuda_a.cu": spdx + '#include "gemini/cuda_a.h"\n',
        "server/a_cuda.cc": spdx + '#include "gemini/cuda_a.h"\n',
        "client/update/a.h": header,
        "client/device/a.h": header + '#include "client/host/a.h"\n',
        "server/a.h": header + '#include "server/tiers/gpu_device.h"\n',
        "client/front/gemini.cc": spdx + '#include "client/torch/hook/h.h"\n'
                                         '#include "server/embedded_server.h"\n#include <c10/a.h>\n',
        "docs/examples/a.cc": spdx + "#include <gemini/gemini.h>\n#include <torch/torch.h>\n",
        "tests/client/a_test.cc": spdx + '#include "server/embedded_server.h"\n',
    }
    bad = {
        "gemini/b.h": (header + '#include "server/embedded_server.h"\n', "gemini may include"),
        "server/b.cc": (spdx + '#include "client/host/a.h"\n', "server may include"),
        "client/host/b.cc": (spdx + '#include "server/embedded_server.h"\n', "client may include"),
        "client/host/c.cc": (spdx + '#include "client/torch/hook/h.h"\n', "host may include"),
        "client/host/d.cc": (spdx + "#include <torch/torch.h>\n", "see Torch"),
        "trainer/families/a.cc": (spdx + "#include <torch/torch.h>\n", "see Torch"),
        "client/host/l.cc": (spdx + "#include <cuda_runtime_api.h>\n", "named after CUDA"),
        "server/c.cc": (spdx + '#include "gemini/cuda_a.h"\n', "named after CUDA"),
        "trainer/run/b.cc": (spdx + '#include "server/embedded_server.h"\n', "trainer may include"),
        "trainer/run/d.cc": (spdx + '#include "server/tiers/gpu_device.h"\n', "trainer may include"),
        "client/host/o.cc": (spdx + '#include "client/device/a.h"\n', "host may include"),
        "client/plan/a.cc": (spdx + '#include "client/update/a.h"\n', "plan may include"),
        "server/loop/a.cc": (spdx + '#include "server/a.h"\n', "loop may include"),
        "client/p.h": (header, "on no floor"),
        "client/torch/hook/q.cc": (spdx + '#include "client/front/f.h"\n', "torch may include"),
        "client/front/g.cc": (spdx + '#include "server/a.h"\n', "client may include"),
        "tests/client/g_test.cc": (spdx + "#include <gemini/gemini.h>\n", "in quotes"),
        "client/host/q.h": (header + "// " + "-" * 98 + "\n", "1 lines wider than 100"),
        "client/torch/hook/i.h": (header + "void F(at::Tensor);\n", "does not compile alone"),
        "client/host/e.cc": (spdx + '#include "tests/status_matchers.h"\n', "tests"),
        "client/host/f.cc": (spdx + "#include <gemini/a.h>\n", "in quotes"),
        "client/host/g.cc": (spdx + '#include "a.h"\n', "start at the root"),
        "client/host/h.cc": (spdx + '#include "gemini/none.h"\n', "does not exist"),
        "client/host/i.h": (spdx, "pragma once"),
        "client/host/j.cc": ("#include <vector>\n", "SPDX"),
        "client/host/k.cc": (spdx + "\n" * 600, "601 lines"),
        "client/host/m_cuda.cu": (spdx + "\n" * 600, "601 lines"),
        "gemini/a.cc": (spdx + '#include <vector>\n#include "gemini/a.h"\n', "first"),
        "client/host/n.cc": (spdx + "absl::Time t = absl::Now();\n", "wall clock"),
        "trainer/run/training_loop.cc": (spdx + "auto end = absl::Now() + wait;\n", "time-out"),
    }
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)

        def write(path, text):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")

        for path, text in good.items():
            write(path, text)
        assert check(root) == [], check(root)
        for path, (text, message) in bad.items():
            write(path, text)
            found = check(root)
            assert len(found) >= 1 and all(f.startswith(path + ":") for f in found), (path, found)
            assert any(message in f for f in found), (path, message, found)
            (root / path).unlink()
    print(f"found each of {len(bad)} planted violations, none in {len(good)} good files")


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 1:
        sys.exit(__doc__)
    found = check(pathlib.Path(arguments[0]))
    print("\n".join(found) or "every include and file is in order")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
