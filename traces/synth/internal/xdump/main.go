package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"allocsim/traces"
	"allocsim/traces/synth"
)

func main() {
	m, err := synth.Load(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var o synth.Options
	if err := json.Unmarshal([]byte(os.Args[2]), &o); err != nil {
		panic(err)
	}
	r, err := synth.Run(context.Background(), m, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	w := bufio.NewWriter(os.Stdout)
	defer w.Flush()
	sizes := make([]int64, r.Trace.NumBlocks)
	var live, peak int64
	quiet := len(os.Args) > 3
	for _, e := range r.Trace.Events {
		switch e.Kind {
		case traces.Alloc:
			sizes[e.ID] = e.Size
			live += (e.Size + 511) / 512 * 512
			peak = max(peak, live)
			if !quiet {
				st := ""
				s := r.Trace.Stacks
				for _, f := range s.Stack[s.ByBlock[e.ID]] {
					st += " < " + s.Frames[f].Function
				}
				fmt.Fprintln(w, "a", e.ID, e.Size, live, st)
			}
		case traces.Free:
			live -= (sizes[e.ID] + 511) / 512 * 512
			if !quiet {
				fmt.Fprintln(w, "f", e.ID, sizes[e.ID], live)
			}
		}
	}
	fmt.Fprintf(w, "# %d events %d allocs peak %.6f MiB params %d flops %.3g recompute %.3g\n", len(r.Trace.Events), r.Trace.NumBlocks, float64(peak)/(1<<20), r.Params, r.FLOPs, r.RecomputeFLOPs)
}
