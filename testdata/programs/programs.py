"""The programs of docs/dry-run.md: python programs.py NAME runs one, as it would be trained.

Each is an ordinary training loop of three optimizer steps (or a generation) and knows nothing of a dry run."""
import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

dev = torch.device("cuda")
BF16, F16 = torch.bfloat16, torch.float16
PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def ids(b, s, v):
    return torch.randint(4, v, (b, s)).to(dev)


def train(model, batch, loss=None, steps=3, amp=None, opt=None, scaler=False, accumulate=1, clip=None, ema=None):
    model = model.to(dev)
    model.train()
    opt = (opt or (lambda p: torch.optim.AdamW(p, lr=1e-4)))([p for p in model.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0) if scaler else None
    for step in range(steps):
        for _ in range(accumulate):
            x = batch()
            with torch.autocast("cuda", dtype=amp or BF16, enabled=amp is not None):
                out = model(**x) if isinstance(x, dict) else model(*x)
                l = (loss(out) if loss else out.loss) / accumulate
            if scaler:
                scaler.scale(l).backward()
            else:
                l.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(opt)
            scaler.update()
        else:
            opt.step()
        opt.zero_grad(set_to_none=True)
        if ema is not None:
            with torch.no_grad():
                for a, b in zip(ema.parameters(), model.parameters()):
                    a.lerp_(b.detach(), 0.01)
    torch.cuda.synchronize()


def lm(cls, config, b, s, dtype=None, ckpt=False, **kw):
    import transformers

    config = getattr(transformers, config[0])(**config[1])
    model = getattr(transformers, cls)._from_config(config, **{}) if False else getattr(transformers, cls)(config)
    if dtype:
        model = model.to(dtype)
    if ckpt:
        model.gradient_checkpointing_enable()
    v = config.vocab_size

    def batch():
        x = ids(b, s, v)
        return dict(input_ids=x, labels=x.clone())

    train(model, batch, **kw)


LLAMA = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, num_key_value_heads=8, vocab_size=32000)


@program
def gpt2_fp32():
    lm("GPT2LMHeadModel", ("GPT2Config", {}), 8, 512)


@program
def gpt2_medium_amp_accumulate():
    lm("GPT2LMHeadModel", ("GPT2Config", dict(n_embd=1024, n_layer=24, n_head=16)), 4, 512, amp=BF16, accumulate=4, clip=1.0)


@program
def llama_bf16_fused():
    lm("LlamaForCausalLM", ("LlamaConfig", LLAMA), 4, 1024, dtype=BF16, opt=lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True))


@program
def llama_amp_eager():
    lm("LlamaForCausalLM", ("LlamaConfig", dict(LLAMA, attn_implementation="eager")), 2, 1024, amp=BF16)


@program
def llama_fp32_sgd():
    lm("LlamaForCausalLM", ("LlamaConfig", LLAMA), 2, 768, opt=lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))


@program
def qwen3_bf16_checkpointed():
    lm("Qwen3ForCausalLM", ("Qwen3Config", dict(LLAMA, head_dim=64, vocab_size=50000)), 8, 1024, dtype=BF16, ckpt=True)


@program
def mistral_amp_forloop():
    lm("MistralForCausalLM", ("MistralConfig", dict(LLAMA, num_hidden_layers=8, sliding_window=None)), 4, 768, amp=BF16,
       opt=lambda p: torch.optim.AdamW(p, lr=1e-4, foreach=False))  # fmt: skip


@program
def gemma2_amp():
    lm("Gemma2ForCausalLM", ("Gemma2Config", dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=8,
       num_key_value_heads=4, head_dim=96, vocab_size=64000, attn_implementation="eager")), 2, 640, amp=BF16)  # fmt: skip


@program
def opt_fp16_scaler():
    lm("OPTForCausalLM", ("OPTConfig", {}), 6, 512, amp=F16, scaler=True)


@program
def neox_bf16_checkpointed():
    lm("GPTNeoXForCausalLM", ("GPTNeoXConfig", dict(hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, intermediate_size=4096,
       vocab_size=50432)), 4, 1024, amp=BF16, ckpt=True)  # fmt: skip


@program
def mixtral_bf16():
    lm("MixtralForCausalLM", ("MixtralConfig", dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12,
       num_key_value_heads=4, num_local_experts=8, vocab_size=32000, output_router_logits=True)), 4, 512, dtype=BF16)  # fmt: skip


@program
def qwen3_moe_amp():
    lm("Qwen3MoeForCausalLM", ("Qwen3MoeConfig", dict(hidden_size=512, intermediate_size=1024, moe_intermediate_size=512, num_hidden_layers=6,
       num_attention_heads=8, num_key_value_heads=4, num_experts=16, num_experts_per_tok=4, vocab_size=32000)), 4, 512, amp=BF16)  # fmt: skip


@program
def moe_by_hand():
    class Experts(nn.Module):
        def __init__(self, d, n):
            super().__init__()
            self.gate = nn.Linear(d, n)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n))

        def forward(self, x):
            shape = x.shape
            x = x.reshape(-1, shape[-1])
            w, i = self.gate(x).softmax(-1).topk(2, -1)
            out = torch.zeros_like(x)
            for k, e in enumerate(self.experts):
                row, col = torch.where(i == k)
                out.index_add_(0, row, (e(x[row]) * w[row, col, None]).to(out.dtype))
            return out.reshape(shape) + x.reshape(shape)

    model = nn.Sequential(nn.Embedding(20000, 512), *[Experts(512, 8) for _ in range(4)], nn.LayerNorm(512), nn.Linear(512, 20000))
    train(model, lambda: (ids(8, 512, 20000),), loss=lambda o: F.cross_entropy(o.view(-1, 20000), torch.zeros(8 * 512, dtype=torch.long, device=dev)))


@program
def bert_base_padded():
    import transformers as tf

    model = tf.BertForMaskedLM(tf.BertConfig())

    def batch():
        x = ids(16, 256, 30000)
        mask = torch.ones(16, 256, dtype=torch.long)
        for i in range(16):
            mask[i, 256 - 8 * i :] = 0
        return dict(input_ids=x, attention_mask=mask.to(dev), labels=x)

    train(model, batch)


@program
def bert_large_lengths():
    import transformers as tf

    random.seed(3)
    model = tf.BertForSequenceClassification(tf.BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096))

    def batch():
        s = random.randint(64, 320)
        return dict(input_ids=ids(8, s, 30000), labels=torch.randint(0, 2, (8,)).to(dev))

    train(model, batch, steps=6, amp=BF16)


@program
def roberta_fp16_scaler():
    lm("RobertaForMaskedLM", ("RobertaConfig", dict(max_position_embeddings=514)), 12, 384, amp=F16, scaler=True, clip=1.0)


@program
def deberta_amp():
    import transformers as tf

    model = tf.DebertaV2ForSequenceClassification(tf.DebertaV2Config(hidden_size=768, num_hidden_layers=8, num_attention_heads=12, intermediate_size=3072,
        vocab_size=30000, relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"], norm_rel_ebd="layer_norm", share_att_key=True))  # fmt: skip
    train(model, lambda: dict(input_ids=ids(8, 256, 30000), labels=torch.randint(0, 2, (8,)).to(dev)), amp=BF16)


@program
def distilbert_sgd():
    import transformers as tf

    model = tf.DistilBertForTokenClassification(tf.DistilBertConfig())
    train(model, lambda: dict(input_ids=ids(16, 384, 30000), labels=torch.randint(0, 2, (16, 384)).to(dev)), opt=lambda p: torch.optim.SGD(p, lr=0.1))


@program
def albert_amp():
    import transformers as tf

    model = tf.AlbertForMaskedLM(tf.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072))
    train(model, lambda: (lambda x: dict(input_ids=x, labels=x))(ids(16, 256, 30000)), amp=BF16)


@program
def t5_adafactor():
    import transformers as tf

    model = tf.T5ForConditionalGeneration(tf.T5Config(d_model=768, d_ff=2048, d_kv=64, num_layers=8, num_heads=12, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0)).to(BF16)  # fmt: skip
    train(model, lambda: dict(input_ids=ids(8, 256, 32000), labels=ids(8, 96, 32000)), opt=lambda p: torch.optim.Adafactor(p, lr=1e-3))


@program
def bart_amp():
    import transformers as tf

    model = tf.BartForConditionalGeneration(tf.BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
        encoder_attention_heads=12, decoder_attention_heads=12))  # fmt: skip
    train(model, lambda: dict(input_ids=ids(6, 384, 50000), labels=ids(6, 128, 50000)), amp=BF16)


@program
def whisper_amp():
    import transformers as tf

    model = tf.WhisperForConditionalGeneration(tf.WhisperConfig(d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048))  # fmt: skip
    train(model, lambda: dict(input_features=torch.randn(4, 80, 3000).to(dev), labels=ids(4, 120, 50000)), amp=BF16)


@program
def vit_hf_amp():
    import transformers as tf

    model = tf.ViTForImageClassification(tf.ViTConfig(num_labels=1000))
    train(model, lambda: dict(pixel_values=torch.randn(24, 3, 224, 224).to(dev), labels=torch.randint(0, 1000, (24,)).to(dev)), amp=BF16)


@program
def dinov2_fp32():
    import transformers as tf

    model = tf.Dinov2ForImageClassification(tf.Dinov2Config(hidden_size=384, num_attention_heads=6, num_labels=100))
    train(model, lambda: dict(pixel_values=torch.randn(12, 3, 224, 224).to(dev), labels=torch.randint(0, 100, (12,)).to(dev)))


@program
def segformer_amp():
    import transformers as tf

    model = tf.SegformerForSemanticSegmentation(tf.SegformerConfig(num_labels=19, hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=256))
    train(model, lambda: dict(pixel_values=torch.randn(4, 3, 512, 512).to(dev), labels=torch.randint(0, 19, (4, 512, 512)).to(dev)), amp=BF16)


@program
def clip_amp():
    import transformers as tf

    model = tf.CLIPModel(tf.CLIPConfig())
    train(model, lambda: dict(input_ids=ids(48, 64, 49000), pixel_values=torch.randn(48, 3, 224, 224).to(dev), return_loss=True), amp=BF16)


@program
def siglip_fp32():
    import transformers as tf

    small = dict(hidden_size=384, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6)
    model = tf.SiglipModel(tf.SiglipConfig(text_config=dict(small), vision_config=dict(small)))
    train(model, lambda: dict(input_ids=ids(32, 64, 30000), pixel_values=torch.randn(32, 3, 224, 224).to(dev), return_loss=True))


@program
def wav2vec2_ctc():
    import transformers as tf

    model = tf.Wav2Vec2ForCTC(tf.Wav2Vec2Config(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048, mask_time_prob=0.0,
        layerdrop=0.0))  # fmt: skip
    train(model, lambda: dict(input_values=torch.randn(4, 64000).to(dev), labels=ids(4, 30, 31)))


@program
def hubert_amp():
    import transformers as tf

    model = tf.HubertForSequenceClassification(tf.HubertConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048,
        mask_time_prob=0.0, layerdrop=0.0))  # fmt: skip
    train(model, lambda: dict(input_values=torch.randn(8, 48000).to(dev), labels=torch.randint(0, 2, (8,)).to(dev)), amp=BF16)


@program
def ast_amp():
    import transformers as tf

    model = tf.ASTForAudioClassification(tf.ASTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_hidden_layers=8))
    train(model, lambda: dict(input_values=torch.randn(4, 1024, 128).to(dev), labels=torch.randint(0, 2, (4,)).to(dev)), amp=F16, scaler=True)


def vision(model, b, size=224, classes=1000, cl=False, **kw):
    if cl:
        model = model.to(memory_format=torch.channels_last)

    def batch():
        x = torch.randn(b, 3, size, size).to(dev)
        return (x.contiguous(memory_format=torch.channels_last) if cl else x,)

    kw.setdefault("opt", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4))
    train(model, batch, loss=lambda o: F.cross_entropy(o["out"] if isinstance(o, dict) else o, torch.zeros((b,) + tuple((o["out"] if isinstance(o, dict) else o).shape[2:]), dtype=torch.long, device=dev)), **kw)


def tv(name, **kw):
    import torchvision

    return getattr(torchvision.models, name)(**kw)


@program
def resnet50_fp32():
    vision(tv("resnet50"), 48)


@program
def resnet101_fp16_channels_last():
    vision(tv("resnet101"), 64, cl=True, amp=F16, scaler=True)


@program
def efficientnet_b3_amp():
    vision(tv("efficientnet_b3"), 24, size=300, amp=BF16, opt=lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9))


@program
def mobilenet_v3_fp32():
    vision(tv("mobilenet_v3_large"), 96)


@program
def regnet_amp():
    vision(tv("regnet_y_3_2gf"), 64, amp=BF16)


@program
def densenet121_amp():
    vision(tv("densenet121"), 48, amp=F16, scaler=True)


@program
def vgg16_bn_fp32():
    vision(tv("vgg16_bn"), 24)


@program
def convnext_tiny_amp():
    vision(tv("convnext_tiny"), 48, amp=BF16, opt=lambda p: torch.optim.AdamW(p, lr=1e-3))


@program
def swin_t_amp():
    vision(tv("swin_t"), 32, amp=BF16, opt=lambda p: torch.optim.AdamW(p, lr=1e-3))


@program
def maxvit_fp32():
    vision(tv("maxvit_t"), 12, opt=lambda p: torch.optim.AdamW(p, lr=1e-3))


@program
def timm_vit_amp():
    import timm

    vision(timm.create_model("vit_small_patch16_224", pretrained=False), 64, amp=BF16, opt=lambda p: torch.optim.AdamW(p, lr=1e-3))


@program
def timm_mixer_fp32():
    import timm

    vision(timm.create_model("mixer_s16_224", pretrained=False), 48)


@program
def deeplab_fp32():
    import torchvision

    vision(torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21), 6, size=320)


@program
def fcn_amp():
    import torchvision

    vision(torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, num_classes=21), 8, size=320, amp=BF16)


def detection(name, **kw):
    import torchvision

    model = getattr(torchvision.models.detection, name)(weights=None, weights_backbone=None, num_classes=21, **kw)
    g = torch.Generator().manual_seed(5)

    def batch():
        images, targets = [], []
        for _ in range(3):
            p = torch.rand(6, 2, generator=g) * 300
            wh = torch.rand(6, 2, generator=g) * 150 + 20
            masks = torch.zeros(6, 480, 640, dtype=torch.uint8)
            for i in range(6):
                masks[i, 50:100, 50:100] = 1
            targets.append(dict(boxes=torch.cat([p, p + wh], 1).to(dev), labels=torch.randint(1, 21, (6,)).to(dev), masks=masks.to(dev)))
            images.append(torch.rand(3, 480, 640).to(dev))
        return images, targets

    train(model, batch, loss=lambda o: sum(o.values()), opt=lambda p: torch.optim.SGD(p, lr=0.005, momentum=0.9))


@program
def retinanet():
    detection("retinanet_resnet50_fpn")


@program
def fasterrcnn():
    detection("fasterrcnn_resnet50_fpn")


@program
def maskrcnn():
    detection("maskrcnn_resnet50_fpn")


@program
def video_r3d_amp():
    import torchvision

    model = torchvision.models.video.r3d_18(num_classes=50)
    train(model, lambda: (torch.randn(6, 3, 16, 112, 112).to(dev),), loss=lambda o: F.cross_entropy(o, torch.zeros(6, dtype=torch.long, device=dev)), amp=BF16)


class Block(nn.Module):
    def __init__(self, i, o, t):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.t = nn.Linear(t, o)
        self.n2, self.c2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        self.s = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x))) + self.t(F.silu(t))[:, :, None, None]
        return self.c2(F.dropout(F.silu(self.n2(h)), 0.1, self.training)) + self.s(x)


class Attention(nn.Module):
    def __init__(self, c, heads=4):
        super().__init__()
        self.n, self.qkv, self.o, self.heads = nn.GroupNorm(8, c), nn.Conv2d(c, 3 * c, 1), nn.Conv2d(c, c, 1), heads

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.n(x)).reshape(b, 3, self.heads, c // self.heads, h * w).permute(1, 0, 2, 4, 3)
        return x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, c=128):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(c, 4 * c), nn.SiLU(), nn.Linear(4 * c, 4 * c))
        self.c = c
        self.inp = nn.Conv2d(3, c, 3, padding=1)
        self.d1, self.d2, self.d3 = Block(c, c, 4 * c), Block(c, 2 * c, 4 * c), Block(2 * c, 4 * c, 4 * c)
        self.p1, self.p2 = nn.Conv2d(c, c, 3, stride=2, padding=1), nn.Conv2d(2 * c, 2 * c, 3, stride=2, padding=1)
        self.a = Attention(4 * c)
        self.u2, self.u1 = Block(6 * c, 2 * c, 4 * c), Block(3 * c, c, 4 * c)
        self.out = nn.Sequential(nn.GroupNorm(8, c), nn.SiLU(), nn.Conv2d(c, 3, 3, padding=1))

    def forward(self, x, t):
        f = torch.exp(torch.arange(self.c // 2, device=x.device) * -0.1)
        e = t[:, None].float() * f[None]
        t = self.time(torch.cat([e.sin(), e.cos()], 1))
        h1 = self.d1(self.inp(x), t)
        h2 = self.d2(self.p1(h1), t)
        h3 = self.a(self.d3(self.p2(h2), t))
        h = self.u2(torch.cat([F.interpolate(h3, scale_factor=2.0), h2], 1), t)
        h = self.u1(torch.cat([F.interpolate(h, scale_factor=2.0), h1], 1), t)
        return self.out(h)


def diffusion(model, b, size, c=3, **kw):
    import copy

    model = model.to(dev)
    ema = copy.deepcopy(model).requires_grad_(False)
    alphas = torch.linspace(0.999, 0.01, 1000, device=dev)

    class Wrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.m = model

        def forward(self, x):
            t = torch.randint(0, 1000, (x.shape[0],), device=dev)
            n = torch.randn_like(x)
            a = alphas[t][:, None, None, None]
            return F.mse_loss(self.m(a.sqrt() * x + (1 - a).sqrt() * n, t).float(), n.float())

    train(Wrap(), lambda: (torch.randn(b, c, size, size).to(dev),), loss=lambda o: o, ema=None, **kw)
    with torch.no_grad():
        for a, m in zip(ema.parameters(), model.parameters()):
            a.lerp_(m.detach(), 0.01)


@program
def diffusion_unet_fp32():
    diffusion(UNet(96), 16, 64)


@program
def diffusion_unet_amp():
    diffusion(UNet(128), 16, 64, amp=BF16, clip=1.0)


class DiTBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d, elementwise_affine=False), nn.LayerNorm(d, elementwise_affine=False)
        self.qkv, self.o, self.h = nn.Linear(d, 3 * d), nn.Linear(d, d), h
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(d, 6 * d))

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c)[:, None].chunk(6, -1)
        b, n, d = x.shape
        q, k, v = self.qkv(self.n1(x) * (1 + s1) + b1).reshape(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + g1 * self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + g2 * self.mlp(self.n2(x) * (1 + s2) + b2)


class DiT(nn.Module):
    def __init__(self, d=512, layers=8, heads=8, ckpt=False):
        super().__init__()
        self.patch, self.pos = nn.Conv2d(4, d, 2, stride=2), nn.Parameter(torch.zeros(1, 256, d))
        self.t = nn.Embedding(1000, d)
        self.blocks = nn.ModuleList(DiTBlock(d, heads) for _ in range(layers))
        self.out, self.ckpt = nn.Linear(d, 16), ckpt

    def forward(self, x, t):
        from torch.utils.checkpoint import checkpoint

        h = self.patch(x).flatten(2).transpose(1, 2) + self.pos
        c = self.t(t)
        for b in self.blocks:
            h = checkpoint(b, h, c, use_reentrant=False) if self.ckpt else b(h, c)
        h = self.out(h).reshape(-1, 16, 16, 2, 2, 4)
        return h.permute(0, 5, 1, 3, 2, 4).reshape(-1, 4, 32, 32)


@program
def dit_amp():
    diffusion(DiT(), 32, 32, c=4, amp=BF16)


@program
def dit_fp32_checkpointed():
    diffusion(DiT(ckpt=True), 48, 32, c=4)


@program
def lora_peft_bf16():
    import transformers as tf
    from peft import LoraConfig, get_peft_model

    model = tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA)).to(BF16)
    model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], lora_dropout=0.05))
    train(model, lambda: (lambda x: dict(input_ids=x, labels=x))(ids(4, 768, 32000)), amp=BF16)


@program
def lora_by_hand_fp32():
    import transformers as tf

    class Lora(nn.Module):
        def __init__(self, base, r=8):
            super().__init__()
            self.base = base.requires_grad_(False)
            i, o = base.weight.shape
            self.a, self.b = nn.Linear(i, r, bias=False), nn.Linear(r, o, bias=False)

        def forward(self, x):
            return self.base(x) + self.b(self.a(x)) * 2

    model = tf.GPT2LMHeadModel(tf.GPT2Config())
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = Lora(block.attn.c_attn)
    train(model, lambda: (lambda x: dict(input_ids=x, labels=x))(ids(4, 512, 50000)))


@program
def gcn_large():
    from torch_geometric.nn import GCNConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = GCNConv(128, 256), GCNConv(256, 256), GCNConv(256, 40)

        def forward(self, x, e):
            x = F.dropout(self.a(x, e).relu(), 0.5, self.training)
            x = F.dropout(self.b(x, e).relu(), 0.5, self.training)
            return self.c(x, e)

    e = torch.randint(0, 60000, (2, 400000)).to(dev)
    x = torch.randn(60000, 128).to(dev)
    mask = (torch.arange(60000) % 2 == 0).to(dev)
    y = torch.randint(0, 40, (60000,)).to(dev)
    train(Net(), lambda: (x, e), loss=lambda o: F.cross_entropy(o[mask], y[mask]), opt=lambda p: torch.optim.Adam(p, lr=0.01))


@program
def gat_sage():
    from torch_geometric.nn import GATConv, SAGEConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = GATConv(64, 32, heads=8), SAGEConv(256, 20)

        def forward(self, x, e):
            return self.b(F.elu(self.a(x, e)), e)

    e = torch.randint(0, 30000, (2, 250000)).to(dev)
    x = torch.randn(30000, 64).to(dev)
    train(Net(), lambda: (x, e), loss=lambda o: F.cross_entropy(o, torch.zeros(30000, dtype=torch.long, device=dev)))


class DLRM(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(200000, 64, mode="sum", sparse=sparse) for _ in range(8))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(64 + 36, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, x, i):
        v = torch.stack([self.bottom(x)] + [t(j) for t, j in zip(self.tables, i)], 1)
        z = torch.bmm(v, v.transpose(1, 2))
        r, c = torch.tril_indices(9, 9, -1)
        return self.top(torch.cat([v[:, 0], z[:, r, c]], 1))


def dlrm(sparse, opt):
    train(DLRM(sparse), lambda: (torch.randn(4096, 13).to(dev), [ids(4096, 4, 200000) for _ in range(8)]),
          loss=lambda o: F.binary_cross_entropy_with_logits(o[:, 0], torch.zeros(4096, device=dev)), opt=opt)  # fmt: skip


@program
def dlrm_sparse():
    dlrm(True, lambda p: torch.optim.SGD(p, lr=0.1))


@program
def dlrm_adagrad():
    dlrm(False, lambda p: torch.optim.Adagrad(p, lr=0.1))


@program
def embedding_sparse_adam():
    model = nn.Embedding(500000, 64, sparse=True)
    train(model, lambda: (ids(512, 32, 500000),), loss=lambda o: o.pow(2).mean(), opt=lambda p: torch.optim.SparseAdam(p))


class UNet3d(nn.Module):
    def __init__(self, c=24):
        super().__init__()

        def block(i, o):
            return nn.Sequential(nn.Conv3d(i, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, True),
                                 nn.Conv3d(o, o, 3, padding=1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, True))  # fmt: skip

        self.d1, self.d2, self.d3 = block(1, c), block(c, 2 * c), block(2 * c, 4 * c)
        self.u2, self.u1 = nn.ConvTranspose3d(4 * c, 2 * c, 2, stride=2), nn.ConvTranspose3d(2 * c, c, 2, stride=2)
        self.b2, self.b1, self.o = block(4 * c, 2 * c), block(2 * c, c), nn.Conv3d(c, 4, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool3d(a, 2))
        h = self.u2(self.d3(F.max_pool3d(b, 2)))
        h = self.u1(self.b2(torch.cat([h, b], 1)))
        return self.o(self.b1(torch.cat([h, a], 1)))


@program
def unet3d_fp32():
    train(UNet3d(), lambda: (torch.randn(2, 1, 64, 64, 64).to(dev),), loss=lambda o: F.cross_entropy(o, torch.zeros(2, 64, 64, 64, dtype=torch.long, device=dev)))


@program
def unet3d_fp16_scaler():
    train(UNet3d(32), lambda: (torch.randn(2, 1, 64, 96, 96).to(dev),), amp=F16, scaler=True,
          loss=lambda o: F.cross_entropy(o, torch.zeros(2, 64, 96, 96, dtype=torch.long, device=dev)))  # fmt: skip


class LM(nn.Module):
    def __init__(self, cell, v=20000):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(v, 512), cell(512, 1024, 2, batch_first=True, dropout=0.2), nn.Linear(1024, v)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0])


@program
def lstm_lm_fp32():
    train(LM(nn.LSTM), lambda: (ids(32, 128, 20000),), loss=lambda o: F.cross_entropy(o.view(-1, 20000), torch.zeros(32 * 128, dtype=torch.long, device=dev)), clip=0.25)


@program
def gru_lm_amp():
    train(LM(nn.GRU), lambda: (ids(32, 128, 20000),), loss=lambda o: F.cross_entropy(o.view(-1, 20000), torch.zeros(32 * 128, dtype=torch.long, device=dev)), amp=F16, scaler=True)


@program
def lstm_cells():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.c, self.o = nn.LSTMCell(256, 512), nn.Linear(512, 100)

        def forward(self, x):
            h = c = torch.zeros(x.shape[1], 512, device=dev)
            out = []
            for t in x:
                h, c = self.c(t, (h, c))
                out.append(self.o(h))
            return torch.stack(out)

    train(Net(), lambda: (torch.randn(64, 256, 256).to(dev),), loss=lambda o: o.pow(2).mean())


@program
def dcgan():
    G = nn.Sequential(nn.ConvTranspose2d(128, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU(True), nn.ConvTranspose2d(512, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.ReLU(True),
                      nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(True), nn.ConvTranspose2d(128, 3, 4, 2, 1), nn.Tanh()).to(dev)  # fmt: skip
    D = nn.Sequential(nn.Conv2d(3, 128, 4, 2, 1), nn.LeakyReLU(0.2, True), nn.Conv2d(128, 256, 4, 2, 1, bias=False), nn.BatchNorm2d(256), nn.LeakyReLU(0.2, True), nn.Conv2d(256, 1, 8)).to(dev)
    g, d = torch.optim.Adam(G.parameters(), 2e-4), torch.optim.Adam(D.parameters(), 2e-4)
    for _ in range(3):
        real, fake = torch.rand(128, 3, 32, 32).to(dev), G(torch.randn(128, 128, 1, 1, device=dev))
        l = F.binary_cross_entropy_with_logits(D(real), torch.ones(128, 1, 1, 1, device=dev)) + F.binary_cross_entropy_with_logits(D(fake.detach()), torch.zeros(128, 1, 1, 1, device=dev))
        d.zero_grad(); l.backward(); d.step()  # fmt: skip
        l = F.binary_cross_entropy_with_logits(D(fake), torch.ones(128, 1, 1, 1, device=dev))
        g.zero_grad(); l.backward(); g.step()  # fmt: skip


@program
def simclr_amp():
    import torchvision

    enc = torchvision.models.resnet34(num_classes=128)

    def loss(z):
        z = F.normalize(z.float())
        sim = z @ z.t() / 0.1
        sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool, device=dev), -1e9)
        return F.cross_entropy(sim, torch.arange(len(z), device=dev).roll(len(z) // 2))

    train(enc, lambda: (torch.randn(192, 3, 128, 128).to(dev),), loss=loss, amp=BF16)


@program
def transformer_encoder_fp32():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.o = nn.Embedding(10000, 512), nn.Linear(512, 10000)
            self.t = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6)

        def forward(self, x):
            return self.o(self.t(self.e(x), src_key_padding_mask=x == 5))

    train(Net(), lambda: (ids(16, 200, 10000),), loss=lambda o: F.cross_entropy(o.view(-1, 10000), torch.zeros(3200, dtype=torch.long, device=dev)))


@program
def seq2seq_nn_transformer_amp():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.o, self.t = nn.Embedding(10000, 512), nn.Linear(512, 10000), nn.Transformer(512, 8, 4, 4, 2048, batch_first=True)

        def forward(self, x, y):
            m = nn.Transformer.generate_square_subsequent_mask(y.shape[1], device=dev)
            return self.o(self.t(self.e(x), self.e(y), tgt_mask=m))

    train(Net(), lambda: (ids(16, 128, 10000), ids(16, 100, 10000)), loss=lambda o: F.cross_entropy(o.view(-1, 10000), torch.zeros(1600, dtype=torch.long, device=dev)), amp=BF16)


@program
def muon_mlp():
    model = nn.Sequential(nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))
    train(model, lambda: (torch.randn(512, 2048).to(dev),), loss=lambda o: F.cross_entropy(o, torch.zeros(512, dtype=torch.long, device=dev)),
          opt=lambda p: torch.optim.Muon([q for q in p if q.dim() == 2], lr=0.01))  # fmt: skip


@program
def pointnet_adam():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Sequential(nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU(), nn.Conv1d(128, 1024, 1), nn.BatchNorm1d(1024))
            self.h = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 40))

        def forward(self, x):
            return self.h(self.f(x).max(-1)[0])

    train(Net(), lambda: (torch.randn(64, 3, 2048).to(dev),), loss=lambda o: F.cross_entropy(o, torch.zeros(64, dtype=torch.long, device=dev)), opt=lambda p: torch.optim.Adam(p))


@program
def prefetch_streams():
    from torch.utils.data import DataLoader, TensorDataset
    import torchvision

    data = DataLoader(TensorDataset(torch.randn(96, 3, 160, 160), torch.randint(0, 10, (96,))), batch_size=32, num_workers=2, pin_memory=True)
    model = torchvision.models.resnet18(num_classes=10).to(dev)
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    stream = torch.cuda.Stream()
    it = iter(data)

    def fetch():
        b = next(it, None)
        if b is None:
            return None
        with torch.cuda.stream(stream):
            return [t.to(dev, non_blocking=True) for t in b]

    nxt = fetch()
    while nxt is not None:
        torch.cuda.current_stream().wait_stream(stream)
        x, y = nxt
        for t in (x, y):
            t.record_stream(torch.cuda.current_stream())
        nxt = fetch()
        l = F.cross_entropy(model(x), y)
        opt.zero_grad()
        l.backward()
        opt.step()
    torch.cuda.empty_cache()


@program
def reentrant_checkpoint():
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.ModuleList(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Dropout(0.1), nn.Linear(4096, 1024), nn.LayerNorm(1024)) for _ in range(12))

        def forward(self, x):
            x.requires_grad_()
            for l in self.l:
                x = x + checkpoint(l, x, use_reentrant=True)
            return x.pow(2).mean()

    train(Net(), lambda: (torch.randn(8192, 1024).to(dev),), loss=lambda o: o, amp=BF16)


@program
def generate_gpt2_cache():
    import transformers as tf

    model = tf.GPT2LMHeadModel(tf.GPT2Config(pad_token_id=50256)).to(dev).eval()
    x = ids(8, 64, 50000)
    with torch.no_grad():
        model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=96, min_new_tokens=96, do_sample=True)


@program
def generate_llama_bf16():
    import transformers as tf

    model = tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA)).to(dev, BF16).eval()
    x = ids(16, 256, 32000)
    with torch.inference_mode():
        model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=64, min_new_tokens=64, do_sample=False)


@program
def generate_t5_beams():
    import transformers as tf

    model = tf.T5ForConditionalGeneration(tf.T5Config(decoder_start_token_id=0)).to(dev).eval()
    x = ids(4, 128, 32000)
    with torch.no_grad():
        model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=48, min_new_tokens=48, num_beams=4)


@program
def inference_resnet_fp16():
    import torchvision

    model = torchvision.models.resnet50().to(dev).half().eval()
    with torch.inference_mode():
        for _ in range(3):
            model(torch.randn(64, 3, 224, 224).to(dev).half()).softmax(-1).argmax(-1).cpu()


def ranks(n):
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.cuda.set_device(0)
    dist.init_process_group("fake", rank=0, world_size=n, store=FakeStore())


@program
def ddp_rank0_of_4():
    import transformers as tf

    ranks(4)
    model = tf.GPT2LMHeadModel(tf.GPT2Config(n_layer=6)).to(dev)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0])

    def alone(state, bucket):  # the group that talks to nobody has no answer
        f = torch.futures.Future()
        f.set_result(bucket.buffer().div_(4))
        return f

    model.register_comm_hook(None, alone)
    train(model, lambda: (lambda x: dict(input_ids=x, labels=x))(ids(4, 512, 50000)), amp=BF16)


@program
def fsdp2_rank0_of_8():
    import transformers as tf
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    ranks(8)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMA)).to(dev)
    policy = MixedPrecisionPolicy(param_dtype=BF16)
    for l in model.model.layers:
        fully_shard(l, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    train(model, lambda: (lambda x: dict(input_ids=x, labels=x))(ids(2, 768, 32000)))


@program
def compiled_mlp():
    model = torch.compile(nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)))
    train(model, lambda: (torch.randn(4096, 2048).to(dev),), loss=lambda o: o.pow(2).mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    if sys.argv[1] == "--list":
        print(" ".join(PROGRAMS))
    else:
        PROGRAMS[sys.argv[1]]()
