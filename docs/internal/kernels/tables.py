"""Makes the tables of traces/kernels from the logs of probe.py.

usage: python tables.py LOG.jsonl.gz...     writes conv.tsv and h200.jsonl (pack both with zstd -19)
"""
import collections, gzip, json, random, re, sys

SIZES = {"f32": ("f", 0), "bf16": ("h", 1), "f16": ("e", 2)}


def load():
    for path in sys.argv[1:]:
        for line in gzip.open(path, "rt"):
            yield json.loads(line)


def contiguous(t):
    n = 1
    for size, stride in reversed(list(zip(t[1], t[2]))):
        if size != 1 and stride != n:
            return False
        n *= size
    return True


def scratch(d):
    return [e[1] for e in d["ev"] if e[0] == "a" and e[2] is None]


def convolutions(logs):
    """A line for each geometry, then one for each batch, type and layout with the workspaces of the three passes (-1: not seen)."""
    table = collections.defaultdict(dict)
    rows = [d for d in logs if d["op"] in ("aten.convolution.default", "aten.convolution_backward.default") and d["a"]["input"]["t"][4] == "u"]
    rows.sort(key=lambda d: SIZES[d["a"]["input"]["t"][0]][1])
    for d in rows:
        a = d["a"]
        mask = a.get("output_mask")
        kind = "f" if mask is None else {(True, False): "d", (False, True): "w"}.get(tuple(mask[:2]))
        x, w, y = a["input"]["t"], a["weight"]["t"], (d["o"][0] if mask is None else a["grad_output"])["t"]
        ws = scratch(d)
        if kind is None or len(ws) > 1:
            continue
        last = 0
        if not contiguous(x) or not contiguous(y):
            if len(x[1]) != 4 or contiguous(x) or (contiguous(y) and contiguous(w)):
                continue
            last = 1
        nd = len(x[1]) - 2
        geometry = (nd, int(a["transposed"]), x[1][1], y[1][1], a["groups"], *w[1][2:], *a["stride"], *a["padding"], *a["dilation"], *x[1][2:], *y[1][2:])
        table[geometry].setdefault((x[1][0], SIZES[x[0]][0], last), {}).setdefault(kind, ws[0] if ws else 0)
    with open("conv.tsv", "w") as f:
        f.write("# cuDNN workspaces on an H200 (torch 2.11.0+cu130, cuDNN 9.19): a line per geometry, then one per batch, type and layout.\n")
        for g in sorted(table):
            f.write("g " + " ".join(map(str, g)) + "\n")
            for (batch, kind, last), ws in sorted(table[g].items()):
                f.write(f"{batch} {kind}{'l' if last else ''} " + " ".join(str(ws.get(p, -1)) for p in "fdw") + "\n")


def compact(x):
    if isinstance(x, dict) and "t" in x:
        t, n, row = x["t"], 1, []
        for size in reversed(t[1]):
            row.insert(0, n)
            n *= max(size, 1)
        out = [t[0] if t[0][0] in "fbicu" and "." not in t[0] else "u8", t[1], None if row == t[2] else t[2]]
        if t[4] != "u":
            out.append("host")
        while out[-1] is None:
            out.pop()
        return {"t": out}
    if isinstance(x, list):
        return [compact(v) for v in x]
    if isinstance(x, float) and (x != x or abs(x) == float("inf")):
        return None
    return x


def sample(logs, rules):
    """Up to 60 calls of each operation with a rule, 250 of convolutions, 3 of others."""
    random.seed(4)
    by, seen = collections.defaultdict(list), set()
    for d in logs:
        space, _, rest = d["op"].partition(".")
        name = space + "::" + rest.removesuffix(".default")
        text = json.dumps([d["a"], d["o"]])
        if len(text) > 9000 or "sparse" in text or '"e"' in text or (name, text) in seen or ('"u"' not in text and not d["ev"]):
            continue
        seen.add((name, text))
        by[name.split(".")[0]].append({"op": name, "a": {k: compact(v) for k, v in d["a"].items()}, "o": compact(d["o"]), "ev": d["ev"]})
    with open("h200.jsonl", "w") as f:
        for name, calls in sorted(by.items()):
            most = 250 if "convolution" in name else 60 if name in rules else 3
            for d in random.sample(calls, most) if len(calls) > most else calls:
                f.write(json.dumps(d, separators=(",", ":")) + "\n")


logs = list(load())
convolutions(logs)
sample(logs, set(re.findall(r'"((?:aten|torchvision)::[A-Za-z_0-9]+)"', open("traces/kernels/rules.go").read())))
