package planner_test

import (
	"context"
	"fmt"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/sim"
	"allocsim/sim/recovery"
	"allocsim/traces/formats"
)

// exampleJob opens a recording of the repository with the run that its program
// has now.
func exampleJob(ctx context.Context, name string) planner.Case {
	rec, err := formats.Open(ctx, "../testdata/recordings/"+name, formats.Options{})
	if err != nil {
		panic(err)
	}
	trace, err := rec.Device(-1)
	if err != nil {
		panic(err)
	}
	known, err := recovery.Recover(ctx, trace, recovery.Options{})
	if err != nil {
		panic(err)
	}
	return planner.Recorded(known)
}

// Which setting needs least memory?
func ExampleTune() {
	ctx := context.Background()
	res, err := planner.Tune(ctx, []planner.Case{exampleJob(ctx, "gnn__default.pickle.zst")}, planner.TuneOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Verdict)
	fmt.Println(res.Export)
	fmt.Printf("%.1f GiB become %.1f GiB; %.1f GiB live at once\n",
		float64(res.Baseline.ReservedPeak)/(1<<30), float64(res.Best.ReservedPeak)/(1<<30), float64(res.Bound)/(1<<30))
	// Output:
	// improved
	// export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
	// 12.9 GiB become 9.1 GiB; 5.4 GiB live at once
}

// On which of two cards does the job run?
func ExamplePlan() {
	ctx := context.Background()
	var cards []gpus.Card
	for _, name := range []string{"rtx 3070", "t4"} {
		card, err := gpus.Find(name)
		if err != nil {
			fmt.Println(err)
			return
		}
		cards = append(cards, card)
	}
	res, err := planner.Plan(ctx, []planner.Case{exampleJob(ctx, "gnn__default.pickle.zst")}, planner.PlanOptions{Cards: cards})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("smallest capacity:", res.MinCapacity.Baseline>>20, "MiB now,", res.MinCapacity.Best>>20, "MiB with", res.MinCapacity.BestConf)
	for _, c := range res.GPUs {
		fmt.Printf("%s: %s, with %q\n", c.Name, c.Verdict, c.Conf)
	}
	// Output:
	// smallest capacity: 7222 MiB now, 5676 MiB with expandable_segments:True
	// RTX 3070: fits, with "expandable_segments:True"
	// Tesla T4: fits, with ""
}

// Conditions such as those of --fail-on, held against a run.
func ExampleCheck() {
	ctx := context.Background()
	job := exampleJob(ctx, "gnn__default.pickle.zst")
	alerts, err := planner.ParseAlerts([]string{"ooms>0", "reserved_peak>10GiB"})
	if err != nil {
		fmt.Println(err)
		return
	}
	cfg := job.Config()
	cfg.Detail = true // what fragmentation needs
	res, err := sim.Run(ctx, job.Trace, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, a := range planner.Check(alerts, res) {
		fmt.Println(a)
	}
	// Output:
	// reserved_peak>10GiB (it is 12.87 GiB)
}
