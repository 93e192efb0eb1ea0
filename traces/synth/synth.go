// Package synth makes traces of programs that nobody has run yet: from the
// description of a model and a set of knobs it writes the requests that the
// framework would make of its GPU memory allocator, in order and to the byte.
//
// It does not estimate "activation bytes per layer". A miniature of PyTorch's
// eager mode (internal/eager) runs the model's operations on tensors without
// contents and lets reference counts decide what is freed when, as autograd,
// autocast, activation checkpointing and the optimizers do. The families
// (bert, gpt2, llama, vit, resnet, mobilenet-v3) follow transformers 5 and
// torchvision 0.26; the rules follow torch 2.11 on an NVIDIA H200 and are
// described, with predicted against measured figures, in docs/synthetic.md.
//
//	m, err := synth.Load("bert-large")
//	t, err := synth.Generate(ctx, m, synth.Options{Batch: 8, Seq: 256, Precision: synth.BF16AMP})
package synth

import (
	"context"
	"fmt"

	"allocsim/traces"
	"allocsim/traces/synth/internal/eager"
)

// Result is a trace with what the engine counted on the way.
type Result struct {
	Trace *traces.Trace
	// Params is the number of parameters of the whole model.
	Params int64
	// FLOPs counts the operations of matrix products, convolutions and
	// attention on the traced card; RecomputeFLOPs is the part that activation
	// checkpointing repeats.
	FLOPs, RecomputeFLOPs float64
	// LivePeak is the most bytes live at once, each request rounded up to 512
	// (the peak of allocated memory before unsplit remainders).
	LivePeak int64
	// Tokens is the items' own tokens (or pixels-per-side for images) over all
	// batches, Padded the same after padding.
	Tokens, Padded int64
}

// Generate makes the trace of running m under o; zero options take their
// defaults. The trace carries annotations that mark the steps, call stacks that
// name phase, module and operation, and notes on what the rules cannot know.
// The same model and options give the same trace.
func Generate(ctx context.Context, m Model, o Options) (*traces.Trace, error) {
	r, err := Run(ctx, m, o)
	if err != nil {
		return nil, err
	}
	return r.Trace, nil
}

// Run is Generate with the engine's counts.
func Run(ctx context.Context, m Model, o Options) (*Result, error) {
	m.defaults()
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.fill(m)
	if err := o.check(m); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e := eager.New(ctx, gpus[o.GPU], o.MaxEvents)
	p := &program{e: e, m: m, o: &o, s: newSampler(&o)}
	t, err := e.Run(func() error {
		p.setup()
		if o.Mode == Infer {
			p.infer()
		} else {
			p.train()
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("generating %s: %w", m.Name, err)
	}
	t.Source, t.Format = m.Name, "synthetic"
	t.Meta.Torch, t.Meta.Ranks = "2.11.0", o.DP*o.TP*o.PP
	for _, k := range p.marks {
		t.Annotations = append(t.Annotations, traces.Annotation{TimeUS: k.us, Name: k.name, End: k.end})
	}
	t.Notes = p.notes()
	return &Result{Trace: t, Params: m.Params(), FLOPs: e.FLOPs, RecomputeFLOPs: e.RecomputeFLOPs,
		LivePeak: e.Peak(), Tokens: p.s.tokens, Padded: p.s.padded}, nil
}

// notes says what the rules behind this trace cannot know.
func (p *program) notes() []string {
	o, m := p.o, p.m
	n := []string{
		"Synthetic trace: requests follow torch 2.11 eager mode (transformers 5, torchvision 0.26); times are the order of requests at 5 µs each, not measured.",
		"CUDA context, NCCL buffers and pinned memory are outside the caching allocator and not in the trace.",
	}
	add := func(cond bool, s string) {
		if cond {
			n = append(n, s)
		}
	}
	conv := m.image()
	hopper := o.GPU == "h200" || o.GPU == "h100"
	add(conv, "cuDNN workspaces follow a rule fitted to NCHW convolutions on an H200; other shapes, channels_last and benchmark mode differ, which moves reserved memory more than allocated.")
	add(!hopper, fmt.Sprintf("Library workspaces and attention kernels of %s are from source knowledge; only the H200 has recordings.", o.GPU))
	add(o.GPU == "h100", "The H100 is taken to behave as the H200, which has the recordings.")
	add(o.DP > 1, "The trace is rank 0's.")
	add(o.TP > 1, "Tensor parallelism shards heads, MLP and vocabulary; all-reduces work in place and the loss is computed on the rank's part of the vocabulary.")
	add(o.PP > 1, fmt.Sprintf("The trace is pipeline stage %d of %d under a 1F1B schedule; send and receive buffers are counted, their overlap with compute is not.", o.PPRank, o.PP))
	add(o.Zero >= 2, "Sharding follows fully_shard (each block one unit, the rest one unit, one block prefetched in backward); from source knowledge, no recording.")
	add(o.Zero >= 2 && o.Precision.amp() != 0, "Mixed precision under sharding uses 16-bit gathered parameters and fp32 shards (MixedPrecisionPolicy) in place of autocast.")
	add(o.Mode == Train && o.Optimizer == Adam8bit, "8-bit Adam follows bitsandbytes' block-wise states (256 elements a block); from source knowledge, no recording.")
	add(o.Precision == FP16AMP && o.SkippedSteps == 0 && o.Mode == Train, "The fp16 loss scaler usually skips the first few steps, which delays the optimizer states; say how many with skipped_steps.")
	add(o.Precision == Int8, "Int8 weights are expanded to bf16 layer by layer for each product (weight-only quantization); fused int8 kernels need less, frameworks that keep both copies more.")
	add(o.Mode == Infer && o.KVCache == "paged" && m.decoder(), "Pages are allocated one by one as items grow; servers that reserve a pool up front hold it whole.")
	add(m.Name == "gpt3-175b", "GPT-3's alternating sparse attention is taken as dense.")
	return n
}
