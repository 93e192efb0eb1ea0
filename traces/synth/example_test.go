package synth_test

import (
	"context"
	"fmt"

	"allocsim/sim"
	"allocsim/traces/synth"
)

// How much do activation checkpointing and autocast save, before anything is
// run?
func ExampleGenerate() {
	ctx := context.Background()
	model, err := synth.Load("bert-base")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, o := range []synth.Options{
		{Batch: 32, Seq: 256, Steps: 2, Precision: synth.FP32, Checkpoint: synth.NoCheckpoint},
		{Batch: 32, Seq: 256, Steps: 2, Precision: synth.BF16AMP, Checkpoint: synth.NoCheckpoint},
		{Batch: 32, Seq: 256, Steps: 2, Precision: synth.BF16AMP, Checkpoint: synth.BlockCheckpoint},
	} {
		trace, err := synth.Generate(ctx, model, o)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s, checkpointing %s: %d MiB live at once\n", o.Precision, o.Checkpoint, sim.Bound(trace)>>20)
	}
	// Output:
	// fp32, checkpointing none: 9063 MiB live at once
	// bf16-amp, checkpointing none: 7030 MiB live at once
	// bf16-amp, checkpointing block: 4127 MiB live at once
}

// A model of one's own is a few lines of YAML.
func ExampleLoad() {
	model, err := synth.Load(`
family: llama
hidden: 1024
layers: 8
heads: 16
kv_heads: 4
intermediate: 2816
vocab: 32000
positions: 2048
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%.1f M parameters\n", float64(model.Params())/1e6)
	_, err = synth.Load("family: llama\nhiden: 1024\n")
	fmt.Println(err)
	// Output:
	// 155.7 M parameters
	// unknown key "hiden" for family llama; known: name, family, hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, positions, tied
}
