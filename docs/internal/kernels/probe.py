"""Which requests single ATen operations make of the caching allocator of a real GPU.

usage: python probe.py OUT.jsonl.gz [SECONDS]     (PROBE_ONLY=conv,rnn,... picks suites; PROBE_PART/PROBE_PARTS split the convolutions)

Calls some ten thousand operations and the steps of thirty small models under a dispatch mode and logs each distinct (operation, arguments) once, with the allocator's
events between its start and its end. tables.py makes of the logs what traces/kernels holds: the table of convolutions and the sample that its tests compare with."""
import sys, os, json, gzip, time, random, itertools, math
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
OUT = sys.argv[1]; LIMIT = float(sys.argv[2]) if len(sys.argv) > 2 else 240
T0 = time.time(); dev = "cuda"; import faulthandler; faulthandler.dump_traceback_later(70, exit=False)
torch.cuda.memory._record_memory_history(max_entries=30_000_000, context=None, stacks="python")
DT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b", torch.float64: "f64", torch.complex64: "c64", torch.complex128: "c128"}

def count():
    s = torch._C._cuda_memoryStats(0)["allocation"]["all"]
    return s["allocated"] + s["freed"]

def desc(t):
    if t.layout != torch.strided: return {"sparse": [DT.get(t.dtype, str(t.dtype)), list(t.shape)]}
    st = t.untyped_storage()
    return {"t": [DT.get(t.dtype, str(t.dtype)), list(t.shape), list(t.stride()), t.storage_offset(), t.device.type[1], st.nbytes(), st.data_ptr()]}

def enc(a):
    if isinstance(a, torch.Tensor): return desc(a)
    if isinstance(a, (list, tuple)): return [enc(x) for x in a]
    if isinstance(a, (torch.dtype,)): return DT.get(a, str(a))
    if isinstance(a, (bool, int, float, str)) or a is None: return a
    return str(a) if not isinstance(a, torch.UntypedStorage) else "storage"

def noptr(e):
    if isinstance(e, dict):
        return {"t": e["t"][:6]} if "t" in e else e
    if isinstance(e, list): return [noptr(x) for x in e]
    return e

class Truth(TorchDispatchMode):
    def __init__(self): super().__init__(); self.seen = {}; self.log = []; self.tag = ""
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        ls = tree_leaves((args, kwargs))
        names = [a.name for a in func._schema.arguments]
        e = {k: noptr(enc(v)) for k, v in list(zip(names, args)) + list(kwargs.items())}
        key = str(func) + json.dumps(e)
        k = self.seen.get(key, 0)
        if k >= 1 or len(key) > 20000:
            return func(*args, **kwargs)
        self.seen[key] = k + 1
        n0 = count()
        r = func(*args, **kwargs)
        n1 = count()
        ins = {t.untyped_storage().data_ptr() for t in ls if isinstance(t, torch.Tensor) and t.layout == torch.strided}
        outs = [enc(t) if isinstance(t, torch.Tensor) else enc(t) for t in (r if isinstance(r, (tuple, list)) else [r])]
        self.log.append((self.tag, str(func), e, outs, n0, n1, sorted(ins)))
        return r

truth = Truth()
suites = []
def suite(f): suites.append(f); return f
def E(*s, dt=torch.float32, grad=False): return torch.empty(*s, dtype=dt, device=dev).zero_().requires_grad_(grad)
def R(*s, dt=torch.float32, grad=False): return torch.randn(*s, dtype=torch.float32, device=dev).to(dt).requires_grad_(grad)
H, B16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
class Budget(Exception): pass

# ---- convolutions ----
def model_convs():
    got = []
    import torchvision
    tv = torchvision.models
    def take(name, mk, size, dims=2):
        try:
            with torch.device("meta"): m = mk()
            m.eval()
            def hook(mod, inp, out):
                got.append((type(mod).__name__, mod.in_channels, mod.out_channels, tuple(mod.kernel_size), tuple(mod.stride), tuple(mod.padding) if not isinstance(mod.padding, str) else (0,) * len(mod.kernel_size), tuple(mod.dilation), mod.groups, tuple(inp[0].shape[2:]), tuple(getattr(mod, "output_padding", ())), name))
            for x in m.modules():
                if isinstance(x, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)): x.register_forward_hook(hook)
            with torch.no_grad(): m(torch.empty(1, *size, device="meta"))
        except Exception as ex: print("take", name, repr(ex)[:200], file=sys.stderr)
    for n in "resnet18 resnet50 resnext50_32x4d vgg16 densenet121 mobilenet_v2 mobilenet_v3_large efficientnet_b0 efficientnet_v2_s convnext_tiny regnet_y_400mf shufflenet_v2_x1_0 squeezenet1_1 googlenet vit_b_16 swin_t mnasnet1_0".split():
        take(n, (lambda n=n: getattr(tv, n)(**({"init_weights": False} if n == "googlenet" else {}))), (3, 224, 224))
    take("resnet50@384", tv.resnet50, (3, 384, 384)); take("resnet18@64", tv.resnet18, (3, 64, 64)); take("resnet18@32", tv.resnet18, (3, 32, 32))
    take("inception", lambda: tv.inception_v3(init_weights=False), (3, 299, 299))
    for n in "deeplabv3_resnet50 fcn_resnet50 lraspp_mobilenet_v3_large".split():
        take(n, (lambda n=n: getattr(tv.segmentation, n)(weights_backbone=None)), (3, 256, 256))
    take("resnet50@800", tv.resnet50, (3, 800, 1088))
    def unet(base, cin, nd, up="t", levels=4):
        C, P, T = (nn.Conv2d, nn.MaxPool2d, nn.ConvTranspose2d) if nd == 2 else (nn.Conv3d, nn.MaxPool3d, nn.ConvTranspose3d)
        class U(nn.Module):
            def __init__(s):
                super().__init__(); s.d = nn.ModuleList(); s.u = nn.ModuleList(); s.t = nn.ModuleList(); c = cin; ch = []
                for i in range(levels): o = base << i; s.d.append(nn.Sequential(C(c, o, 3, padding=1), C(o, o, 3, padding=1))); ch.append(o); c = o
                for o in reversed(ch[:-1]): s.t.append(T(c, o, 2, 2)); s.u.append(nn.Sequential(C(2 * o, o, 3, padding=1), C(o, o, 3, padding=1))); c = o
                s.o = C(c, 2, 1); s.p = P(2)
            def forward(s, x):
                k = []
                for i, d in enumerate(s.d):
                    x = d(x)
                    if i < levels - 1: k.append(x); x = s.p(x)
                for t, u in zip(s.t, s.u): x = u(torch.cat([t(x), k.pop()], 1))
                return s.o(x)
        return U
    for b, s in ((64, 128), (64, 256), (32, 256), (32, 512), (64, 192), (48, 320)): take(f"unet{b}@{s}", unet(b, 3, 2), (3, s, s))
    take("unet5", unet(32, 1, 2, levels=5), (1, 256, 256))
    for b, s in ((16, 64), (32, 64), (16, 96), (32, 32), (16, 128), (24, 48)): take(f"unet3d{b}@{s}", unet(b, 1, 3), (1, s, s, s))
    for c, s in ((320, 64), (640, 32), (1280, 16), (1280, 8), (128, 32), (256, 16), (128, 64), (256, 32), (512, 16), (512, 64), (192, 64), (384, 32)):
        for k in (3, 1): got.append(("Conv2d", c, c, (k, k), (1, 1), (k // 2,) * 2, (1, 1), 1, (s, s), (), "diff"))
        got.append(("Conv2d", 2 * c, c, (3, 3), (1, 1), (1, 1), (1, 1), 1, (s, s), (), "diff")); got.append(("Conv2d", c, c, (3, 3), (2, 2), (1, 1), (1, 1), 1, (s, s), (), "diff"))
        got.append(("Conv2d", c // 2, c, (3, 3), (1, 1), (1, 1), (1, 1), 1, (s, s), (), "diff")); got.append(("Conv2d", c // 2, c, (1, 1), (1, 1), (0, 0), (1, 1), 1, (s, s), (), "diff"))
    got.append(("Conv2d", 4, 320, (3, 3), (1, 1), (1, 1), (1, 1), 1, (64, 64), (), "diff")); got.append(("Conv2d", 320, 4, (3, 3), (1, 1), (1, 1), (1, 1), 1, (64, 64), (), "diff")); got.append(("Conv2d", 3, 128, (3, 3), (1, 1), (1, 1), (1, 1), 1, (32, 32), (), "diff")); got.append(("Conv2d", 128, 3, (3, 3), (1, 1), (1, 1), (1, 1), 1, (32, 32), (), "diff"))
    for c0, c1, k, s, L in ((1, 512, 10, 5, 16000), (512, 512, 3, 2, 3199), (512, 512, 3, 2, 1599), (512, 512, 2, 2, 399), (80, 512, 3, 1, 3000), (512, 512, 3, 2, 3000), (80, 384, 3, 1, 3000), (384, 384, 3, 2, 3000), (64, 64, 3, 1, 1000), (1, 64, 7, 2, 16000), (128, 256, 5, 1, 500), (256, 256, 7, 1, 200)):
        got.append(("Conv1d", c0, c1, (k,), (s,), (k // 2 if s == 1 else 0,), (1,), 1, (L,), (), "c1d"))
    got.append(("Conv1d", 768, 768, (128,), (1,), (64,), (1,), 16, (49,), (), "w2v")); got.append(("Conv1d", 768, 768, (128,), (1,), (64,), (1,), 16, (249,), (), "w2v"))
    for a, b, s in ((100, 512, 1), (512, 256, 4), (256, 128, 8), (128, 64, 16), (64, 3, 32)): got.append(("ConvTranspose2d", a, b, (4, 4), (1, 1) if s == 1 else (2, 2), (0, 0) if s == 1 else (1, 1), (1, 1), 1, (s, s), (0, 0), "gan"))
    for a, b, s in ((3, 64, 64), (64, 128, 32), (128, 256, 16), (256, 512, 8), (512, 1, 4)): got.append(("Conv2d", a, b, (4, 4), (2, 2) if s > 4 else (1, 1), (1, 1) if s > 4 else (0, 0), (1, 1), 1, (s, s), (), "gan"))
    for p, c in ((14, 1024), (32, 768), (16, 384), (8, 192), (2, 1152), (4, 96)): got.append(("Conv2d", 3 if p != 2 else 4, c, (p, p), (p, p), (0, 0), (1, 1), 1, (224, 224) if p > 4 else (32, 32) if p == 2 else (224, 224), (), "patch"))
    for c, r, k, s, L in ((32, 56, 7, 4, 224), (3, 32, 7, 4, 512), (32, 64, 3, 2, 128), (64, 160, 3, 2, 64), (160, 256, 3, 2, 32)): got.append(("Conv2d", c, r, (k, k), (s, s), (k // 2,) * 2, (1, 1), 1, (L, L), (), "segf"))
    for c, l in ((32, 128), (64, 64), (160, 32), (256, 16)): got.append(("Conv2d", c * 4, c * 4, (3, 3), (1, 1), (1, 1), (1, 1), c * 4, (l, l), (), "segfdw"))
    u = {}
    for g in got: u.setdefault(g[:10], g[10])
    return [(*k, v) for k, v in u.items()]

@suite
def conv(until):
    cs = model_convs(); rng = random.Random(7); cases = []
    for g in cs:
        big = math.prod(g[8]) > 300 * 300
        for b in (1, 2, 4, 8, 16, 32, 64, 128):
            if big and b > 16: continue
            for dt in (F32, B16):
                cases.append((rng.random() * (1 if b in (2, 8, 32) else 1.6) * (3 if len(g[8]) == 3 and b > 8 else 1), g, b, dt, False))
        cases.append((rng.random() * 2, g, rng.choice((2, 8, 32)), H, False))
        if len(g[8]) == 2: cases.append((rng.random() * 3, g, rng.choice((2, 8, 32)), rng.choice((F32, B16)), True))
    cases.sort(key=lambda c: c[0]); cases = cases[int(os.environ.get("PROBE_PART", "0"))::int(os.environ.get("PROBE_PARTS", "1"))]; done = 0
    for _, (kind, ci, co, k, st, pad, dil, gr, size, opad, _), b, dt, cl in cases:
        if time.time() > until: break
        tr = "Transpose" in kind
        out = [((s - 1) * a - 2 * p + d * (kk - 1) + 1 + o) if tr else ((s + 2 * p - d * (kk - 1) - 1) // a + 1) for s, a, p, d, kk, o in zip(size, st, pad, dil, k, opad or (0,) * len(size))]
        e = 4 if dt == F32 else 2
        fl = 2.0 * b * co * math.prod(out) * ci / gr * math.prod(k)
        if b * max(ci * math.prod(size), co * math.prod(out)) * e > 3e9 or min(out) < 1 or fl > 3e12: continue
        try:
            x = E(b, ci, *size, dt=dt); w = E(ci if tr else co, (co if tr else ci) // gr, *k, dt=dt); g = E(b, co, *out, dt=dt)
            if cl: x, w, g = (t.to(memory_format=torch.channels_last) for t in (x, w, g))
            op = list(opad) if tr else [0] * len(size)
            torch.ops.aten.convolution(x, w, None, list(st), list(pad), list(dil), tr, op, gr)
            for mask in ([True, False, False], [False, True, False]):
                torch.ops.aten.convolution_backward(g, x, w, [0], list(st), list(pad), list(dil), tr, op, gr, mask)
            if done % 10 == 0:
                torch.ops.aten.convolution(x, w, E(co, dt=dt), list(st), list(pad), list(dil), tr, op, gr)
                torch.ops.aten.convolution_backward(g, x, w, [co], list(st), list(pad), list(dil), tr, op, gr, [True, True, True])
            done += 1
        except torch.OutOfMemoryError: torch.cuda.empty_cache()
        except Exception as ex: print("conv", repr(ex)[:150], kind, ci, co, size, file=sys.stderr)
    print("conv cases", done, "of", len(cases))

# ---- recurrent ----
@suite
def rnn(until):
    rng = random.Random(3); cases = list(itertools.product(("LSTM", "GRU", "RNN"), (1, 2, 3), (False, True), (64, 256, 512, 1024), (32, 128, 512), (1, 8, 32, 64, 128), (1, 16, 100, 400), (F32, B16, H), (True, False)))
    rng.shuffle(cases); cases.sort(key=lambda c: c[0] != "LSTM" and rng.random() < .5)
    n = 0
    for kind, L, bi, hid, inp, b, t, dt, bf in cases:
        if time.time() > until or n > 400: break
        if hid * t * b * L * (2 if bi else 1) > 6e7: continue
        m = getattr(nn, kind)(inp, hid, L, bidirectional=bi, batch_first=bf, dropout=0.2 if L > 1 and n % 3 == 0 else 0.0, device=dev, dtype=dt)
        x = E(b, t, inp, dt=dt, grad=True) if bf else E(t, b, inp, dt=dt, grad=True)
        y, _ = m(x); y.float().sum().backward()
        if n % 5 == 0:
            with torch.no_grad(): m.eval(); m(x)
        n += 1
    print("rnn", n)

def amp_(f, dt):
    with torch.autocast("cuda", dtype=dt): return f()

@suite
def attention(until):
    rng = random.Random(5)
    cases = list(itertools.product((1, 4, 16), ((12, 12), (16, 4), (8, 8), (32, 8)), ((128, 128), (512, 512), (197, 197), (1, 333), (77, 64), (1000, 1000), (1024, 77)), (32, 64, 80, 128, 256), (F32, B16, H), ("none", "causal", "bool", "add"), (0.0, 0.1), (True, False)))
    rng.shuffle(cases)
    for i, (b, (h, kv), (s, sk), d, dt, mask, p, g) in enumerate(cases[:900]):
        if time.time() > until: break
        if b * h * s * sk > 3e8: continue
        tr = i % 2 == 0
        mk = lambda n, l: (R(b, l, n, d, dt=dt).transpose(1, 2) if tr else R(b, n, l, d, dt=dt)).detach().requires_grad_(g)
        q, k, v = mk(h, s), mk(kv, sk), mk(kv, sk)
        m = None
        if mask == "bool": m = torch.ones(b, 1, s, sk, dtype=torch.bool, device=dev)
        if mask == "add": m = torch.zeros(b, 1, s, sk, dtype=dt, device=dev)
        try:
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=m, dropout_p=p, is_causal=mask == "causal", enable_gqa=h != kv)
            if g: o.backward(torch.empty_like(o))
        except Exception as ex: print("sdpa", repr(ex)[:120], file=sys.stderr)
        if i % 6 == 0:
            from torch.nn.attention import sdpa_kernel, SDPBackend
            for be in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
                try:
                    with sdpa_kernel(be):
                        o = F.scaled_dot_product_attention(q, k, v, attn_mask=m, dropout_p=p, is_causal=mask == "causal", enable_gqa=h != kv)
                        if g: o.backward(torch.empty_like(o))
                except Exception: pass

@suite
def misc(until):
    def T(f, *a, **k):
        try: return f(*a, **k)
        except Exception as ex: print("misc", getattr(f, "__name__", f), repr(ex)[:120], file=sys.stderr)
    for n, V, D in [(n, V, D) for n in (100, 3072, 3073, 5000, 8192, 16384, 40000, 131072) for V, D in ((30522, 768), (50257, 1024), (2, 768), (512, 128), (32000, 64), (1000, 300))]:
        for dt in ((F32, B16) if n in (5000, 16384) else (F32,)):
            ix = torch.randint(0, V, (n,), device=dev); w = R(V, D, dt=dt, grad=True)
            T(lambda: F.embedding(ix, w).backward(E(n, D, dt=dt)))
    for n, V, D, m in ((2048, 10000, 64, "sum"), (26 * 1024, 50000, 32, "mean"), (4096, 1000, 128, "max")):
        for sp in (False, True):
            if sp and m == "max": continue
            e = nn.EmbeddingBag(V, D, mode=m, sparse=sp, device=dev); ix = torch.randint(0, V, (n,), device=dev); off = torch.arange(0, n, 4, device=dev)
            T(lambda: e(ix, off).sum().backward())
    e = nn.Embedding(10000, 64, sparse=True, device=dev)
    def sp():
        for i in range(2):
            for o in (torch.optim.SparseAdam(e.parameters()), torch.optim.SGD(e.parameters(), 0.1), torch.optim.Adagrad(e.parameters())):
                e(torch.randint(0, 10000, (5000,), device=dev)).sum().backward(); o.step(); o.zero_grad()
    T(sp)
    shapes = [(8192, 768), (3072, 4096), (128, 512, 768), (16, 3, 224, 224), (32, 256, 56, 56), (64, 1000), (1, 50257), (2048, 50257), (1000000,), (100,), (5, 7), (4, 64, 64, 64), (16, 12, 512, 512), (200000,), (30000, 128)]
    for sh in shapes:
        for dt in (F32, B16):
            x = R(*sh, dt=dt)
            nd = len(sh)
            T(torch.sum, x); T(torch.mean, x); T(torch.max, x); T(torch.var, x); T(torch.std, x); T(lambda: x.norm()); T(torch.any, x > 0); T(torch.argmax, x); T(torch.isnan, x); T(lambda: x.isfinite().all()); T(torch.amax, x); T(torch.aminmax, x)
            T(lambda: torch.equal(x, x))
            for d in range(nd):
                T(torch.sum, x, d); T(torch.mean, x, d); T(torch.max, x, d); T(torch.argmax, x, d); T(torch.softmax, x, d); T(torch.log_softmax, x, d); T(torch.var_mean, x, d); T(torch.logsumexp, x, d); T(torch.linalg.vector_norm, x, 2, d); T(torch.amax, x, d); T(torch.prod, x, d); T(torch.std, x, d)
                if x.numel() < 2e7: T(torch.cumsum, x, d); T(torch.sort, x, d); T(torch.topk, x, min(5, sh[d]), d); T(torch.argsort, x, d); T(torch.flip, x, [d]); T(torch.median, x, d); T(torch.kthvalue, x, 1, d)
            if nd > 1:
                for ds in itertools.combinations(range(nd), 2): T(torch.sum, x, ds); T(torch.mean, x, ds); T(torch.var_mean, x, ds)
                xt = x.transpose(0, -1); T(torch.sum, xt, 0); T(torch.sum, xt, -1); T(torch.softmax, xt, -1); T(lambda: xt.contiguous()); T(torch.cumsum, xt, 0)
                T(torch.sum, x.expand(3, *sh), 0); T(torch.sum, xt, tuple(range(nd - 1)))
            if nd == 4:
                xc = x.to(memory_format=torch.channels_last); T(torch.sum, xc, (0, 2, 3)); T(torch.mean, xc, (2, 3)); T(torch.sum, xc, (2, 3)); T(torch.sum, x, (0, 2, 3))
            if x.numel() < 2e7:
                m = x > 0; T(torch.nonzero, m); T(torch.masked_select, x, m); T(lambda: x[m]); T(lambda: x.masked_fill(m, 0)); T(torch.where, m, x, x); T(torch.unique, x.flatten()[:200000].round()); T(torch.bincount, (x.flatten()[:100000].abs() * 3).long()); T(torch.histc, x.float()); T(lambda: x.cumprod(-1)); T(torch.cummax, x, -1); T(torch.bernoulli, x.sigmoid().float()); T(torch.isin, x.flatten()[:1000], x.flatten()[:100]); T(torch.unique, (x.flatten()[:200000] * 10).long(), return_inverse=True, return_counts=True); T(torch.unique_consecutive, (x.flatten()[:200000]).long())
            def lin():
                ix = torch.randint(0, sh[0], (2 * sh[0],), device=dev); y = x.clone().requires_grad_(); z = y[ix]; z.backward(torch.empty_like(z)); y = x.clone().requires_grad_(); z = y.index_select(0, ix); z.backward(torch.empty_like(z)); z = torch.gather(y, -1, torch.zeros(*sh[:-1], 1, dtype=torch.long, device=dev)); z.backward(torch.empty_like(z))
                q = x.clone(); q.index_add_(0, ix[: sh[0]], x); q.scatter_add_(0, torch.zeros(sh, dtype=torch.long, device=dev), x); q.index_put_((ix[: sh[0]],), x, accumulate=True); q.index_put_((ix[: sh[0]],), x); q.scatter_reduce_(0, torch.zeros(sh, dtype=torch.long, device=dev), x, "mean"); q.index_fill_(0, ix[:2], 0); q[m] = 0; torch.index_reduce(q, 0, ix[: sh[0]], x, "mean")
            if x.numel() < 2e7: T(lin)
    for n in (10, 1000, 30000, 100000, 1000000): T(torch.randperm, n, device=dev); T(torch.multinomial, torch.rand(4, min(n, 50257), device=dev), 1); T(torch.multinomial, torch.rand(4, min(n, 50257), device=dev), 5); T(torch.arange, n, device=dev); T(torch.linspace, 0, 1, n, device=dev); T(torch.searchsorted, torch.arange(n, device=dev), torch.arange(n, device=dev)); T(torch.repeat_interleave, torch.ones(n, dtype=torch.long, device=dev)); T(torch.sort, torch.randint(0, 9, (n,), device=dev)); T(torch.sort, torch.randint(0, 9, (n,), device=dev), stable=True); T(torch.cumsum, torch.ones(n, dtype=torch.bool, device=dev), 0); T(torch.cumsum, torch.ones(n, device=dev), 0); T(torch.nonzero, torch.ones(n, device=dev)); T(torch.one_hot if hasattr(torch, "one_hot") else F.one_hot, torch.arange(min(n, 1000), device=dev))
    # matrix products
    for dt in (F32, B16, H):
        for b, m, k, n in ((8, 128, 64, 128), (1, 1, 768, 3072), (4, 197, 64, 197)):
            a, c = R(b, m, k, dt=dt), R(b, k, n, dt=dt); T(torch.bmm, a, c); T(torch.baddbmm, R(b, m, n, dt=dt), a, c); T(torch.matmul, a, c.transpose(1, 2).contiguous().transpose(1, 2)); T(torch.addmm, R(n, dt=dt), a[0], c[0]); T(torch.addmm, R(m, n, dt=dt), a[0], c[0]); T(torch.mm, a[0], c[0]); T(torch.mv, a[0], c[0, :, 0].contiguous()); T(torch.dot, a[0, 0], c[0, :, 0].contiguous()); T(torch.addmm, R(1, n, dt=dt), a[0], c[0]); T(torch._addmm_activation, R(n, dt=dt), a[0], c[0]); T(torch.mm, a[0][:, ::2], c[0][::2]); T(torch.bmm, a[:, :, ::2], c[:, ::2]); T(torch.einsum, "bij,bjk->bik", a, c); T(torch.cdist, a.float(), c.transpose(1, 2).float()); T(torch.addbmm, R(m, n, dt=dt), a, c); T(torch.addmv, R(m, dt=dt), a[0], c[0, :, 0].contiguous()); T(torch.outer, a[0, 0], a[0, 0])
    # normalization
    for sh in ((8192, 768), (16, 197, 1024), (4, 512, 4096), (2, 64, 32, 32, 32), (32, 320, 32, 32), (8, 256, 56, 56), (128, 64, 112, 112), (2, 1280, 16, 16), (16, 96, 2000)):
        for dt in (F32, B16, H):
            for amp in (False, True):
                x = R(*sh, dt=dt, grad=True); wd = F32 if amp else dt; gy = E(*sh, dt=dt)
                if len(sh) in (2, 3):
                    w, b = R(sh[-1], dt=wd, grad=True), R(sh[-1], dt=wd, grad=True)
                    if not amp:
                        T(lambda: F.layer_norm(x, (sh[-1],), w, b).backward(gy)); T(lambda: F.layer_norm(x, (sh[-1],)).backward(gy)); T(lambda: F.layer_norm(x, (sh[-1],), w).backward(gy)); T(lambda: F.rms_norm(x, (sh[-1],), w).backward(gy)); T(lambda: F.rms_norm(x, (sh[-1],)).backward(gy))
                        if len(sh) == 3: T(lambda: F.layer_norm(x.transpose(0, 1), (sh[-1],), w, b).backward(gy.transpose(0, 1)))
                if len(sh) >= 3:
                    w, b = R(sh[1], dt=wd, grad=True), R(sh[1], dt=wd, grad=True); rm, rv = E(sh[1], dt=wd), E(sh[1], dt=wd)
                    if not amp: T(lambda: F.group_norm(x, 32 if sh[1] % 32 == 0 else 4, w, b).backward(gy)); T(lambda: F.instance_norm(x, None, None, w, b).backward(gy))
                    T(lambda: F.batch_norm(x, rm, rv, w, b, True).backward(gy)); T(lambda: F.batch_norm(x, rm, rv, w, b, False).backward(gy))
                    if len(sh) == 4:
                        xc = x.detach().to(memory_format=torch.channels_last).requires_grad_(); gc = gy.to(memory_format=torch.channels_last)
                        T(lambda: F.batch_norm(xc, rm, rv, w, b, True).backward(gc)); T(lambda: F.batch_norm(xc, rm, rv, w, b, False).backward(gc)); T(lambda: F.batch_norm(xc, rm, rv, w, b, True).backward(gy))
                        if not amp: T(lambda: F.group_norm(xc, 32 if sh[1] % 32 == 0 else 4, w, b).backward(gc))
    # pointwise with backward, pooling, resampling, losses
    for dt in (F32, B16):
        for sh in ((8, 64, 56, 56), (2, 16, 32, 32, 32), (4, 128, 1000)):
            x = R(*sh, dt=dt, grad=True); nd = len(sh) - 2; sfx = f"{nd}d"
            for f in (F.gelu, F.silu, F.relu, F.leaky_relu, F.elu, F.hardswish, F.hardsigmoid, F.mish, F.softplus, torch.tanh, torch.sigmoid, torch.exp, F.glu, lambda x: F.dropout(x, .1), lambda x: F.dropout2d(x, .1) if x.dim() == 4 else x * 1, F.hardtanh, F.relu6, torch.abs, torch.sqrt, torch.square, lambda x: x ** 3, torch.erf, F.logsigmoid, F.selu, lambda x: x.clamp(0, 1), lambda x: F.prelu(x, R(1, dt=dt, grad=True)), lambda x: F.prelu(x, R(sh[1], dt=dt, grad=True)), lambda x: F.rrelu(x, training=True), lambda x: F.gelu(x, approximate="tanh"), lambda x: F.pad(x, (1, 1)), lambda x: F.pad(x, (1, 1), mode="reflect") if nd < 3 else x * 1, lambda x: F.pad(x, (1, 1) * nd, mode="replicate"), lambda x: torch.roll(x, 1, -1), lambda x: torch.cat([x, x], 1), lambda x: torch.stack([x, x]), lambda x: torch.where(x > 0, x, 0), lambda x: x.cumsum(-1), lambda x: F.normalize(x), lambda x: F.cosine_similarity(x, x), lambda x: x.var(), lambda x: x.std(1), lambda x: x.norm(dim=1), lambda x: x.logsumexp(1), lambda x: x.max(1)[0], lambda x: x.amax(1), lambda x: x.sort(-1)[0], lambda x: x.topk(3, -1)[0], lambda x: x.prod(1), lambda x: torch.tril(x), lambda x: x.unfold(-1, 4, 2), lambda x: F.pixel_shuffle(x, 2) if nd == 2 else x * 1, lambda x: F.unfold(x, 3) if nd == 2 else x * 1, lambda x: x.masked_fill(x > 0, 0.), lambda x: x.repeat(2, *[1] * (x.dim() - 1)), lambda x: x.repeat_interleave(2, 1), lambda x: torch.softmax(x, 1), lambda x: torch.log_softmax(x.transpose(1, -1), -1), lambda x: x / (x + 1), lambda x: torch.lerp(x, x, .5), lambda x: torch.addcmul(x, x, x), lambda x: torch.atan2(x, x), lambda x: torch.maximum(x, x * 2), lambda x: torch.renorm(x, 2, 0, 1.), lambda x: torch.diff(x), lambda x: torch.kron(x[0, 0, :4], x[0, 0, :4]) if nd == 1 else x * 1, lambda x: torch.rot90(x, 1, (-2, -1)), lambda x: torch.meshgrid(x[0, 0].flatten()[:9], x[0, 0].flatten()[:9], indexing="ij")[0], lambda x: torch.nan_to_num(x), lambda x: x.fmod(2), lambda x: F.alpha_dropout(x, .1, True), lambda x: F.feature_alpha_dropout(x, .1, True) if nd == 2 else x * 1, lambda x: F.local_response_norm(x, 2)):
                def one():
                    y = f(x); y.backward(torch.empty_like(y))
                T(one)
            for k, s, p in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
                T(lambda: getattr(F, "max_pool" + sfx)(x, k, s, p).sum().backward()); T(lambda: getattr(F, "avg_pool" + sfx)(x, k, s, p).sum().backward())
            for o in (1, 7): T(lambda: getattr(F, "adaptive_avg_pool" + sfx)(x, o).sum().backward()); T(lambda: getattr(F, "adaptive_max_pool" + sfx)(x, o).sum().backward())
            for mode in {1: ("nearest", "linear"), 2: ("nearest", "bilinear", "bicubic", "area"), 3: ("nearest", "trilinear")}[nd]:
                T(lambda: F.interpolate(x, scale_factor=2, mode=mode).sum().backward()); T(lambda: F.interpolate(x, scale_factor=0.5, mode=mode).sum().backward())
            if nd == 2:
                xc = x.detach().to(memory_format=torch.channels_last).requires_grad_()
                T(lambda: F.max_pool2d(xc, 3, 2, 1).sum().backward()); T(lambda: F.avg_pool2d(xc, 2).sum().backward()); T(lambda: F.adaptive_avg_pool2d(xc, 1).sum().backward()); T(lambda: F.interpolate(xc, scale_factor=2).sum().backward()); T(lambda: F.interpolate(x, scale_factor=.5, mode="bilinear", antialias=True).sum().backward()); T(lambda: F.grid_sample(x, torch.zeros(sh[0], 20, 20, 2, device=dev, dtype=dt, requires_grad=True)).sum().backward()); T(lambda: F.affine_grid(torch.zeros(4, 2, 3, device=dev, requires_grad=True), (4, 3, 8, 8)).sum().backward())
        for N, C in ((8192, 1000), (2048, 50257), (64, 10), (512, 30522)):
            lg = R(N, C, dt=dt, grad=True); tg = torch.randint(0, C, (N,), device=dev)
            for kw in ({}, {"label_smoothing": .1}, {"weight": torch.ones(C, device=dev, dtype=dt)}, {"reduction": "none"}, {"reduction": "sum"}, {"ignore_index": 3}): T(lambda: F.cross_entropy(lg, tg, **kw).sum().backward())
            pr = torch.rand(N, C, device=dev, dtype=F32).to(dt)
            T(lambda: F.cross_entropy(lg, pr).backward()); T(lambda: F.binary_cross_entropy_with_logits(lg, pr).backward()); T(lambda: F.mse_loss(lg, pr).backward()); T(lambda: F.smooth_l1_loss(lg, pr).backward()); T(lambda: F.l1_loss(lg, pr).backward()); T(lambda: F.huber_loss(lg, pr).backward()); T(lambda: F.kl_div(F.log_softmax(lg, -1), pr, reduction="batchmean").backward()); T(lambda: F.binary_cross_entropy(torch.sigmoid(lg), pr).backward()); T(lambda: F.binary_cross_entropy_with_logits(lg, pr, pos_weight=torch.ones(C, device=dev, dtype=dt)).backward()); T(lambda: F.multi_margin_loss(lg, tg).backward()); T(lambda: F.nll_loss(F.log_softmax(lg, 1), tg).backward()); T(lambda: F.softmax(lg, -1, dtype=F32).sum().backward()); T(lambda: F.gumbel_softmax(lg).sum().backward()); T(lambda: F.triplet_margin_loss(lg, lg, lg * 2).backward()); T(lambda: F.margin_ranking_loss(lg, lg, tg[:, None]).backward())
        lg = R(4, 21, 128, 128, dt=dt, grad=True); T(lambda: F.cross_entropy(lg, torch.zeros(4, 128, 128, dtype=torch.long, device=dev)).backward()); T(lambda: F.cross_entropy(lg, torch.zeros(4, 128, 128, dtype=torch.long, device=dev), reduction="none").sum().backward()); T(lambda: F.cross_entropy(R(4, 21, 16, 16, 16, dt=dt, grad=True), torch.zeros(4, 16, 16, 16, dtype=torch.long, device=dev)).backward())
    T(lambda: F.ctc_loss(F.log_softmax(R(249, 8, 32, grad=True), -1), torch.randint(1, 32, (8, 20), device=dev), torch.full((8,), 249), torch.full((8,), 20)).backward())
    T(lambda: F.ctc_loss(F.log_softmax(R(249, 8, 32, grad=True), -1), torch.randint(1, 32, (8, 20), dtype=torch.int32, device=dev), torch.full((8,), 249, device=dev), torch.full((8,), 20, device=dev)).backward())
    for n in (400, 512, 16000):
        x = R(8, n, grad=True); T(lambda: torch.fft.rfft(x).abs().sum().backward()); T(lambda: torch.fft.irfft(torch.fft.rfft(x)).sum().backward()); T(lambda: torch.fft.fft(x).abs().sum().backward())
    T(lambda: torch.stft(R(8, 16000), 400, 160, window=torch.hann_window(400, device=dev), return_complex=True).abs()); T(lambda: torch.fft.fft2(R(8, 3, 64, 64, grad=True)).abs().sum().backward()); T(lambda: torch.fft.rfft2(R(8, 3, 64, 64, grad=True), norm="ortho").abs().sum().backward()); T(lambda: torch.fft.irfft2(torch.fft.rfft2(R(8, 3, 64, 64, grad=True))).sum().backward())
    for n in (8, 64, 512):
        for b in ((), (4,)):
            a = torch.eye(n, device=dev).expand(*b, n, n).clone().requires_grad_()
            for f in (torch.linalg.cholesky, torch.linalg.inv, torch.linalg.det, torch.linalg.slogdet, torch.linalg.eigvalsh, torch.linalg.svdvals, lambda a: torch.linalg.solve(a, a), lambda a: torch.linalg.qr(a)[0], lambda a: torch.linalg.matrix_exp(a), lambda a: torch.linalg.eigh(a)[0], lambda a: torch.linalg.solve_triangular(a, a, upper=False), lambda a: torch.linalg.pinv(a), lambda a: torch.linalg.lstsq(a, a)[0], lambda a: torch.linalg.matrix_norm(a, 2)): T(lambda: f(a).sum().backward())
    # optimizers
    for fam in ((torch.optim.AdamW, {}), (torch.optim.Adam, {"amsgrad": True}), (torch.optim.SGD, {"momentum": .9, "nesterov": True}), (torch.optim.RMSprop, {}), (torch.optim.Adagrad, {}), (torch.optim.Adafactor, {}), (torch.optim.NAdam, {}), (torch.optim.RAdam, {}), (torch.optim.Adamax, {}), (torch.optim.ASGD, {}), (torch.optim.Adadelta, {}), (torch.optim.Rprop, {}), (torch.optim.LBFGS, {}), (getattr(torch.optim, "Muon", None), {})):
        for kw in ({}, {"foreach": False}, {"fused": True}, {"foreach": True}, {"capturable": True}):
            def opt():
                for dt in (F32, B16):
                    ps = [R(s, 300, dt=dt, grad=True) for s in (700, 5, 70000)] + ([] if fam[0] is getattr(torch.optim, "Muon", 0) else [R(333, dt=dt, grad=True)])
                    o = fam[0](ps, lr=1e-3, **fam[1], **kw)
                    for _ in range(2):
                        for p in ps: p.grad = E(*p.shape, dt=dt)
                        torch.nn.utils.clip_grad_norm_(ps, 1.); torch.nn.utils.clip_grad_value_(ps, 1.)
                        o.step(*([lambda: sum((p.float() ** 2).sum() for p in ps)] if fam[0] is torch.optim.LBFGS else []))
            if fam[0]:
                try: opt()
                except Exception as ex: print("opt", fam[0].__name__, kw, repr(ex)[:80], file=sys.stderr)
    def scaler():
        s = torch.amp.GradScaler("cuda"); l = nn.Linear(64, 64, device=dev); o = torch.optim.AdamW(l.parameters())
        for _ in range(2): s.scale(amp_(lambda: l(E(8, 64)).float().sum(), H)).backward(); s.unscale_(o); s.step(o); s.update(); o.zero_grad()
    T(scaler)
    try:
        import torchvision
        bx = torch.rand(2000, 4, device=dev) * 200; bx[:, 2:] += bx[:, :2]; T(torchvision.ops.nms, bx, torch.rand(2000, device=dev), .5); T(torchvision.ops.batched_nms, bx, torch.rand(2000, device=dev), torch.zeros(2000, device=dev, dtype=torch.long), .5)
        T(lambda: torchvision.ops.roi_align(R(2, 256, 50, 68, grad=True), [bx[:500], bx[500:900]], 7, .25, 2).sum().backward()); T(lambda: torchvision.ops.deform_conv2d(R(2, 8, 16, 16, grad=True), R(2, 18, 16, 16, grad=True), R(8, 8, 3, 3, grad=True), padding=1).sum().backward()); T(torchvision.ops.box_iou, bx, bx); T(lambda: torchvision.ops.sigmoid_focal_loss(R(1000, 90, grad=True), E(1000, 90), reduction="sum").backward())
    except Exception as ex: print("tv", repr(ex)[:100], file=sys.stderr)
    c = torch.randn(64, 3, 32, 32); T(lambda: c.to(dev)); T(lambda: c.pin_memory().to(dev, non_blocking=True)); T(lambda: c.permute(0, 2, 3, 1).to(dev)); T(lambda: c.to(dev, H)); T(lambda: c.to(dev).copy_(c.double())); T(lambda: E(64, 3, 32, 32).permute(0, 2, 3, 1).cpu()); T(lambda: E(64, 3, 32, 32).copy_(c.permute(0, 1, 3, 2))); T(lambda: E(8).tolist()); T(lambda: torch.tensor([1., 2.], device=dev)); T(lambda: torch.randn(7, 9, device=dev)); T(lambda: torch.rand(7, 9, device=dev, dtype=H)); T(lambda: torch.randint(0, 4, (9,), device=dev)); T(lambda: torch.full((3, 3), 2., device=dev)); T(lambda: torch.eye(9, device=dev)); T(lambda: torch.normal(0., 1., (9,), device=dev)); T(lambda: E(9, 9).normal_()); T(lambda: E(9, 9).exponential_()); T(lambda: E(9, 9).uniform_()); T(lambda: torch.complex(R(9), R(9)).abs()); T(lambda: torch.polar(R(9).abs(), R(9))); T(lambda: torch.view_as_complex(R(9, 2)) * torch.view_as_complex(R(9, 2))); T(lambda: torch.tril_indices(9, 9, device=dev)); T(lambda: torch.tensor_split(R(9), 3)); T(lambda: torch.allclose(R(9), R(9))); T(lambda: torch.quantile(R(1000), .5)); T(lambda: torch.cov(R(9, 9))); T(lambda: torch.nn.utils.rnn.pad_sequence([R(5), R(9)])); T(lambda: torch.sparse.mm(torch.eye(100, device=dev).to_sparse(), R(100, 8))); T(lambda: torch.sparse.mm(torch.eye(100, device=dev).to_sparse_csr(), R(100, 8)))
    for M, K, N in ((1024, 1024, 1024), (32, 4096, 4096)):
        try: T(lambda: torch._int_mm(torch.ones(M, K, dtype=torch.int8, device=dev), torch.ones(K, N, dtype=torch.int8, device=dev)))
        except Exception: pass
        T(lambda: torch._scaled_mm(E(M, K).to(torch.float8_e4m3fn), E(N, K).to(torch.float8_e4m3fn).t(), scale_a=torch.ones((), device=dev), scale_b=torch.ones((), device=dev), out_dtype=B16))
    T(lambda: torch._grouped_mm(R(64, 128, dt=B16), R(4, 128, 256, dt=B16), offs=torch.tensor([16, 32, 48, 64], dtype=torch.int32, device=dev)))
    m = nn.MultiheadAttention(256, 8, batch_first=True, device=dev); T(lambda: m(R(4, 50, 256), R(4, 50, 256), R(4, 50, 256))[0].sum().backward()); m.eval()
    with torch.no_grad(): T(lambda: m(R(4, 50, 256), R(4, 50, 256), R(4, 50, 256))); l = nn.TransformerEncoderLayer(256, 8, batch_first=True, device=dev).eval(); T(lambda: l(R(4, 50, 256)))

@suite
def models(until):
    import transformers as tf, torchvision
    tv = torchvision.models
    def step(m, loss, amp=None, opt=torch.optim.AdamW, n=2):
        if time.time() > until: return
        try:
            o = opt(m.parameters(), lr=1e-4)
            for _ in range(n):
                l = amp_(loss, amp) if amp else loss()
                l.backward(); torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0); o.step(); o.zero_grad()
        except Exception as ex: print("model", traceback.format_exc()[-300:] if 0 else "", type(m).__name__, repr(ex)[:200], file=sys.stderr)
    ids = lambda b, s, v: torch.randint(0, v, (b, s), device=dev)
    def hf(cls, cfg, loss, **kw):
        try: m = cls(cfg).to(dev)
        except Exception as ex: print("hf", cls.__name__, repr(ex)[:200], file=sys.stderr); return
        m.train(); step(m, lambda: loss(m), **kw)
    x = ids(4, 256, 1000)
    base = dict(vocab_size=5000, hidden_size=256, num_hidden_layers=2, num_attention_heads=8, intermediate_size=512)
    lm = lambda m: m(input_ids=x, labels=x).loss
    for amp in (None, B16, H):
        hf(tf.BertForMaskedLM, tf.BertConfig(**base), lm, amp=amp); hf(tf.LlamaForCausalLM, tf.LlamaConfig(num_key_value_heads=4, **base), lm, amp=amp); hf(tf.GPT2LMHeadModel, tf.GPT2Config(n_embd=256, n_layer=2, n_head=8, vocab_size=5000), lm, amp=amp); hf(tf.T5ForConditionalGeneration, tf.T5Config(d_model=256, d_kv=32, d_ff=512, num_layers=2, num_heads=8, vocab_size=5000), lm, amp=amp)
        hf(tf.MixtralForCausalLM, tf.MixtralConfig(num_key_value_heads=4, num_local_experts=4, **base), lm, amp=amp); hf(tf.ViTForImageClassification, tf.ViTConfig(**{k: v for k, v in base.items() if k != "vocab_size"}), lambda m: m(pixel_values=R(4, 3, 224, 224), labels=ids(4, 1, 2)[:, 0]).loss, amp=amp)
        hf(tf.Wav2Vec2ForSequenceClassification, tf.Wav2Vec2Config(**base), lambda m: m(input_values=R(2, 16000), labels=ids(2, 1, 2)[:, 0]).loss, amp=amp); hf(tf.WhisperForConditionalGeneration, tf.WhisperConfig(d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=512, decoder_ffn_dim=512, vocab_size=5000, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1), lambda m: m(input_features=R(2, 80, 3000), labels=ids(2, 64, 5000)).loss, amp=amp)
        hf(tf.SegformerForSemanticSegmentation, tf.SegformerConfig(), lambda m: m(pixel_values=R(2, 3, 256, 256), labels=torch.zeros(2, 256, 256, dtype=torch.long, device=dev)).loss, amp=amp); hf(tf.CLIPModel, tf.CLIPConfig(), lambda m: m(input_ids=ids(4, 32, 400), pixel_values=R(4, 3, 224, 224), return_loss=True).loss, amp=amp)
        for n in ("resnet50", "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "densenet121", "swin_t", "vit_b_16"): m = getattr(tv, n)(num_classes=100).to(dev); im = R(8, 3, 224, 224); y = ids(8, 1, 100)[:, 0]; step(m, lambda: F.cross_entropy(m(im), y), amp=amp, opt=torch.optim.SGD)
        m = tv.segmentation.deeplabv3_resnet50(weights_backbone=None, num_classes=21).to(dev); im = R(2, 3, 256, 256); yy = torch.zeros(2, 256, 256, dtype=torch.long, device=dev); step(m, lambda: F.cross_entropy(m(im)["out"], yy), amp=amp)
        det = tv.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=21).to(dev); ims = [torch.rand(3, 480, 640, device=dev) for _ in range(2)]; tg = [{"boxes": torch.tensor([[10., 10, 200, 200], [50, 60, 300, 400]], device=dev), "labels": torch.tensor([1, 2], device=dev)} for _ in range(2)]; step(det, lambda: sum(det(ims, tg).values()), amp=amp)
        enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 8, 512, batch_first=True), 2).to(dev); xx = R(8, 100, 256); step(enc, lambda: enc(xx).float().mean(), amp=amp)
    m = tf.LlamaForCausalLM(tf.LlamaConfig(num_key_value_heads=4, **base)).to(dev, B16).eval()
    try:
        with torch.no_grad(): m.generate(x[:, :32], max_new_tokens=4, do_sample=True); m.generate(x[:, :32], max_new_tokens=4, num_beams=3)
    except Exception as ex: print("gen", repr(ex)[:200], file=sys.stderr)

share = {"models": .2, "conv": .40, "rnn": .10, "attention": .08, "misc": .22}
only = os.environ.get("PROBE_ONLY")
x = E(64, 64); (x @ x); F.linear(x, x, x[0]); 
with truth:
    for f in ([misc, models, attention, rnn, conv] if not only else [globals()[n] for n in only.split(",")]):
        truth.tag = f.__name__
        t = time.time(); until = t + LIMIT * share[f.__name__] if f is not conv else max(T0 + LIMIT, t + 30)
        try: f(until)
        except Exception as ex: print(f.__name__, repr(ex)[:300], file=sys.stderr)
        print(f.__name__, round(time.time() - t, 1), "s", len(truth.log), flush=True)
torch.cuda.synchronize()
s = torch.cuda.memory._snapshot()
ev = [(e["action"][0], e["addr"], e["size"]) for e in s["device_traces"][0] if e["action"] in ("alloc", "free_requested")]
total = count(); first = total - len(ev)
print("events", len(ev), "count", total, "first", first)
ents = 0
with gzip.open(OUT, "wt", 6) as f:
    for tag, name, e, outs, n0, n1, ins in truth.log:
        steps = []; outp = {}
        def outptrs(o, path):
            if isinstance(o, dict) and "t" in o: outp.setdefault(o["t"][6], path)
            elif isinstance(o, list):
                for i, q in enumerate(o): outptrs(q, path + [i])
        for i, o in enumerate(outs): outptrs(o, [i])
        live = {}
        for a, addr, size in ev[n0 - first:n1 - first]:
            if a == "a": live[addr] = len(steps); steps.append(["a", size, addr])
            else: steps.append(["f", live.pop(addr, -1)])
        for k, st in enumerate(steps):
            if st[0] == "a": st[2] = outp.get(st[2]) if live.get(st[2]) == k else None
        ents += 1
        f.write(json.dumps({"tag": tag, "op": name, "a": e, "o": noptr(outs), "ev": steps}, separators=(",", ":")) + "\n")
print("entries", ents, "size", os.path.getsize(OUT), "peak", torch.cuda.max_memory_allocated() >> 20, "s", round(time.time() - T0, 1), torch.__version__, torch.backends.cudnn.version())
