package synth

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"allocsim/traces/kernels"
	"allocsim/traces/synth/internal/eager"
)

// Mode says what the program does with the model.
type Mode string

// The modes.
const (
	Train Mode = "train"
	Infer Mode = "infer"
)

// Precision is the type of parameters and computation.
type Precision string

// The precisions.
const (
	FP32    Precision = "fp32"     // fp32 throughout
	FP16AMP Precision = "fp16-amp" // fp32 parameters, fp16 autocast, loss scaling
	BF16AMP Precision = "bf16-amp" // fp32 parameters, bf16 autocast
	BF16    Precision = "bf16"     // bf16 parameters, no autocast
	FP16    Precision = "fp16"     // fp16 parameters, inference only
	Int8    Precision = "int8"     // int8 weights, bf16 activations, inference only
)

func (p Precision) paramType() eager.DType {
	switch p {
	case BF16, Int8:
		return eager.BF16
	case FP16:
		return eager.F16
	}
	return eager.F32
}

// amp is the autocast type, 0 for none.
func (p Precision) amp() eager.DType {
	switch p {
	case FP16AMP:
		return eager.F16
	case BF16AMP:
		return eager.BF16
	}
	return 0
}

// OptimizerName names an optimizer with its usual settings.
type OptimizerName string

// The optimizers: torch.optim's with foreach where that is the default, and
// bitsandbytes' block-wise 8-bit Adam.
const (
	SGD       OptimizerName = "sgd"       // momentum 0.9
	Adam      OptimizerName = "adam"      // no weight decay
	AdamW     OptimizerName = "adamw"     // decoupled weight decay
	Adafactor OptimizerName = "adafactor" // torch.optim.Adafactor, one tensor at a time
	Adam8bit  OptimizerName = "adam8bit"  // bitsandbytes.optim.Adam8bit
)

// Checkpointing says which activations are recomputed.
type Checkpointing string

// The kinds of activation checkpointing (all non-reentrant).
const (
	NoCheckpoint    Checkpointing = "none"
	BlockCheckpoint Checkpointing = "block" // every block on its own
	SqrtCheckpoint  Checkpointing = "sqrt"  // √n segments of √n blocks, the last not checkpointed
)

// Fault is a programming mistake that wastes memory.
type Fault string

// The classic faults.
const (
	NoFault Fault = "none"
	// KeepOutputs appends the model's output (the logits) of every step to a
	// list.
	KeepOutputs Fault = "keep-outputs"
	// KeepGraph appends the loss of every step to a list and runs backward with
	// retain_graph=True, so that no graph is ever freed.
	KeepGraph Fault = "keep-graph"
	// NewOptimizer makes a new optimizer every step: the states are allocated
	// anew each time, after the old ones have gone.
	NewOptimizer Fault = "new-optimizer"
	// LeakOptimizer makes a new optimizer every step while something (a list
	// of schedulers, a closure) still holds the old ones.
	LeakOptimizer Fault = "leak-optimizer"
)

// Options are the knobs of a program. The zero value of a field means its
// default, which Defaults shows.
type Options struct {
	// Mode is train or infer.
	Mode Mode `json:"mode"`
	// Batch is the items per step and card (micro-batch with Accumulate or
	// PP).
	Batch int64 `json:"batch"`
	// Batches, when given, is the items of each batch in turn (a ragged last
	// batch, say) in place of Batch.
	Batches []int64 `json:"batches,omitempty"`
	// Seq is the tokens per item; for image models the side of the images in
	// pixels. With Lengths it is the longest.
	Seq int64 `json:"seq"`
	// Precision of parameters and computation.
	Precision Precision `json:"precision"`
	// Optimizer of training.
	Optimizer OptimizerName `json:"optimizer"`
	// Checkpoint is the activation checkpointing of training.
	Checkpoint Checkpointing `json:"checkpoint"`
	// Accumulate is the micro-batches per optimizer step. With PP it is the
	// micro-batches in the pipeline, at least PP.
	Accumulate int `json:"accumulate"`
	// Zero is the ZeRO stage over DP cards: 0 replicates everything (DDP), 1
	// shards optimizer states (ZeroRedundancyOptimizer), 2 gradients too
	// (fully_shard with reshard_after_forward=False), 3 parameters too.
	Zero int `json:"zero"`
	// DP is the number of data-parallel cards.
	DP int `json:"dp"`
	// TP is the number of tensor-parallel cards.
	TP int `json:"tp"`
	// PP is the number of pipeline stages, PPRank the stage that is traced
	// (0 keeps the most activations).
	PP     int `json:"pp"`
	PPRank int `json:"pp_rank"`
	// Steps is the number of steps (training), or of batches (inference).
	Steps int `json:"steps"`
	// Seed draws the lengths.
	Seed int64 `json:"seed"`

	// Lengths draws the tokens of each item: "fixed" (all Seq),
	// "uniform:LO-HI", "lognormal:MEDIAN,SIGMA" or "list:A,B,…" (one per
	// batch, in turn). Image models take the side of the images from a list,
	// one per batch.
	Lengths string `json:"lengths"`
	// Padding pads the items of a batch to "max" (Seq) or to the "longest" of
	// the batch.
	Padding string `json:"padding"`
	// PadMultiple rounds the padded length up.
	PadMultiple int64 `json:"pad_multiple"`
	// TokenBudget, when positive, fills a batch with items in the order drawn
	// until items × padded length would exceed it; Batch is then the most.
	TokenBudget int64 `json:"token_budget"`

	// UseCache keeps keys and values during training too, as transformers'
	// default use_cache=True does (decoders without checkpointing).
	UseCache bool `json:"use_cache"`

	// HoldBatch keeps each batch until the next has been built, as a loop
	// variable does; otherwise a batch dies when the model's call returns.
	HoldBatch bool `json:"hold_batch"`
	// EmptyCacheEvery calls torch.cuda.empty_cache() after every n-th step; 0
	// never.
	EmptyCacheEvery int `json:"empty_cache_every"`
	// ClipNorm calls clip_grad_norm_ before each optimizer step.
	ClipNorm bool `json:"clip_norm"`
	// ZeroGradFirst calls zero_grad before the forward instead of after the
	// step, so that gradients live through the next forward's start.
	ZeroGradFirst bool `json:"zero_grad_first"`
	// SkippedSteps is how many of the first steps the fp16 loss scaler skips.
	SkippedSteps int `json:"skipped_steps"`
	// Fault is a mistake to simulate.
	Fault Fault `json:"fault"`

	// NewTokens is the tokens that a decoder generates per item (inference).
	NewTokens int64 `json:"new_tokens"`
	// KVCache is contiguous (grown by concatenation, transformers'
	// DynamicCache) or paged.
	KVCache string `json:"kv_cache"`
	// KVBlock is the tokens of a page.
	KVBlock int64 `json:"kv_block"`

	// GPU decides library workspaces and kernels: h200, h100, a100, l40s,
	// rtx4090, t4, v100.
	GPU string `json:"gpu"`
	// MaxEvents bounds the trace.
	MaxEvents int `json:"max_events"`
}

// Defaults are the options for a model when nothing is said: three fp32 steps
// with AdamW on one H200.
func Defaults(m Model) Options {
	o := Options{}
	o.fill(m)
	return o
}

var gpus = map[string]eager.Device{
	"h200":    eager.H200,
	"h100":    eager.H200,
	"a100":    kernels.DeviceOf(8, 108),
	"l40s":    kernels.DeviceOf(8, 142),
	"rtx4090": kernels.DeviceOf(8, 128),
	"t4":      kernels.DeviceOf(7, 40),
	"v100":    kernels.DeviceOf(7, 80),
}

func (o *Options) fill(m Model) {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def64 := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	defStr := func(p *string, v string) {
		if *p == "" {
			*p = v
		}
	}
	if o.Mode == "" {
		o.Mode = Train
	}
	if o.Precision == "" {
		o.Precision = FP32
	}
	if o.Optimizer == "" {
		o.Optimizer = AdamW
	}
	if o.Checkpoint == "" {
		o.Checkpoint = NoCheckpoint
	}
	if o.Fault == "" {
		o.Fault = NoFault
	}
	def64(&o.Batch, 8)
	if m.image() {
		def64(&o.Seq, m.Image)
	} else {
		def64(&o.Seq, min(512, m.Positions))
	}
	def(&o.DP, 1)
	def(&o.TP, 1)
	def(&o.PP, 1)
	if o.Accumulate == 0 {
		o.Accumulate = o.PP
	}
	def(&o.Steps, 3)
	defStr(&o.Lengths, "fixed")
	defStr(&o.Padding, "longest")
	def64(&o.PadMultiple, 1)
	if m.decoder() {
		def64(&o.NewTokens, 32)
	}
	defStr(&o.KVCache, "contiguous")
	def64(&o.KVBlock, 16)
	defStr(&o.GPU, "h200")
	def(&o.MaxEvents, 50_000_000)
}

// Validate checks the options by themselves, defaults included. Each error
// says what is wrong and what is allowed.
func (o Options) Validate() error {
	one := func(key, v string, allowed ...string) error {
		if v == "" || slices.Contains(allowed, v) {
			return nil
		}
		return fmt.Errorf("%s %q: must be one of %s", key, v, strings.Join(allowed, ", "))
	}
	within := func(key string, v, lo, hi int64) error {
		if v == 0 || v >= lo && v <= hi {
			return nil
		}
		return fmt.Errorf("%s %d: must be between %d and %d", key, v, lo, hi)
	}
	gpuNames := make([]string, 0, len(gpus))
	for g := range gpus {
		gpuNames = append(gpuNames, g)
	}
	slices.Sort(gpuNames)
	checks := []error{
		one("mode", string(o.Mode), string(Train), string(Infer)),
		within("batch", o.Batch, 1, 1<<20),
		within("seq", o.Seq, 1, 1<<24),
		one("precision", string(o.Precision), "fp32", "fp16-amp", "bf16-amp", "bf16", "fp16", "int8"),
		one("optimizer", string(o.Optimizer), "sgd", "adam", "adamw", "adafactor", "adam8bit"),
		one("checkpoint", string(o.Checkpoint), "none", "block", "sqrt"),
		within("accumulate", int64(o.Accumulate), 1, 1<<16),
		within("zero", int64(o.Zero), 0, 3),
		within("dp", int64(o.DP), 1, 1<<20),
		within("tp", int64(o.TP), 1, 1<<12),
		within("pp", int64(o.PP), 1, 1<<12),
		within("steps", int64(o.Steps), 1, 1<<24),
		one("padding", o.Padding, "max", "longest"),
		within("pad_multiple", o.PadMultiple, 1, 1<<20),
		within("token_budget", o.TokenBudget, 1, 1<<40),
		within("empty_cache_every", int64(o.EmptyCacheEvery), 1, 1<<24),
		within("skipped_steps", int64(o.SkippedSteps), 1, 1<<24),
		one("fault", string(o.Fault), "none", string(KeepOutputs), string(KeepGraph), string(NewOptimizer), string(LeakOptimizer)),
		within("new_tokens", o.NewTokens, 1, 1<<20),
		one("kv_cache", o.KVCache, "contiguous", "paged"),
		within("kv_block", o.KVBlock, 1, 1<<20),
		one("gpu", o.GPU, gpuNames...),
		within("max_events", int64(o.MaxEvents), 1, math.MaxInt32),
	}
	if err := errors.Join(checks...); err != nil {
		return first(err)
	}
	for _, b := range o.Batches {
		if b < 1 || b > 1<<20 {
			return fmt.Errorf("batches %v: each must be between 1 and %d", o.Batches, 1<<20)
		}
	}
	if _, err := parseLengths(o.Lengths); err != nil {
		return err
	}
	dp, pp := max(o.DP, 1), max(o.PP, 1)
	switch {
	case o.PPRank < 0 || o.PPRank >= pp:
		return fmt.Errorf("pp_rank %d: must be between 0 and %d for pp %d", o.PPRank, pp-1, pp)
	case o.Zero > 0 && dp == 1:
		return fmt.Errorf("zero %d: shards over data-parallel cards; give dp of at least 2", o.Zero)
	case pp > 1 && o.Accumulate != 0 && o.Accumulate < pp:
		return fmt.Errorf("accumulate %d: a pipeline of %d stages needs at least %d micro-batches", o.Accumulate, pp, pp)
	case pp > 1 && o.Mode == Infer:
		return errors.New("pp: pipeline stages are modelled for training only")
	case o.Mode == Infer && (o.DP > 1 || o.Zero > 0):
		return errors.New("dp and zero: are modelled for training only")
	case o.Zero >= 2 && o.PP > 1:
		return fmt.Errorf("zero %d with pp %d: sharded parameters or gradients inside a pipeline are not modelled; use zero 0 or 1", o.Zero, o.PP)
	case o.Zero >= 2 && o.Optimizer == Adafactor:
		return fmt.Errorf("optimizer adafactor with zero %d: torch.optim.Adafactor does not run on sharded parameters", o.Zero)
	case (o.Precision == FP16 || o.Precision == Int8) && o.Mode != Infer:
		return fmt.Errorf("precision %s: for inference only; train with fp32, fp16-amp, bf16-amp or bf16", o.Precision)
	case o.SkippedSteps > 0 && o.Precision != FP16AMP:
		return fmt.Errorf("skipped_steps %d: only the loss scaler of fp16-amp skips steps", o.SkippedSteps)
	case o.Fault == KeepGraph && o.Checkpoint != "" && o.Checkpoint != NoCheckpoint:
		return fmt.Errorf("fault %s with checkpoint %s: a checkpointed graph keeps no activations; not modelled", o.Fault, o.Checkpoint)
	case o.Fault == KeepGraph && o.Zero >= 2:
		return fmt.Errorf("fault %s with zero %d: not modelled", o.Fault, o.Zero)
	case pp > 1 && o.Fault != "" && o.Fault != NoFault:
		return fmt.Errorf("fault %s: not modelled in a pipeline", o.Fault)
	}
	return nil
}

// first is the first of joined errors.
func first(err error) error {
	var j interface{ Unwrap() []error }
	if errors.As(err, &j) && len(j.Unwrap()) > 0 {
		return j.Unwrap()[0]
	}
	return err
}

// padded reports batches whose items differ in length, which come with an
// attention mask.
func (o Options) padded() bool {
	l, _ := parseLengths(o.Lengths)
	return l.kind == "uniform" || l.kind == "lognormal"
}

// check validates the options against a model, after fill.
func (o Options) check(m Model) error {
	if err := o.Validate(); err != nil {
		return err
	}
	for _, check := range []func(Model) error{o.checkSeq, o.checkParallel, o.checkCache, o.checkLengths} {
		if err := check(m); err != nil {
			return err
		}
	}
	return nil
}

// checkSeq checks the length or size of an item against what the model takes.
func (o Options) checkSeq(m Model) error {
	switch {
	case !m.image() && o.Seq > m.Positions:
		return fmt.Errorf("seq %d: %s has %d positions", o.Seq, m.Name, m.Positions)
	case m.Family == "vit" && o.Seq != m.Image:
		return fmt.Errorf("seq %d: %s takes images of %d pixels", o.Seq, m.Name, m.Image)
	case m.image() && o.Seq < 32:
		return fmt.Errorf("seq %d: images of at least 32 pixels a side", o.Seq)
	case o.Mode == Infer && m.decoder() && o.Seq+o.NewTokens > m.Positions:
		return fmt.Errorf("seq %d and new_tokens %d: %s has %d positions", o.Seq, o.NewTokens, m.Name, m.Positions)
	}
	return nil
}

// checkParallel checks tensor and pipeline parallelism against the model's
// heads and blocks.
func (o Options) checkParallel(m Model) error {
	tp, cnn := int64(o.TP), m.Family == "resnet" || m.Family == "mobilenet-v3"
	switch {
	case o.TP > 1 && cnn:
		return fmt.Errorf("tp %d: tensor parallelism is for transformers; %s is a %s", o.TP, m.Name, m.Family)
	case o.TP > 1 && (m.Heads%tp != 0 || m.Intermediate%tp != 0):
		return fmt.Errorf("tp %d: must divide heads %d and intermediate %d of %s", o.TP, m.Heads, m.Intermediate, m.Name)
	case o.TP > 1 && m.Family == "llama" && m.kvHeads()%tp != 0 && tp%m.kvHeads() != 0:
		return fmt.Errorf("tp %d: must divide kv_heads %d of %s or be a multiple of it", o.TP, m.kvHeads(), m.Name)
	case o.PP > m.blockCount():
		return fmt.Errorf("pp %d: %s has only %d blocks", o.PP, m.Name, m.blockCount())
	case o.PP > 1 && cnn:
		return fmt.Errorf("pp %d: pipeline stages are for transformers; %s is a %s", o.PP, m.Name, m.Family)
	}
	return nil
}

// checkCache checks that what is to be cached exists.
func (o Options) checkCache(m Model) error {
	if o.Mode == Infer && o.KVCache == "paged" && !m.decoder() {
		return fmt.Errorf("kv_cache paged: %s has no KV cache", m.Name)
	}
	return nil
}

// checkLengths checks the distribution of lengths and the token budget.
func (o Options) checkLengths(m Model) error {
	l, err := parseLengths(o.Lengths)
	if err != nil {
		return err
	}
	if m.Family == "vit" && l.kind != "fixed" {
		return fmt.Errorf("lengths %q: %s takes images of one size", o.Lengths, m.Name)
	}
	if (m.Family == "resnet" || m.Family == "mobilenet-v3") && l.kind != "fixed" && l.kind != "list" {
		return fmt.Errorf("lengths %q: image models take the sides of the images from a list, such as list:224,256,288", o.Lengths)
	}
	hi := o.Seq
	if l.kind == "list" {
		hi = slices.Max(l.list)
		if m.image() && slices.Min(l.list) < 32 {
			return fmt.Errorf("lengths %q: images of at least 32 pixels a side", o.Lengths)
		}
	}
	if !m.image() && hi > m.Positions {
		return fmt.Errorf("lengths %q: %s has %d positions", o.Lengths, m.Name, m.Positions)
	}
	if o.TokenBudget > 0 && m.image() {
		return fmt.Errorf("token_budget %d: %s has no tokens", o.TokenBudget, m.Name)
	}
	if o.TokenBudget > 0 && o.TokenBudget < o.Seq {
		return fmt.Errorf("token_budget %d: less than one item of seq %d", o.TokenBudget, o.Seq)
	}
	return nil
}

// lengths is a parsed Options.Lengths.
type lengths struct {
	kind   string // fixed, uniform, lognormal, list
	lo, hi int64
	median float64
	sigma  float64
	list   []int64
}

func parseLengths(s string) (lengths, error) {
	bad := func(why string) (lengths, error) {
		return lengths{}, fmt.Errorf("lengths %q: %s; use fixed, uniform:LO-HI, lognormal:MEDIAN,SIGMA or list:A,B,…", s, why)
	}
	kind, arg, _ := strings.Cut(s, ":")
	l := lengths{kind: kind}
	switch kind {
	case "", "fixed":
		l.kind = "fixed"
		if arg != "" {
			return bad("fixed takes no value")
		}
	case "uniform":
		a, b, ok := strings.Cut(arg, "-")
		lo, err1 := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
		hi, err2 := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
		if !ok || err1 != nil || err2 != nil || lo < 1 || hi < lo || hi > 1<<24 {
			return bad("LO and HI must be whole numbers, 1 ≤ LO ≤ HI")
		}
		l.lo, l.hi = lo, hi
	case "lognormal":
		a, b, ok := strings.Cut(arg, ",")
		med, err1 := strconv.ParseFloat(strings.TrimSpace(a), 64)
		sig, err2 := strconv.ParseFloat(strings.TrimSpace(b), 64)
		if !ok || err1 != nil || err2 != nil || !(med >= 1 && med <= 1<<24) || !(sig >= 0 && sig <= 10) {
			return bad("MEDIAN must be at least 1 and SIGMA between 0 and 10")
		}
		l.median, l.sigma = med, sig
	case "list":
		for _, f := range strings.Split(arg, ",") {
			n, err := strconv.ParseInt(strings.TrimSpace(f), 10, 64)
			if err != nil || n < 1 || n > 1<<24 {
				return bad(fmt.Sprintf("%q is not a length", f))
			}
			l.list = append(l.list, n)
		}
	default:
		return bad(fmt.Sprintf("%q is not a distribution", kind))
	}
	return l, nil
}
