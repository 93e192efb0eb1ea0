package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"allocsim/internal/bytesize"
	"allocsim/internal/table"
	"allocsim/traces/formats"
	"allocsim/traces/inspect"
	"allocsim/traces/synth"
)

func newSynth(a *app) *cobra.Command {
	var o synth.Options
	var list, train, infer bool
	var out string
	cmd := &cobra.Command{
		Use:        "synth MODEL",
		SuggestFor: []string{"generate", "model"},
		Short:      "Write the requests of a job that nobody has run",
		Long: `Writes the requests that PyTorch would make of its allocator when it trains or
runs a model, from the model's description: a built-in name (--list) or a YAML
file. Each technique that saves memory is a flag, so it can be weighed before
anything is run. The trace replays like a recording.`,
		Example: `  allocsim synth bert-large --batch 8 --seq 256 --precision bf16-amp -o bert.csv
  allocsim synth llama-7b --infer --batch 16 --seq 512 --precision bf16 -o x.csv
  allocsim replay bert.csv --gpu "RTX 4090"`,
		Args:              arguments(0, 1, "one MODEL"),
		ValidArgsFunction: completeModel,
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return a.showModels()
			}
			if len(args) == 0 {
				return errors.New("name a model or a YAML file; allocsim synth --list shows the models")
			}
			file, err := a.traceOutput(cmd, "output")
			if err != nil {
				return err
			}
			m, err := synth.Load(args[0])
			if err != nil {
				return err
			}
			switch {
			case train && infer:
				return errors.New("choose --train or --infer")
			case infer:
				o.Mode = synth.Infer
			case train:
				o.Mode = synth.Train
			}
			tr, err := synth.Generate(cmd.Context(), m, o)
			if err != nil {
				return err
			}
			notes := tr.Notes
			if file != nil {
				lost, err := formats.Write(cmd.Context(), file, tr)
				if err != nil {
					return err
				}
				notes = append(notes, lost...)
			}
			s := inspect.Summarize(tr)
			if a.json {
				return a.printJSON(struct {
					Model   synth.Model     `json:"model"`
					Params  int64           `json:"params"`
					Options synth.Options   `json:"options"`
					Output  string          `json:"output"`
					Trace   inspect.Summary `json:"trace"`
				}{m, m.Params(), o, out, s})
			}
			a.printf("%s: %s parameters, %s requests, %s live at the peak (requested bytes)\n", a.strong(m.Name), number(int(m.Params())),
				number(s.Blocks), bytesize.Format(s.Peak.Requested))
			if out == "" {
				a.printf("write the trace with -o FILE.csv or -o FILE.parquet\n")
			}
			a.notes(notes)
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&list, "list", false, "list the built-in models")
	f.BoolVar(&train, "train", false, "train (the default)")
	f.BoolVar(&infer, "infer", false, "run inference")
	f.Int64Var(&o.Batch, "batch", 0, "items per step and card")
	f.Int64Var(&o.Seq, "seq", 0, "tokens per item, or the side of the images in pixels")
	f.StringVar((*string)(&o.Precision), "precision", "", "fp32, fp16-amp, bf16-amp, bf16, fp16 or int8")
	f.StringVar((*string)(&o.Optimizer), "optimizer", "", "sgd, adam, adamw, adafactor or adam8bit")
	f.StringVar((*string)(&o.Checkpoint), "checkpoint", "", "none, block or sqrt")
	f.IntVar(&o.Accumulate, "accumulate", 0, "micro-batches per optimizer step")
	f.IntVar(&o.Zero, "zero", 0, "ZeRO/FSDP stage, 0 to 3")
	f.IntVar(&o.DP, "dp", 0, "data-parallel cards")
	f.IntVar(&o.TP, "tp", 0, "tensor-parallel cards")
	f.IntVar(&o.PP, "pp", 0, "pipeline stages")
	f.IntVar(&o.PPRank, "pp-rank", 0, "pipeline stage to trace")
	f.IntVar(&o.Steps, "steps", 0, "steps (training) or batches (inference)")
	f.Int64Var(&o.Seed, "seed", 0, "seed of the drawn lengths")
	f.StringVar(&o.Lengths, "lengths", "", "tokens of each item: fixed, uniform:LO-HI, lognormal:MEDIAN,SIGMA or list:A,B,…")
	f.StringVar(&o.Padding, "padding", "", "pad a batch to max or to its longest item")
	f.Int64Var(&o.PadMultiple, "pad-multiple", 0, "round the padded length up to a multiple")
	f.Int64Var(&o.TokenBudget, "token-budget", 0, "fill batches up to so many padded tokens")
	f.IntVar(&o.EmptyCacheEvery, "empty-cache-every", 0, "call torch.cuda.empty_cache() after every n-th step")
	f.BoolVar(&o.ClipNorm, "clip-norm", false, "clip the gradient norm before each optimizer step")
	f.BoolVar(&o.ZeroGradFirst, "zero-grad-first", false, "zero the gradients before the forward instead of after the step")
	f.IntVar(&o.SkippedSteps, "skipped-steps", 0, "first steps that the loss scaler of fp16-amp skips")
	f.StringVar((*string)(&o.Fault), "fault", "", "a mistake: keep-outputs, keep-graph, new-optimizer or leak-optimizer")
	f.Int64Var(&o.NewTokens, "new-tokens", 0, "tokens generated per item (inference of decoders)")
	f.StringVar(&o.KVCache, "kv-cache", "", "contiguous or paged")
	f.Int64Var(&o.KVBlock, "kv-block", 0, "tokens of a page")
	f.Int64SliceVar(&o.Batches, "batches", nil, "items of each batch in turn, instead of --batch")
	f.BoolVar(&o.UseCache, "use-cache", false, "keep keys and values during training too")
	f.BoolVar(&o.HoldBatch, "hold-batch", false, "keep each batch until the next has been built")
	f.StringVar(&o.GPU, "gpu", "", "card whose library workspaces are assumed: h200, h100, a100, l40s, rtx4090, t4 or v100")
	f.IntVar(&o.MaxEvents, "max-events", 0, "most events to write")
	addOutput(cmd, &out, "output", "o", "`FILE` to write, .csv or .parquet (also .gz, .zst)")
	return cmd
}

func (a *app) showModels() error {
	models := synth.Models()
	if a.json {
		return a.printJSON(models)
	}
	t := table.New("model", "family", ">params", "")
	for _, m := range models {
		t.Row(m.Name, m.Family, paramCount(m.Params), m.What)
	}
	return a.print(t)
}

// paramCount is a number of parameters as people say it.
func paramCount(n int64) string {
	if n < 1e9 {
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f B", float64(n)/1e9)
}
