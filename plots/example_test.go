package plots_test

import (
	"bytes"
	"context"
	"fmt"

	"allocsim/plots"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/traces/formats"
)

// Memory over time under two settings, as SVG.
func ExampleRender() {
	ctx := context.Background()
	rec, err := formats.Open(ctx, "../testdata/recordings/gnn__default.pickle.zst", formats.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	trace, err := rec.Device(-1)
	if err != nil {
		fmt.Println(err)
		return
	}
	var figure plots.Timeline
	for _, setting := range []string{"", "expandable_segments:True"} {
		spec, err := torch.Parse(setting, conf.Latest)
		if err != nil {
			fmt.Println(err)
			return
		}
		memory := plots.NewRecorder(trace, plots.ByTime, plots.Columns)
		if _, err := sim.Run(ctx, trace, sim.Config{Policy: spec}, memory); err != nil {
			fmt.Println(err)
			return
		}
		figure.Runs = append(figure.Runs, plots.Run{Name: spec.String(), Memory: memory.Memory()})
	}
	var svg bytes.Buffer
	if err := plots.Render(&svg, &figure, plots.Options{Format: plots.SVG}); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("drawn:", bytes.Contains(svg.Bytes(), []byte("</svg>")))
	// Output:
	// drawn: true
}
