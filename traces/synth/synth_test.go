package synth_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"allocsim/traces"
	"allocsim/traces/synth"
)

// TestTranscripts pins models, options and their errors. Commands:
//
//	models                   the built-in models
//	load                     a YAML description, or a name
//	options                  YAML options checked by themselves
//	generate MODEL           YAML options: counts, peak, notes
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			switch d.Cmd {
			case "models":
				for _, m := range synth.Models() {
					fmt.Fprintf(&b, "%-20s %-13s %12d  %s\n", m.Name, m.Family, m.Params, m.What)
				}
			case "load":
				in := d.Input
				if len(d.CmdArgs) > 0 {
					in = d.CmdArgs[0].Key
				}
				m, err := synth.Load(in + map[bool]string{true: "\n"}[len(d.CmdArgs) == 0])
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				j, err := json.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintf(&b, "%s\n%d parameters\n", j, m.Params())
			case "options":
				var o synth.Options
				if err := yaml.UnmarshalStrict([]byte(d.Input), &o); err != nil {
					return "error: " + err.Error() + "\n"
				}
				if err := o.Validate(); err != nil {
					return "error: " + err.Error() + "\n"
				}
				b.WriteString("ok\n")
			case "generate":
				var o synth.Options
				if err := yaml.UnmarshalStrict([]byte(d.Input), &o); err != nil {
					t.Fatal(err)
				}
				r, err := synth.Run(context.Background(), load(t, d.CmdArgs[0].Key), o)
				if err != nil {
					return "error: " + err.Error() + "\n"
				}
				fmt.Fprintf(&b, "%d events, %d allocations, live peak %d bytes, %.4g operations (%.4g repeated)\n",
					len(r.Trace.Events), r.Trace.NumBlocks, r.LivePeak, r.FLOPs, r.RecomputeFLOPs)
				if d.HasArg("notes") {
					for _, n := range r.Trace.Notes {
						fmt.Fprintf(&b, "note: %s\n", n)
					}
				}
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return b.String()
		})
	})
}

// tiny are small models of every family.
var tiny = []synth.Model{
	{Family: "bert", Hidden: 64, Layers: 3, Heads: 4, Intermediate: 128, Vocab: 100, Positions: 64, Types: 2, Dropout: 0.1},
	{Family: "gpt2", Hidden: 64, Layers: 4, Heads: 4, Intermediate: 256, Vocab: 100, Positions: 64, Dropout: 0.1},
	{Family: "llama", Hidden: 64, Layers: 4, Heads: 4, KVHeads: 2, Intermediate: 96, Vocab: 100, Positions: 64},
	{Family: "vit", Hidden: 64, Layers: 3, Heads: 4, Intermediate: 128, Patch: 16, Image: 64, Classes: 10},
	{Family: "resnet", Blocks: []int{1, 1, 1, 1}, Bottleneck: true, Image: 64, Classes: 10},
	{Family: "resnet", Blocks: []int{1, 2, 1, 1}, Image: 64, Classes: 10},
	{Family: "mobilenet-v3", Variant: "small", Image: 64, Classes: 10, Dropout: 0.2},
}

// drawOptions draws any combination of knobs; most are valid.
func drawOptions(t *rapid.T) synth.Options {
	pick := func(name string, vs ...string) string { return rapid.SampledFrom(vs).Draw(t, name) }
	o := synth.Options{
		Mode:            synth.Mode(pick("mode", "train", "train", "infer")),
		Batch:           rapid.Int64Range(1, 5).Draw(t, "batch"),
		Precision:       synth.Precision(pick("precision", "fp32", "fp16-amp", "bf16-amp", "bf16", "int8", "fp16")),
		Optimizer:       synth.OptimizerName(pick("optimizer", "sgd", "adam", "adamw", "adafactor", "adam8bit")),
		Checkpoint:      synth.Checkpointing(pick("checkpoint", "none", "block", "sqrt")),
		Accumulate:      rapid.IntRange(0, 3).Draw(t, "accumulate"),
		Zero:            rapid.IntRange(0, 3).Draw(t, "zero"),
		DP:              rapid.SampledFrom([]int{0, 1, 2, 4}).Draw(t, "dp"),
		TP:              rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "tp"),
		PP:              rapid.SampledFrom([]int{0, 1, 2}).Draw(t, "pp"),
		PPRank:          rapid.IntRange(0, 1).Draw(t, "pp rank"),
		Steps:           3,
		Seed:            rapid.Int64Range(0, 3).Draw(t, "seed"),
		Lengths:         pick("lengths", "fixed", "fixed", "uniform:5-32", "lognormal:16,0.5"),
		Padding:         pick("padding", "longest", "max"),
		PadMultiple:     rapid.Int64Range(0, 8).Draw(t, "pad multiple"),
		EmptyCacheEvery: rapid.IntRange(0, 2).Draw(t, "empty cache"),
		ClipNorm:        rapid.Bool().Draw(t, "clip"),
		HoldBatch:       rapid.Bool().Draw(t, "hold"),
		UseCache:        rapid.Bool().Draw(t, "use cache"),
		ZeroGradFirst:   rapid.Bool().Draw(t, "zero first"),
		Fault:           synth.Fault(pick("fault", "none", "none", "none", "keep-outputs", "keep-graph", "new-optimizer", "leak-optimizer")),
		NewTokens:       rapid.Int64Range(1, 4).Draw(t, "new tokens"),
		KVCache:         pick("kv cache", "contiguous", "contiguous", "paged"),
		KVBlock:         rapid.Int64Range(1, 8).Draw(t, "kv block"),
		GPU:             pick("gpu", "h200", "a100"),
	}
	if rapid.Bool().Draw(t, "budget") {
		o.TokenBudget = rapid.Int64Range(64, 200).Draw(t, "token budget")
	}
	return o
}

// TestProperties draws programs and checks what holds for every trace: frees
// name live blocks (the builder refuses others), nothing depends on anything
// but the input, marks and stacks fit, and a program without a fault holds
// after its last step what it held after the one before.
func TestProperties(t *testing.T) {
	ran := 0
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.SampledFrom(tiny).Draw(t, "model")
		o := drawOptions(t)
		if m.Family == "bert" || m.Family == "gpt2" || m.Family == "llama" {
			o.Seq = rapid.Int64Range(32, 60).Draw(t, "seq")
		}
		r, err := synth.Run(context.Background(), m, o)
		if err != nil {
			if r != nil || strings.Contains(err.Error(), "event ") {
				t.Fatalf("not refused cleanly: %v", err)
			}
			return
		}
		ran++
		again, err := synth.Run(context.Background(), m, o)
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Fatalf("the same input gave another trace: %v", err)
		}
		tr := r.Trace
		if len(tr.Stacks.ByBlock) != tr.NumBlocks {
			t.Fatalf("%d stacks for %d blocks", len(tr.Stacks.ByBlock), tr.NumBlocks)
		}
		if len(tr.Annotations) != 2*o.Steps {
			t.Fatalf("%d marks for %d steps", len(tr.Annotations), o.Steps)
		}
		var ends []int64
		live := int64(0)
		sizes := make([]int64, tr.NumBlocks)
		mark := 0
		at := func(us int64) {
			for mark < len(tr.Annotations) && tr.Annotations[mark].TimeUS < us {
				if tr.Annotations[mark].End {
					ends = append(ends, live)
				}
				mark++
			}
		}
		for _, e := range tr.Events {
			at(e.TimeUS)
			switch e.Kind {
			case traces.Alloc:
				sizes[e.ID] = e.Size
				live += e.Size
			case traces.Free:
				live -= sizes[e.ID]
			}
		}
		at(1 << 62)
		if len(ends) != o.Steps {
			t.Fatalf("%d of %d steps ended", len(ends), o.Steps)
		}
		fixed := o.Lengths == "fixed" && o.TokenBudget == 0
		if fixed && (o.Fault == synth.NoFault || o.Fault == synth.NewOptimizer) && ends[1] != ends[2] {
			t.Fatalf("live bytes after steps: %v", ends)
		}
		if o.Fault == synth.KeepOutputs && o.PP < 2 && ends[2] <= ends[1] {
			t.Fatalf("kept outputs do not add up: %v", ends)
		}
	})
	if ran == 0 {
		t.Fatal("no program was valid")
	}
}

// TestCancel stops a long program.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := synth.Generate(ctx, load(t, "bert-large"), synth.Options{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	_, err := synth.Generate(context.Background(), load(t, "bert-large"), synth.Options{MaxEvents: 1000})
	if err == nil || !strings.Contains(err.Error(), "too many events") {
		t.Fatalf("got %v", err)
	}
}

// TestForecast refuses what is too long early, and nothing that is not: a limit
// of exactly the events of the program will do, one less will not.
func TestForecast(t *testing.T) {
	for _, o := range []synth.Options{
		{Steps: 9},
		{Steps: 5, Accumulate: 7},
		{Steps: 9, Precision: synth.FP16AMP, SkippedSteps: 2},
		{Steps: 9, Precision: synth.FP16AMP, SkippedSteps: 5},
		{Steps: 9, ZeroGradFirst: true, HoldBatch: true},
		{Steps: 9, Zero: 3, DP: 4, Accumulate: 4},
		{Steps: 9, PP: 2, Accumulate: 4},
		{Steps: 9, Checkpoint: synth.SqrtCheckpoint, EmptyCacheEvery: 4},
		{Steps: 9, Fault: synth.KeepOutputs},
		{Steps: 9, Fault: synth.KeepGraph},
		{Steps: 9, Fault: synth.NewOptimizer},
		{Steps: 9, Fault: synth.LeakOptimizer},
		{Steps: 12, Lengths: "uniform:1-256", TokenBudget: 512},
		{Steps: 12, Lengths: "list:200,200,200,1"},
		{Steps: 12, Batches: []int64{8, 8, 8, 1}},
		{Steps: 9, Mode: synth.Infer, NewTokens: 4},
		{Steps: 9, Mode: synth.Infer, NewTokens: 4, KVCache: "paged"},
		{Steps: 12, Mode: synth.Infer, NewTokens: 1, KVCache: "paged", KVBlock: 1, Lengths: "list:256,256,256,1,1,1,1,1"},
	} {
		m := load(t, "gpt2")
		m.Layers = 2
		tr, err := synth.Generate(context.Background(), m, o)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		o.MaxEvents = len(tr.Events)
		if _, err := synth.Generate(context.Background(), m, o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
		o.MaxEvents--
		if _, err := synth.Generate(context.Background(), m, o); err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf("too many events: more than %d", o.MaxEvents)) {
			t.Errorf("%+v: got %v", o, err)
		}
		// So many that only foresight ends the test.
		if o.KVCache == "paged" && o.Lengths != "" {
			continue
		}
		o.MaxEvents, o.Steps = 0, 1<<24
		if _, err := synth.Generate(context.Background(), m, o); err == nil || !strings.Contains(err.Error(), "too many events") {
			t.Errorf("%+v: got %v", o, err)
		}
	}
}

// BenchmarkGenerate makes three training steps of BERT-large, about 18,000
// events.
func BenchmarkGenerate(b *testing.B) {
	m := load(b, "bert-large")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := synth.Generate(context.Background(), m, synth.Options{Precision: synth.BF16AMP}); err != nil {
			b.Fatal(err)
		}
	}
}
