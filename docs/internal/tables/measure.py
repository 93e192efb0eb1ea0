#!/usr/bin/env python3
"""Runs real programs on a GPU and writes their peaks, for TestMeasured.

    python3 measure.py programs.jsonl > measured.jsonl

Each input line has "name", "model" (a built-in name of allocsim or a YAML
description) and "options" (those of allocsim synth); other keys are passed on.
The output adds live (requests rounded up to 512 bytes), allocated and reserved
(peaks in bytes) and allocs (number of requests). Needs torch, torchvision and
transformers, and PyYAML for descriptions. Every program runs in a process of
its own, several at a time.
"""
import functools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

WORKERS = 8
VISION = {
    "vit-b-16": "vit_b_16", "vit-b-32": "vit_b_32", "vit-l-16": "vit_l_16", "vit-l-32": "vit_l_32",
    "mobilenet-v3-large": "mobilenet_v3_large", "mobilenet-v3-small": "mobilenet_v3_small",
    "resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50", "resnet101": "resnet101", "resnet152": "resnet152",
}
LANGUAGE = {
    "bert-base": ("bert", {}),
    "bert-large": ("bert", dict(hidden=1024, layers=24, heads=16, intermediate=4096)),
    "gpt2": ("gpt2", {}),
    "gpt2-medium": ("gpt2", dict(hidden=1024, layers=24, heads=16)),
    "gpt2-large": ("gpt2", dict(hidden=1280, layers=36, heads=20)),
}
KEYS = {
    "bert": dict(hidden="hidden_size", layers="num_hidden_layers", heads="num_attention_heads", intermediate="intermediate_size",
                 vocab="vocab_size", positions="max_position_embeddings"),
    "gpt2": dict(hidden="n_embd", layers="n_layer", heads="n_head", vocab="vocab_size", positions="n_positions"),
    "llama": dict(hidden="hidden_size", layers="num_hidden_layers", heads="num_attention_heads", kv_heads="num_key_value_heads",
                  intermediate="intermediate_size", vocab="vocab_size", positions="max_position_embeddings"),
}


def language_model(family, sizes):
    import transformers
    config, cls = {
        "bert": (transformers.BertConfig, transformers.BertForMaskedLM),
        "gpt2": (transformers.GPT2Config, transformers.GPT2LMHeadModel),
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    }[family]
    return cls(config(**{KEYS[family][k]: v for k, v in sizes.items() if k in KEYS[family]}))


def build(case, o, dtype):
    """The model on the GPU, its kind and its vocabulary size."""
    import torch
    name = case["model"]
    if name in VISION:
        import torchvision
        return getattr(torchvision.models, VISION[name])().to(dtype).to("cuda"), "vision", 0
    if "\n" in name:
        import yaml
        sizes = yaml.safe_load(name)
        family = sizes.pop("family")
    else:
        family, sizes = LANGUAGE[name]
    torch.set_default_dtype(dtype)
    with torch.device("cuda"):
        model = language_model(family, sizes)
    torch.set_default_dtype(torch.float32)
    return model, family, model.config.vocab_size


def checkpointed(model, kind, name, how):
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential
    if kind != "vision":
        model.gradient_checkpointing_enable()
        return
    if name.startswith("vit"):
        blocks = list(model.encoder.layers)
        if how == "sqrt":
            k = round(len(blocks) ** 0.5)
            model.encoder.layers.forward = lambda x: checkpoint_sequential(blocks, k, x, use_reentrant=False)
            return
    elif name.startswith("resnet"):
        blocks = [b for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for b in stage]
    else:
        blocks = list(model.features)[1:-1]
    for b in blocks:
        b.forward = functools.partial(checkpoint, b.forward, use_reentrant=False)


def sharded(model, o, amp):
    """Distributed wrappers: fully_shard under a fake group, DDP alone in its group."""
    import torch
    import torch.distributed as dist
    if o.get("zero", 0) == 0:
        dist.init_process_group("nccl", rank=0, world_size=1, init_method="tcp://127.0.0.1:29591")
        return torch.nn.parallel.DistributedDataParallel(model), amp
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore
    dist.init_process_group("fake", rank=0, world_size=o["dp"], store=FakeStore())
    kw = {} if o["zero"] == 3 else dict(reshard_after_forward=False)
    if amp:
        kw["mp_policy"] = MixedPrecisionPolicy(param_dtype=amp)
    for b in model.transformer.h:
        fully_shard(b, **kw)
    fully_shard(model, **kw)
    return model, None


def run(case):
    import torch
    import torch.nn.functional as F
    torch.cuda.memory._record_memory_history(context=None, max_entries=4000000)
    o = case["options"]
    precision = o.get("precision", "fp32")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    amp = {"bf16-amp": torch.bfloat16, "fp16-amp": torch.float16}.get(precision)
    infer = o.get("mode") == "infer"
    model, kind, vocab = build(case, o, dtype)
    model.train(not infer)
    if o.get("checkpoint", "none") != "none":
        checkpointed(model, kind, case["model"], o["checkpoint"])
    if o.get("dp", 1) > 1:
        model, amp = sharded(model, o, amp)
    params = list(model.parameters())
    size = o.get("seq", 224)

    def autocast():
        return torch.autocast("cuda", dtype=amp, enabled=amp is not None)

    def images():
        return torch.randn(o["batch"], 3, size, size, device="cuda").to(dtype)

    def tokens():
        return torch.randint(0, vocab, (o["batch"], size), device="cuda")

    def loss():
        if kind == "vision":
            return F.cross_entropy(model(images()), torch.randint(0, 1000, (o["batch"],), device="cuda"))
        kw = {}
        if kind in ("gpt2", "llama"):
            kw["use_cache"] = bool(o.get("use_cache"))

        def call(x):
            if "lengths" in o:  # a padded batch comes with a mask
                kw["attention_mask"] = torch.ones_like(x)
                kw["attention_mask"][:, -5:] = 0
            return model(input_ids=x, labels=x, **kw).loss
        return call(tokens())

    if infer:
        with torch.no_grad():
            for _ in range(o.get("steps", 3)):
                with autocast():
                    if kind == "vision":
                        out = model(images())
                    elif kind == "bert":
                        out = model(input_ids=tokens()).logits
                    else:
                        out = model.generate(tokens(), max_new_tokens=o["new_tokens"], min_new_tokens=o["new_tokens"], do_sample=False)
                    del out
    else:
        opt = {
            "adamw": lambda: torch.optim.AdamW(params, lr=1e-4),
            "adam": lambda: torch.optim.Adam(params, lr=1e-4),
            "sgd": lambda: torch.optim.SGD(params, lr=1e-3, momentum=0.9),
            "adafactor": lambda: torch.optim.Adafactor(params, lr=1e-3),
        }[o.get("optimizer", "adamw")]()
        scaler = torch.amp.GradScaler("cuda") if precision == "fp16-amp" else None
        n = o.get("accumulate", 1)
        for _ in range(o.get("steps", 3)):
            for _ in range(n):
                with autocast():
                    value = loss()
                    if n > 1:
                        value = value / n
                (scaler.scale(value) if scaler else value).backward()
            if o.get("clip_norm"):
                torch.nn.utils.clip_grad_norm_(params, 1.0)
            if scaler:
                scaler.step(opt)
                scaler.update()
            else:
                opt.step()
            opt.zero_grad()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    live = peak = allocs = 0
    sizes = {}
    for e in next(t for t in torch.cuda.memory._snapshot()["device_traces"] if t):
        if e["action"] == "alloc":
            sizes[e["addr"]] = (e["size"] + 511) // 512 * 512
            live += sizes[e["addr"]]
            peak = max(peak, live)
            allocs += 1
        elif e["action"] == "free_completed":
            live -= sizes.pop(e["addr"])
    case.update(live=peak, allocated=stats["allocated_bytes.all.peak"], reserved=stats["reserved_bytes.all.peak"], allocs=allocs)
    print(json.dumps(case, separators=(",", ":")))


def main():
    if sys.argv[1] == "-":
        run(json.loads(sys.stdin.read()))
        return

    def child(line):
        p = subprocess.run([sys.executable, __file__, "-"], input=line, capture_output=True, text=True)
        if p.returncode:
            return None, "%s: %s" % (json.loads(line)["name"], p.stderr.strip()[-600:])
        return p.stdout.strip().splitlines()[-1], None

    with open(sys.argv[1]) as f, ThreadPoolExecutor(WORKERS) as pool:
        for out, err in pool.map(child, [line for line in f if line.strip()]):
            if err:
                print(err, file=sys.stderr, flush=True)
            else:
                print(out, flush=True)


if __name__ == "__main__":
    main()
