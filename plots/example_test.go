package plots_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"gonum.org/v1/plot/vg"

	"allocsim/plots"
	"allocsim/policies"
	_ "allocsim/policies/all"
	"allocsim/sim"
	"allocsim/traces"
)

// A figure of a run: record it with an observer, then draw.
func Example() {
	b := traces.NewBuilder(4)
	x := b.Alloc(0, 20<<20, 0, 0)
	y := b.Alloc(1000, 40<<20, 0, 0)
	b.Free(2000, x)
	b.Free(3000, y)
	tr, _, err := b.Build()
	if err != nil {
		log.Fatal(err)
	}
	spec, err := policies.Parse("torch")
	if err != nil {
		log.Fatal(err)
	}
	rec := plots.NewRecorder(tr, plots.ByTime, plots.Columns)
	if _, err := sim.Run(context.Background(), tr, sim.Config{Policy: spec}, rec); err != nil {
		log.Fatal(err)
	}
	m := rec.Memory()
	fig := &plots.Timeline{Source: "two tensors", Runs: []plots.Run{{Name: "PyTorch's defaults", Memory: m}}}
	var svg bytes.Buffer
	if err := plots.Render(&svg, fig, plots.Options{Format: plots.SVG, Width: 8 * vg.Centimeter, Height: 6 * vg.Centimeter}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(m.Reserved.Max()>>20, "MiB reserved,", m.Allocated.Max()>>20, "MiB allocated at the peak")
	fmt.Println(bytes.HasPrefix(svg.Bytes(), []byte("<?xml")))
	// Output:
	// 60 MiB reserved, 60 MiB allocated at the peak
	// true
}
